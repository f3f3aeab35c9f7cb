#include "engine/data/images/jpeg_units.h"

#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/philox.h"
#include "engine/data/dataset.h"
#include "engine/data/images/image_resize.h"
#include "engine/data/images/jpeg_decode.h"
#include "engine/data/images/part_resize.h"
#include "test/data/write_image.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"

namespace dstrain {
namespace {

const at::Device kDevice(at::kCUDA, 0);

RgbImage noise(int width, int height, std::uint64_t seed) {
  RgbImage image{width, height, std::vector<std::uint8_t>(to_index(width) * to_index(height) * 3)};
  for (std::size_t i = 0; i < image.pixels.size(); ++i)
    image.pixels[i] = static_cast<std::uint8_t>(Philox::at(seed, 2, i).word[0]);
  return image;
}

/// A picture with soft and with hard edges, no two alike.
RgbImage picture(int width, int height, int number) {
  RgbImage image = test::make_gradient(width, height);
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      auto* pixel = &image.pixels[(to_index(y) * to_index(width) + to_index(x)) * 3];
      pixel[2] = static_cast<std::uint8_t>((x / 9 + y / 7 + number) % 2 * 120 + number);
    }
  }
  return image;
}

/// GPUs without such units, as most of workstations, skip the test.
std::shared_ptr<JpegUnits> units_or_skip(int threads = 1) {
  try {
    return JpegUnits::open(kDevice, threads);
  } catch (const Error& error) {
    WARN("skipped: " << error.what());
    return nullptr;
  }
}

struct Decoded {
  std::string bytes;
  JpegSize size;
  ImageWindow window;
  int side;
  std::vector<std::uint8_t> pixels = std::vector<std::uint8_t>(to_index(side) * to_index(side) * 3);

  UnitImage image() {
    return {.bytes = bytes,
            .width = size.width,
            .height = size.height,
            .window = window,
            .axes = part_axes(0, 0, window.width, window.height, side),
            .pixels = pixels};
  }
};

TEST_CASE("parts of images resized on the GPU have the bits of the CPU", "[gpu][jpeg]") {
  const auto filter =
      GENERATE(Interpolation::bilinear, Interpolation::bicubic, Interpolation::lanczos);
  struct Case {
    ImageWindow part;
    int side;
  };
  const RgbImage image = noise(320, 700, 7);
  // The tall one is resized along its rows first.
  const Case cases[] = {{{0, 0, 320, 700}, 224},
                        {{3, 5, 17, 640}, 32},
                        {{100, 200, 64, 64}, 64},
                        {{319, 699, 1, 1}, 8},
                        {{11, 7, 300, 90}, 96}};
  std::uint8_t* device = nullptr;
  REQUIRE(cudaMalloc(&device, image.pixels.size()) == cudaSuccess);
  REQUIRE(cudaMemcpy(device, image.pixels.data(), image.pixels.size(), cudaMemcpyDefault) ==
          cudaSuccess);
  std::vector<std::vector<std::uint8_t>> made, expected;
  std::vector<DevicePart> parts;
  made.reserve(std::size(cases));
  for (const auto& [part, side] : cases) {
    const std::size_t bytes = to_index(side) * to_index(side) * 3;
    made.emplace_back(bytes);
    parts.push_back({.from = device + (part.top * 320 + part.left) * 3,
                     .pitch = std::int64_t{320} * 3,
                     .width = part.width,
                     .height = part.height,
                     .axes = part_axes(0, 0, part.width, part.height, side),
                     .pixels = made.back()});
    const ImagePart cut = cut_part(image.pixels, 320, 700, 3,
                                   {.window = [&, window = part](int, int) { return window; }});
    resize_part({cut.image.pixels, part.width, part.height}, cut, side, filter,
                expected.emplace_back(bytes));
  }
  PartResize resize;
  resize.enqueue(parts, filter, nullptr);
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  CHECK(made == expected);
  cudaFree(device);
}

