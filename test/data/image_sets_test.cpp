#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/data/dataset.h"
#include "engine/data/images/image_decode.h"
#include "engine/data/loader.h"
#include "engine/data/text/progress_sink.h"
#include "test/data/write_image.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;
using test::TempDir;
using test::write_file;

/// What is said when `call` fails.
template <class Call>
std::string message_of(const Call& call) {
  try {
    static_cast<void>(call());
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}
bool holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

struct Notes final : ProgressSink {
  void note(const std::string& text) override { lines.push_back(text); }
  void progress(double, const std::string&) override { ++steps; }
  [[nodiscard]] std::string all() const { return fmt::format("{}", fmt::join(lines, "\n")); }
  std::vector<std::string> lines;
  int steps = 0;
};

DataConfig images_in(const fs::path& root) {
  DataConfig data;
  data.name = DatasetName::images;
  data.path = root.string();
  data.cache = (root.parent_path() / "cache").string();
  data.resize_side = 16;
  return data;
}

/// The digits of the binary as JPEG files, 32 x 32, a folder per class.
void write_digits(const fs::path& root, std::int64_t count) {
  for (const Split split : {Split::train, Split::test}) {
    const auto digits = open_images({}, split, 8, 0);
    std::vector<std::uint8_t> pixels(64);
    for (std::int64_t i = 0; i < std::min(count, digits->size()); ++i) {
      const int label = digits->read(i, pixels);
      RgbImage image{32, 32, {}};
      for (std::size_t at = 0; at < 1024; ++at)
        image.pixels.insert(image.pixels.end(), 3, pixels[at / 128 * 8 + at % 32 / 4]);
      write_file(root / (split == Split::train ? "train" : "test") / fmt::format("{}", label) /
                     fmt::format("{:04}.jpg", i),
                 test::encode_jpeg(image));
    }
  }
}

std::vector<std::uint8_t> tensor_bytes(const at::Tensor& tensor) {
  const auto* bytes = static_cast<const std::uint8_t*>(tensor.const_data_ptr());
  return {bytes, bytes + tensor.nbytes()};
}

LoaderOptions one_epoch(const ImageDataset& images, std::int64_t micro, int ranks = 1,
                        int rank = 0) {
  return {.global_batch = micro * ranks,
          .micro_batch = micro,
          .data_ranks = ranks,
          .data_rank = rank,
          .seed = 7,
          .last_step = steps_per_epoch(images.size(), micro * ranks)};
}

TEST_CASE("digits as JPEG files go through decoder, packing and augmentation", "[data][augment]") {
  using enum Augmentation;
  const TempDir folder;
  write_digits(folder.path() / "digits", 60);
  DataConfig data = images_in(folder.path() / "digits");
  data.augment = {random_resized_crop, trivial_augment, random_erasing, mixup, cutmix};
  const Pack pack = GENERATE(Pack::none, Pack::jpeg, Pack::pixels);
  CAPTURE(static_cast<int>(pack));
  data.pack = pack;
  Notes notes;
  const std::shared_ptr<const ImageDataset> train = open_images(data, Split::train, 16, 3, &notes);
  REQUIRE(train->size() == 60);
  REQUIRE(train->classes() == 10);
  REQUIRE((notes.steps > 0) == (pack != Pack::none));
  // Three ranks read the same samples as one, to the bit.
  std::map<std::int64_t, std::vector<std::uint8_t>> seen;
  std::map<std::int64_t, int> labels;
  for (const int ranks : {1, 3}) {
    for (int rank = 0; rank < ranks; ++rank) {
      const LoaderOptions options = one_epoch(*train, 12 / ranks, ranks, rank);
      const auto loader = make_loader(train, options);
      for (std::int64_t step = 0; step < options.last_step; ++step) {
        const HostBatch batch = loader->next();
        REQUIRE(batch.pixels.sizes() == at::IntArrayRef({12 / ranks, 16, 16, 3}));
        for (std::int64_t row = 0; row < 12 / ranks; ++row) {
          const std::int64_t sample = batch.samples.const_data_ptr<std::int64_t>()[row];
          std::vector<std::uint8_t> all = tensor_bytes(batch.pixels[row]);
          for (const at::Tensor& tensor : {batch.erased, batch.mixed_shares, batch.mixed_windows}) {
            const auto more = tensor_bytes(tensor[row]);
            all.insert(all.end(), more.begin(), more.end());
          }
          const auto [place, fresh] = seen.emplace(sample, all);
          REQUIRE(fresh == (ranks == 1));
          REQUIRE(place->second == all);
        }
      }
    }
  }
  REQUIRE(seen.size() == 60);
  // A second opening finds the packed file.
  Notes again;
  REQUIRE(open_images(data, Split::train, 16, 3, &again)->size() == 60);
  REQUIRE(again.steps == 0);
}

TEST_CASE("packed pixels of the evaluation are those of the files", "[data]") {
  const TempDir folder;
  write_digits(folder.path() / "digits", 60);
  DataConfig data = images_in(folder.path() / "digits");
  const auto files = open_images(data, Split::test, 14, 0);
  data.pack = Pack::pixels;
  const auto packed = open_images(data, Split::test, 14, 0);
  REQUIRE(files->size() == packed->size());
  std::vector<std::uint8_t> a(14 * 14 * 3), b(14 * 14 * 3);
  for (std::int64_t i = 0; i < files->size(); ++i) {
    REQUIRE(files->read(i, a) == packed->read(i, b));
    REQUIRE(a == b);
  }
}

TEST_CASE("second labels are those of the mirrored sample, the larger share first", "[data]") {
  const TempDir folder;
  write_digits(folder.path() / "digits", 20);
  DataConfig data = images_in(folder.path() / "digits");
  const std::shared_ptr<const ImageDataset> plain = open_images(data, Split::train, 16, 3);
  data.augment = {Augmentation::mixup};
  data.mixup_alpha = 1;
  const std::shared_ptr<const ImageDataset> mixed = open_images(data, Split::train, 16, 3);
  // 20 samples in steps of 8: the last one has four fillers.
  const auto one = make_loader(plain, one_epoch(*plain, 8));
  const auto two = make_loader(mixed, one_epoch(*mixed, 8));
  int swapped = 0;
  for (int step = 0; step < 3; ++step) {
    const HostBatch a = one->next(), b = two->next();
    const auto* own = a.labels.const_data_ptr<std::int64_t>();
    const auto* first = b.labels.const_data_ptr<std::int64_t>();
    const auto* second = b.second_labels.const_data_ptr<std::int64_t>();
    const int valid = step < 2 ? 8 : 4;
    for (int row = 0; row < valid; ++row) {
      const float pixels = b.mixed_shares.const_data_ptr<float>()[row];
      const float share = b.label_shares.const_data_ptr<float>()[row];
      const std::int64_t other = own[valid - 1 - row];
      const bool swap = pixels < 0.5F;
      swapped += swap ? 1 : 0;
      REQUIRE(share == (swap ? 1 - pixels : pixels));
      REQUIRE(first[row] == (swap ? other : own[row]));
      REQUIRE(second[row] == (swap ? own[row] : other));
    }
  }
  REQUIRE((swapped > 3 && swapped < 17));
}

TEST_CASE("an image that cannot be read is replaced in training, and does not count in evaluation",
          "[data]") {
  const TempDir folder;
  const fs::path root = folder.path() / "data";
  for (const char* split : {"train", "test"}) {
    for (int i = 0; i < 6; ++i) {
      const std::string bytes = test::encode_jpeg(test::make_gradient(20 + i, 20));
      write_file(root / split / "a" / fmt::format("{}.jpg", i), i == 3 ? test::half(bytes) : bytes);
    }
  }
  DataConfig data = images_in(root);
  const auto fill = [&](Split split) {
    const auto images = open_images(data, split, 16, 0);
    HostBatch batch = images->allocate(6, false);
    for (std::int64_t row = 0; row < 6; ++row) images->fill(batch, row, row);
    return batch;
  };
  const HostBatch train = fill(Split::train);
  REQUIRE(train.weights.sum().item<float>() == 6);
  REQUIRE(tensor_bytes(train.pixels[3]) == tensor_bytes(train.pixels[4]));
  REQUIRE(tensor_bytes(train.pixels[2]) != tensor_bytes(train.pixels[4]));
  const HostBatch test = fill(Split::test);
  REQUIRE(test.weights.sum().item<float>() == 5);
  REQUIRE(test.weights[3].item<float>() == 0);
  data.bad_record = BadRecord::stop;
  for (const Split split : {Split::train, Split::test}) {
    try {
      static_cast<void>(fill(split));
      FAIL("read a file that is cut off");
    } catch (const Error& error) {
      CHECK(std::string(error.what()).find("a/3.jpg: damaged or cut off JPEG") !=
            std::string::npos);
      CHECK(error.hint().find("data.bad_record: skip") != std::string::npos);
    }
  }
}

TEST_CASE("where no image can be read the run ends and says so", "[data]") {
  const TempDir folder;
  for (int i = 0; i < 3; ++i)
    write_file(folder.path() / "data/train/a" / fmt::format("{}.jpg", i), "\xff\xd8\xff no image");
  const auto images = open_images(images_in(folder.path() / "data"), Split::train, 16, 0);
  HostBatch batch = images->allocate(1, false);
  REQUIRE(holds(message_of([&] {
                  images->fill(batch, 0, 0);
                  return 0;
                }),
                "3 images in a row cannot be used"));
}

TEST_CASE("images of every kind are decoded as documented", "[data]") {
  const RgbImage image = test::make_gradient(40, 30);
  CHECK(decode_image(test::encode_deep_png(image), kFullSize, "deep.png").pixels == image.pixels);
  const std::string progressive = test::encode_jpeg(image, {2, 2, true});
  const std::string baseline = test::encode_jpeg(image, {2, 2, false});
  CHECK(decode_image(progressive, kFullSize, "p.jpg").pixels ==
        decode_image(baseline, kFullSize, "b.jpg").pixels);
  // Orientation 6, "turn right", is not applied.
  const std::string exif(
      "\xff\xe1\x00\x22"
      "Exif\x00\x00MM\x00\x2a\x00\x00\x00\x08\x00\x01\x01\x12\x00\x03\x00\x00\x00\x01"
      "\x00\x06\x00\x00\x00\x00\x00\x00",
      36);
  const std::string turned = baseline.substr(0, 2) + exif + baseline.substr(2);
  const RgbImage stored = decode_image(turned, kFullSize, "turned.jpg");
  CHECK((stored.width == 40 && stored.height == 30));
}

TEST_CASE("the longest JPEG is read by its part and within the limit of pixels", "[data]") {
  const std::string bytes = test::encode_jpeg(test::make_gradient(65500, 16));
  const ImagePart part = decode_part(bytes,
                                     {.window =
                                          [](int width, int) {
                                            return ImageWindow{width - 20, 2, 12, 12};
                                          }},
                                     "long");
  CHECK(part.image.pixels.size() == 12 * 12 * 3);
  const TempDir folder;
  write_file(folder.path() / "data/train/a/1.jpg", bytes);
  write_file(folder.path() / "data/test/a/1.jpg", bytes);
  const auto images = open_images(images_in(folder.path() / "data"), Split::test, 16, 0);
  std::vector<std::uint8_t> pixels(16 * 16 * 3);
  CHECK(images->read(0, pixels) == 0);
}

/// root/train/CLASS/CLIP of so many frames, whose grey tells the frame's number.
void write_clip(const fs::path& folder, int frames, int grey) {
  for (int i = 0; i < frames; ++i) {
    RgbImage image{16, 16, std::vector<std::uint8_t>(768, static_cast<std::uint8_t>(grey + i))};
    write_file(folder / fmt::format("frame{}.png", i), test::encode_png(image));
  }
}

DataConfig clips_in(const fs::path& root, int frames) {
  DataConfig data = images_in(root);
  data.name = DatasetName::frames;
  data.frames = frames;
  return data;
}

TEST_CASE("a clip gives its frames spread evenly, in the order of their numbers", "[data]") {
  const TempDir folder;
  const fs::path root = folder.path() / "clips";
  write_clip(root / "train/a/one", 12, 10);
  write_clip(root / "train/b/one", 4, 100);
  write_clip(root / "train/b/two", 5, 150);
  write_clip(root / "test/b/one", 4, 200);
  DataConfig data = clips_in(root, 4);
  data.pack = GENERATE(Pack::none, Pack::jpeg, Pack::pixels);
  const auto train = open_images(data, Split::train, 16, 0);
  REQUIRE(train->frames() == 4);
  REQUIRE(train->size() == 3);
  REQUIRE(train->classes() == 2);
  HostBatch batch = train->allocate(3, false);
  REQUIRE(batch.pixels.sizes() == at::IntArrayRef({12, 16, 16, 3}));
  for (std::int64_t row = 0; row < 3; ++row) train->fill(batch, row, row);
  std::vector<int> greys;
  for (std::int64_t i = 0; i < 12; ++i)
    greys.push_back(batch.pixels[i][8][8][1].item<std::uint8_t>());
  // Middles of four parts: of 12 frames 1, 4, 7, 10; of 5 frames 0, 1, 3, 4.
  CHECK(greys == std::vector<int>{11, 14, 17, 20, 100, 101, 102, 103, 150, 151, 153, 154});
  CHECK(batch.labels.const_data_ptr<std::int64_t>()[0] == 0);
  CHECK(batch.labels.const_data_ptr<std::int64_t>()[2] == 1);
  CHECK(dataset_facts(data, 16).train_size == 3);
}

TEST_CASE("the frames of a clip share their random choices", "[data][augment]") {
  const TempDir folder;
  const fs::path root = folder.path() / "clips";
  const std::string same = test::encode_png(test::make_gradient(30, 24));
  for (int i = 0; i < 3; ++i) write_file(root / "train/a/one" / fmt::format("{}.png", i), same);
  DataConfig data = clips_in(root, 3);
  data.augment = {Augmentation::random_resized_crop, Augmentation::rand_augment};
  const auto train = open_images(data, Split::train, 16, 0);
  HostBatch batch = train->allocate(1, false);
  std::set<std::vector<std::uint8_t>> kinds;
  for (std::int64_t epoch = 0; epoch < 4; ++epoch) {
    batch.epoch = epoch;
    train->fill(batch, 0, 0);
    REQUIRE(tensor_bytes(batch.pixels[0]) == tensor_bytes(batch.pixels[1]));
    REQUIRE(tensor_bytes(batch.pixels[0]) == tensor_bytes(batch.pixels[2]));
    kinds.insert(tensor_bytes(batch.pixels[0]));
  }
  REQUIRE(kinds.size() > 2);
}

TEST_CASE("a clip that is too short is left out and named, or ends the run", "[data]") {
  const TempDir folder;
  const fs::path root = folder.path() / "clips";
  write_clip(root / "train/a/long", 5, 10);
  write_clip(root / "train/a/short", 2, 100);
  DataConfig data = clips_in(root, 4);
  Notes notes;
  CHECK(open_images(data, Split::train, 16, 0, &notes)->size() == 1);
  CHECK(notes.all().find("train/a/short: 2 frames, data.frames takes 4") != std::string::npos);
  data.bad_record = BadRecord::stop;
  CHECK(holds(message_of([&] { return open_images(data, Split::train, 16, 0); }),
              "train/a/short: 2 frames"));
  data.bad_record = BadRecord::skip;
  data.frames = 9;
  CHECK(holds(message_of([&] { return open_images(data, Split::train, 16, 0); }),
              "frames, data.frames takes 9"));
}

/// The one packed file of a cache.
fs::path packed_file(const DataConfig& data) {
  for (const auto& entry : fs::directory_iterator(data.cache)) {
    if (entry.path().extension() == ".jpeg" || entry.path().extension() == ".pixels")
      return entry.path();
  }
  return {};
}

TEST_CASE("a packed file that is cut off, foreign or damaged is named and made again", "[data]") {
  const TempDir folder;
  const fs::path root = folder.path() / "data";
  for (int i = 0; i < 5; ++i)
    write_file(root / "train/a" / fmt::format("{}.jpg", i),
               test::encode_jpeg(test::make_gradient(40 + i, 30)));
  write_file(root / "train/a/broken.jpg", "\xff\xd8\xff no image");
  DataConfig data = images_in(root);
  data.pack = Pack::jpeg;
  Notes first;
  REQUIRE(open_images(data, Split::train, 16, 0, &first)->size() == 5);
  CHECK(first.all().find("left out: ") != std::string::npos);
  CHECK(first.all().find("broken.jpg: damaged or cut off JPEG") != std::string::npos);
  const fs::path path = packed_file(data);
  const std::string sound = read_file(path);

  const auto made_again = [&](const std::string& content, const char* why) {
    write_file(path, content);
    Notes notes;
    REQUIRE(open_images(data, Split::train, 16, 0, &notes)->size() == 5);
    CAPTURE(why, notes.all());
    CHECK(notes.all().find("is made again: ") != std::string::npos);
    CHECK(notes.all().find(why) != std::string::npos);
    CHECK(read_file(path) == sound);
  };
  made_again(sound.substr(0, sound.size() - 1), "it is cut off");
  made_again(sound.substr(0, 20), "it is cut off");
  made_again("something else, but long enough to be looked at" + std::string(100, '.'),
             "it is of another format");
  std::string wrong = sound;
  wrong[20] = static_cast<char>(wrong[20] ^ 1);
  made_again(wrong, "its header is damaged");
  wrong = sound;
  wrong[7] = '1';  // version of the format
  made_again(wrong, "another version of dstrain wrote it");
  wrong = sound;
  wrong[wrong.size() - 3] = static_cast<char>(wrong[wrong.size() - 3] ^ 1);
  made_again(wrong, "its index is damaged");

  // An image is looked at when it is read first.
  wrong = sound;
  wrong[200] = static_cast<char>(wrong[200] ^ 1);
  write_file(path, wrong);
  const auto images = open_images(data, Split::train, 16, 0);
  HostBatch batch = images->allocate(1, false);
  CHECK(holds(message_of([&] {
                images->fill(batch, 0, 0);
                return 0;
              }),
              "image 0 is damaged"));
  images->fill(batch, 0, 1);
  CHECK(batch.weights[0].item<float>() == 1);
  data.bad_record = BadRecord::stop;
  fs::remove(path);
  CHECK(holds(message_of([&] { return open_images(data, Split::train, 16, 0); }), "broken.jpg"));
}

TEST_CASE("a packed file under the name of another one is made again", "[data]") {
  const TempDir folder;
  const fs::path root = folder.path() / "data";
  for (int i = 0; i < 4; ++i)
    write_file(root / "train/a" / fmt::format("{}.png", i),
               test::encode_png(test::make_gradient(20 + i, 20)));
  write_file(root / "test/a/0.png", test::encode_png(test::make_gradient(40, 20)));
  DataConfig data = images_in(root);
  data.pack = GENERATE(Pack::jpeg, Pack::pixels);
  REQUIRE(open_images(data, Split::train, 16, 0)->size() == 4);
  REQUIRE(open_images(data, Split::test, 16, 0)->size() == 1);
  fs::path training, test;
  for (const auto& entry : fs::directory_iterator(data.cache)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(".lock")) continue;
    (name.find("-train-") != std::string::npos ? training : test) = entry.path();
  }
  fs::rename(test, training);
  Notes notes;
  REQUIRE(open_images(data, Split::train, 16, 0, &notes)->size() == 4);
  CHECK(holds(notes.all(), "is made again: it was made from other files or with other settings"));
}

TEST_CASE("a changed image makes another packed file", "[data]") {
  const TempDir folder;
  const fs::path root = folder.path() / "data";
  write_file(root / "train/a/1.png", test::encode_png(test::make_gradient(20, 20)));
  DataConfig data = images_in(root);
  data.pack = Pack::pixels;
  std::vector<std::uint8_t> a(16 * 16 * 3), b(16 * 16 * 3);
  static_cast<void>(open_images(data, Split::train, 16, 0)->read(0, a));
  write_file(root / "train/a/1.png", test::encode_png(test::make_gradient(33, 20)));
  static_cast<void>(open_images(data, Split::train, 16, 0)->read(0, b));
  REQUIRE(a != b);
}

}  // namespace
}  // namespace dstrain
