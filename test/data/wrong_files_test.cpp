#include <fmt/format.h>

#include <cstdlib>
#include <functional>
#include <regex>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/data/dataset.h"
#include "test/data/write_image.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"

namespace dstrain {
namespace {

using test::TempDir;
using test::write_file;
namespace fs = std::filesystem;

constexpr const char* kGolden = "test/golden/data/messages.txt";

/// One wrong data set: how to make it in an empty folder, and how it is opened.
struct Case {
  std::string name;
  DatasetName format;
  std::function<void(const fs::path&)> make;
  std::string path = {};  ///< below the folder
  Split split = Split::train;
};

std::string digit_line(const std::string& pixel, const std::string& label) {
  std::string line;
  for (int i = 0; i < 64; ++i) line += pixel + ",";
  return line + label + "\n";
}

void sized_file(const fs::path& path, std::uintmax_t bytes) {
  write_file(path, "");
  fs::resize_file(path, bytes);
}

std::string with_length(std::string png, char width_high_byte) {
  png[16] = width_high_byte;
  return png;
}

/// A PNG whose header claims another width and height, with the checksum of a file that means it.
std::string png_of(std::uint32_t width, std::uint32_t height) {
  std::string png = test::encode_png(test::make_gradient(1, 1));
  const auto put = [&](std::size_t at, std::uint32_t value) {
    for (std::size_t i = 0; i < 4; ++i) png[at + i] = static_cast<char>(value >> (24 - 8 * i));
  };
  put(16, width);
  put(20, height);
  std::uint32_t crc = 0xffffffffu;
  for (std::size_t i = 12; i < 29; ++i) {
    crc ^= static_cast<unsigned char>(png[i]);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? 0xedb88320u : 0u);
  }
  put(29, ~crc);
  return png;
}
std::string png_bomb() { return png_of(40000, 40000); }
std::string empty_png() { return png_of(0, 16); }

/// A JPEG whose frame header has these bytes of height and width.
std::string with_size(std::string jpeg, const std::string& height_and_width) {
  return jpeg.replace(jpeg.find("\xff\xc0") + 5, 4, height_and_width);
}

/// A JPEG whose frame header claims 65,500 x 65,500 pixels.
std::string jpeg_bomb() {
  return with_size(test::encode_jpeg(test::make_gradient(16, 16)), "\xff\xdc\xff\xdc");
}

/// One class folder with a sound image and `content` as the image that is read.
std::function<void(const fs::path&)> image_case(const std::string& file,
                                                std::function<std::string()> content) {
  return [file, content](const fs::path& root) {
    write_file(root / "train/a" / file, content());
    write_file(root / "test/a/1.png", test::encode_png(test::make_gradient(8, 8)));
  };
}

std::string jpeg() { return test::encode_jpeg(test::make_gradient(200, 200)); }
std::string png() { return test::encode_png(test::make_gradient(200, 200)); }
std::string webp() { return test::encode_webp(test::make_gradient(200, 200)); }
/// A lossless WebP whose header claims 16,384 x 16,384 pixels.
std::string webp_bomb() {
  std::string bytes = webp();
  return bytes.replace(bytes.find("VP8L") + 9, 4, "\xff\xff\xff\x0f");
}
void write_food(const fs::path& root, const std::string& classes, const std::string& train) {
  write_file(root / "meta/classes.txt", classes);
  write_file(root / "meta/train.txt", train);
}

std::vector<Case> cases() {
  using enum DatasetName;
  return {
      {"no path", cifar10, [](const fs::path&) {}, "none"},
      {"path is no folder", images, [](const fs::path&) {}, "absent"},
      {"digits: wrong number of fields", digits,
       [](const fs::path& root) { write_file(root / "d.csv", digit_line("1", "2") + "1,2,3\n"); },
       "d.csv"},
      {"digits: pixel out of range", digits,
       [](const fs::path& root) { write_file(root / "d.csv", digit_line("17", "2")); }, "d.csv"},
      {"digits: label is no number", digits,
       [](const fs::path& root) { write_file(root / "d.csv", digit_line("1", "two")); }, "d.csv"},
      {"digits: gzip cut off", digits,
       [](const fs::path& root) {
         write_file(root / "d.csv.gz", test::half(read_file("engine/data/images/digits/digits.csv.gz")));
       },
       "d.csv.gz"},
      {"digits: one record", digits,
       [](const fs::path& root) { write_file(root / "d.csv", digit_line("1", "2")); }, "d.csv"},
      {"cifar10: file missing", cifar10, [](const fs::path&) {}},
      {"cifar10: file cut off", cifar10,
       [](const fs::path& root) { sized_file(root / "test_batch.bin", 30729999); }, "",
       Split::test},
      {"cifar100: file too long", cifar100,
       [](const fs::path& root) { sized_file(root / "test.bin", 30740001); }, "", Split::test},
      {"cifar100: label out of range", cifar100,
       [](const fs::path& root) {
         write_file(root / "test.bin", std::string("\x01\x64", 2));
         fs::resize_file(root / "test.bin", 30740000);
       },
       "", Split::test},
      {"images: no class folder", images, [](const fs::path&) {}},
      {"images: class without images", images,
       [](const fs::path& root) {
         write_file(root / "train/a/1.png", png());
         write_file(root / "train/b/readme.txt", "");
       }},
      {"images: a single image in a class", images,
       [](const fs::path& root) { write_file(root / "a/1.png", png()); }},
      {"images: no test folder", images,
       [](const fs::path& root) { write_file(root / "train/a/1.png", png()); }, "", Split::test},
      {"images: test class that training lacks", images,
       [](const fs::path& root) {
         write_file(root / "train/a/1.png", png());
         write_file(root / "test/b/1.png", png());
       },
       "", Split::test},
      {"JPEG cut off in the middle", images,
       image_case("1.jpg", [] { return test::half(jpeg()); })},
      {"JPEG cut off in the header", images,
       image_case("1.jpg", [] { return jpeg().substr(0, 100); })},
      {"JPEG with damaged data", images,
       image_case("1.jpg",
                  [] {
                    std::string bytes = jpeg();
                    for (std::size_t i = bytes.size() / 2; i < bytes.size() - 2; ++i)
                      bytes[i] = '\x55';
                    return bytes;
                  })},
      {"JPEG of no columns", images,
       image_case("1.jpg", [] { return with_size(jpeg(), std::string("\0\x10\0\0", 4)); })},
      {"JPEG of no rows", images,
       image_case("1.jpg", [] { return with_size(jpeg(), std::string("\0\0\0\x10", 4)); })},
      {"JPEG of 65,535 x 65,535 pixels", images,
       image_case("1.jpg", [] { return with_size(jpeg(), "\xff\xff\xff\xff"); })},
      {"PNG of no columns", images, image_case("1.png", empty_png)},
      {"JPEG of enormous size", images, image_case("1.jpg", jpeg_bomb)},
      {"PNG cut off in the middle", images, image_case("1.png", [] { return test::half(png()); })},
      {"PNG with a damaged header", images,
       image_case("1.png", [] { return with_length(png(), 1); })},
      {"PNG of enormous size", images, image_case("1.png", png_bomb)},
      {"WebP cut off in the middle", images,
       image_case("1.webp", [] { return test::half(webp()); })},
      {"WebP of enormous size", images, image_case("1.webp", webp_bomb)},
      {"image that is a web page", images,
       image_case("1.jpg", [] { return std::string("<!DOCTYPE html>"); })},
      {"image that is empty", images, image_case("1.jpg", [] { return std::string(); })},
      {"food101: no lists", food101,
       [](const fs::path& root) { write_file(root / "meta/classes.txt", "apple_pie\n"); }},
      {"food101: no classes.txt", food101,
       [](const fs::path& root) { fs::create_directories(root / "meta"); }},
      {"food101: unknown class", food101,
       [](const fs::path& root) { write_food(root, "apple_pie\n", "apple_pie/1\n\nsoup/2\n"); }},
      {"food101: line that is no entry", food101,
       [](const fs::path& root) { write_food(root, "apple_pie\n", "apple_pie/../../etc\n"); }},
      {"food101: class twice", food101,
       [](const fs::path& root) { write_food(root, "apple_pie\napple_pie\n", "apple_pie/1\n"); }},
      {"food101: image missing", food101,
       [](const fs::path& root) { write_food(root, "apple_pie\n", "apple_pie/1\n"); }},
      {"food101: JSON that is none", food101,
       [](const fs::path& root) {
         write_file(root / "meta/classes.txt", "apple_pie\n");
         write_file(root / "meta/train.json", "{\"apple_pie\": [");
       }},
      {"food101: JSON with a number for an entry", food101,
       [](const fs::path& root) {
         write_file(root / "meta/classes.txt", "apple_pie\n");
         write_file(root / "meta/train.json", "{\"apple_pie\": [1]}");
       }},
  };
}

/// What a person sees when the case is opened and its first sample is read.
std::string message_of(const Case& wrong) {
  const TempDir folder;
  wrong.make(folder.path());
  DataConfig data;
  data.name = wrong.format;
  data.path = wrong.path == "none" ? "" : (folder.path() / wrong.path).string();
  if (data.path.ends_with('/')) data.path.pop_back();
  std::string text;
  try {
    const auto dataset = open_images(data, wrong.split, 28, 0);
    std::vector<std::uint8_t> pixels(static_cast<std::size_t>(dataset->shape().bytes()));
    static_cast<void>(dataset->read(0, pixels));
    return "no error";
  } catch (const Error& error) {
    text = fmt::format("{} (exit code {})\n", error.what(), exit_code(error.kind()));
    if (!error.hint().empty()) text += fmt::format("  hint: {}\n", error.hint());
  }
  const std::string place = folder.path().string();
  for (auto at = text.find(place); at != std::string::npos; at = text.find(place)) {
    text.replace(at, place.size(), "DATA");
  }
  // How long a made JPEG or PNG is depends on the version of the library that wrote it.
  return std::regex_replace(text, std::regex(R"(\(\d+ bytes\))"), "(N bytes)");
}

TEST_CASE("every wrong data file gives its message", "[data][golden]") {
  std::string all;
  for (const Case& wrong : cases()) all += fmt::format("# {}\n{}\n", wrong.name, message_of(wrong));
  if (std::getenv("DSTRAIN_UPDATE_GOLDEN") != nullptr) write_file_atomically(kGolden, all);
  REQUIRE(all == read_file(kGolden));
}

}  // namespace
}  // namespace dstrain