TEST_CASE("JPEG units give nearly the pixels of the CPU, and the same ones each time",
          "[gpu][jpeg]") {
  constexpr int kThreads = 4;
  const auto units = units_or_skip(kThreads);
  if (units == nullptr) return;
  const auto make = [](int turn) {
    std::vector<Decoded> images;
    for (int i = 0; i < 24; ++i) {
      const int width = 64 + 37 * i + turn, height = 500 - 13 * i;
      const test::JpegForm form = {i % 3 == 0 ? 1 : 2, i % 3 == 2 ? 2 : 1, false};
      std::string bytes = test::encode_jpeg(picture(width, height, i), form);
      const std::optional<JpegSize> size = unit_jpeg(bytes);
      REQUIRE(size);
      images.push_back({.bytes = std::move(bytes),
                        .size = *size,
                        .window = {i, 2 * i, width - 2 * i, height - 3 * i},
                        .side = 48 + i});
    }
    return images;
  };
  const auto decode = [&](std::vector<Decoded>& images) {
    std::vector<UnitImage> wanted;
    for (Decoded& image : images) wanted.push_back(image.image());
    REQUIRE(units->decode(wanted, Interpolation::bilinear));
  };
  std::vector<std::vector<Decoded>> turns;
  for (int i = 0; i < kThreads; ++i) turns.push_back(make(i));
  std::vector<std::vector<Decoded>> again = turns;
  for (std::vector<Decoded>& turn : again) decode(turn);
  {
    std::vector<std::jthread> threads;
    for (std::vector<Decoded>& turn : turns) threads.emplace_back([&] { decode(turn); });
  }
  for (int i = 0; i < kThreads; ++i) {
    for (std::size_t j = 0; j < turns[to_index(i)].size(); ++j) {
      const Decoded& image = turns[to_index(i)][j];
      CAPTURE(i, j);
      CHECK(image.pixels == again[to_index(i)][j].pixels);
      const ImagePart part =
          decode_part(image.bytes, {.window = [&](int, int) { return image.window; }}, "a");
      std::vector<std::uint8_t> expected(image.pixels.size());
      resize_part({part.image.pixels, part.image.width, part.image.height}, part, image.side,
                  Interpolation::bilinear, expected);
      double apart = 0;
      for (std::size_t k = 0; k < expected.size(); ++k)
        apart += std::abs(int{expected[k]} - int{image.pixels[k]});
      CHECK(apart / static_cast<double>(expected.size()) < 1.5);
    }
  }
}

TEST_CASE("with JPEG units a data set fills the rows that it fills without them", "[gpu][jpeg]") {
  const bool window = GENERATE(false, true), skip = GENERATE(true, false);
  CAPTURE(window, skip);
  const test::TempDir dir;
  const RgbImage image = picture(200, 150, 1);
  const std::string sound = test::encode_jpeg(image);
  std::string damaged = sound;
  const std::size_t scan = damaged.find("\xff\xda");
  // Codes that no table has, in the middle of the scan.
  for (std::size_t i = scan + 200; i < scan + 260; ++i) damaged[i] = static_cast<char>(0xfe);
  const std::pair<const char*, std::string> files[] = {
      {"0.jpg", sound},
      {"1.jpg", test::encode_png(image)},
      {"2.jpg", test::encode_jpeg(image, test::JpegForm{2, 2, true})},
      {"3.jpg", test::encode_grey_jpeg(image)},
      {"4.jpg", test::encode_cmyk_jpeg(image)},
      {"5.jpg", test::half(sound)},
      {"6.jpg", damaged},
      {"7.jpg", sound}};
  for (const char* split : {"train", "test"}) {
    for (const auto& [name, bytes] : files)
      test::write_file(dir.path() / split / "a" / name, bytes);
  }
  DataConfig data;
  data.name = DatasetName::images;
  data.path = dir.path().string();
  data.bad_record = skip ? BadRecord::skip : BadRecord::stop;
  data.augment = {window ? Augmentation::random_resized_crop : Augmentation::random_crop,
                  Augmentation::rand_augment};
  const auto plain = open_images(data, Split::train, 64, 3),
             by_units = open_images(data, Split::train, 64, 3);
  const auto units = units_or_skip();
  if (units == nullptr) return;
  by_units->decode_by(units);
  const std::vector<std::int64_t> indices = {0, 1, 2, 3, 4, 5, 6, -1, 7};
  const auto fill = [&](const ImageDataset& images, HostBatch& batch) {
    std::int64_t row = 0;
    try {
      images.fill_rows(batch, row, indices);
    } catch (const Error& error) {
      CHECK(!skip);
      CHECK(std::string(error.what()).find("5.jpg") != std::string::npos);
    }
    return row;
  };
  HostBatch expected = plain->allocate(9, false), found = by_units->allocate(9, true);
  REQUIRE(fill(*by_units, found) == fill(*plain, expected));
  if (!skip) return;  // at the file that is cut off
  CHECK(found.labels.equal(expected.labels));
  CHECK(found.weights.equal(expected.weights));
  CHECK(found.samples.equal(expected.samples));
  for (const std::int64_t row : {1, 2, 3, 4, 7}) {
    CAPTURE(row);
    CHECK(found.pixels[row].equal(expected.pixels[row]));
  }
  // Also beside other neighbours.
  HostBatch alone = by_units->allocate(9, true);
  for (std::int64_t row = 0; row < 9;)
    by_units->fill_rows(alone, row, std::span(indices).subspan(to_index(row), 1));
  CHECK(alone.pixels.equal(found.pixels));
}

}  // namespace
}  // namespace dstrain
