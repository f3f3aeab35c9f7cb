#include "engine/data/formats.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <map>
#include <set>
#include <span>

#include "engine/base/error.h"
#include "engine/data/dataset.h"
#include "engine/data/images/random_images.h"
#include "engine/data/text/format.h"
#include "engine/data/text/progress_sink.h"
#include "engine/recipe/datasets.h"
#include "test/data/write_image.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"

namespace dstrain {
namespace {

using test::TempDir;
using test::write_file;

struct Sample {
  std::vector<std::uint8_t> pixels;
  int label;
  bool operator==(const Sample&) const = default;
};

Sample read(const ImageDataset& dataset, std::int64_t index) {
  Sample sample{std::vector<std::uint8_t>(static_cast<std::size_t>(dataset.shape().bytes())), -1};
  sample.label = dataset.read(index, sample.pixels);
  return sample;
}

DataConfig config_of(DatasetName name, const std::filesystem::path& path = {}) {
  DataConfig data;
  data.name = name;
  data.path = path.string();
  return data;
}

std::vector<int> labels_of(const ImageDataset& dataset) {
  std::vector<int> labels;
  for (std::int64_t i = 0; i < dataset.size(); ++i) labels.push_back(read(dataset, i).label);
  return labels;
}

TEST_CASE("the digits in the binary are the 1,797 of UCI, split 1,437 to 360", "[data]") {
  const auto data = config_of(DatasetName::digits);
  const auto train = open_images(data, Split::train, 8, 0);
  const auto test = open_images(data, Split::test, 8, 0);
  REQUIRE(train->size() == 1437);
  REQUIRE(test->size() == 360);
  REQUIRE(train->classes() == 10);
  REQUIRE(train->shape() == ImageShape{8, 8, 1});
  std::map<int, int> count;
  for (const auto* part : {train.get(), test.get()}) {
    for (const int label : labels_of(*part)) ++count[label];
  }
  // Class sizes that UCI states for the test part of the set.
  REQUIRE(count == std::map<int, int>{{0, 178},
                                      {1, 182},
                                      {2, 177},
                                      {3, 183},
                                      {4, 181},
                                      {5, 182},
                                      {6, 181},
                                      {7, 179},
                                      {8, 174},
                                      {9, 180}});
  // The first record of the file is a test sample, a zero; its second row is 0 0 13 15 10 15 5 0.
  const Sample zero = read(*test, 0);
  REQUIRE(zero.label == 0);
  REQUIRE(std::vector(zero.pixels.begin() + 8, zero.pixels.begin() + 16) ==
          std::vector<std::uint8_t>{0, 0, 207, 239, 159, 239, 80, 0});
}

TEST_CASE("the class counts of the digits' test part are balanced", "[data]") {
  const auto test = open_images(config_of(DatasetName::digits), Split::test, 8, 0);
  std::map<int, int> count;
  for (const int label : labels_of(*test)) ++count[label];
  for (const auto& [label, number] : count) {  // 36 each, a third more or less
    CAPTURE(label);
    REQUIRE(number >= 24);
    REQUIRE(number <= 48);
  }
}

/// A CIFAR file of its true size with a few records written; the rest are holes (label 0, black).
void write_cifar(const std::filesystem::path& path, std::int64_t records, int label_bytes,
                 const std::map<std::int64_t, std::string>& written) {
  std::ofstream file(path, std::ios::binary);
  const std::int64_t record_bytes = label_bytes + 3072;
  for (const auto& [record, content] : written) {
    file.seekp(record * record_bytes);
    file << content;
  }
  file.close();
  std::filesystem::resize_file(path, static_cast<std::uintmax_t>(records * record_bytes));
}

std::string planes(char red, char green, char blue) {
  return std::string(1024, red) + std::string(1024, green) + std::string(1024, blue);
}

TEST_CASE("CIFAR-10 is read from its five training files and its test file", "[data]") {
  const TempDir folder;
  std::string corner = planes(1, 2, 3);
  corner[31] = 9;  // red, first row, last column
  for (int i = 1; i <= 5; ++i) {
    const std::string first = std::string(1, static_cast<char>(i)) + corner;
    const std::string last =
        std::string(1, static_cast<char>(9)) + planes(4, 5, static_cast<char>(200));
    write_cifar(folder / fmt::format("data_batch_{}.bin", i), 10000, 1, {{0, first}, {9999, last}});
  }
  write_cifar(folder / "test_batch.bin", 10000, 1, {{5, std::string(1, 7) + corner}});

  const auto train =
      open_images(config_of(DatasetName::cifar10, folder.path()), Split::train, 32, 0);
  REQUIRE(train->size() == 50000);
  REQUIRE(train->classes() == 10);
  REQUIRE(train->shape() == ImageShape{32, 32, 3});
  for (int file = 0; file < 5; ++file) {
    const Sample first = read(*train, file * 10000);
    REQUIRE(first.label == file + 1);
    REQUIRE(std::vector(first.pixels.begin() + 90, first.pixels.begin() + 99) ==
            std::vector<std::uint8_t>{1, 2, 3, 9, 2, 3, 1, 2, 3});
    const Sample last = read(*train, file * 10000 + 9999);
    REQUIRE(last.label == 9);
    REQUIRE(last.pixels.back() == 200);
  }
  const auto test = open_images(config_of(DatasetName::cifar10, folder.path()), Split::test, 32, 0);
  REQUIRE(test->size() == 10000);
  REQUIRE(read(*test, 5).label == 7);
}

TEST_CASE("CIFAR files of any number of records are read, and named", "[data]") {
  struct Notes final : ProgressSink {
    void note(const std::string& text) override { lines.push_back(text); }
    void progress(double, const std::string&) override {}
    std::vector<std::string> lines;
  } notes;
  const TempDir folder;
  const std::vector<std::int64_t> sizes = {2, 1, 3, 1, 10000};
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const std::string last(1, static_cast<char>(i + 1));
    write_cifar(folder / fmt::format("data_batch_{}.bin", i + 1), sizes[i], 1,
                {{sizes[i] - 1, last + planes(1, 2, 3)}});
  }
  const DataConfig data = config_of(DatasetName::cifar10, folder.path());
  const auto train = open_images(data, Split::train, 32, 0, &notes);
  REQUIRE(train->size() == 10007);
  std::vector<int> labels;
  for (std::int64_t i = 0; i < 8; ++i) labels.push_back(read(*train, i).label);
  CHECK(labels == std::vector<int>{0, 1, 2, 0, 0, 3, 4, 0});
  CHECK(read(*train, 10006).label == 5);
  REQUIRE(notes.lines.size() == 4);
  CHECK(
      notes.lines[0].ends_with("data_batch_1.bin holds 2 images; the published file holds 10000"));
  CHECK(dataset_facts(data, 32).train_size == 10007);
}

TEST_CASE("CIFAR-100 takes the fine label", "[data]") {
  const TempDir folder;
  const std::string labels = {3, 99};
  write_cifar(folder / "train.bin", 50000, 2, {{49999, labels + planes(1, 2, 3)}});
  write_cifar(folder / "test.bin", 10000, 2, {});
  const auto train =
      open_images(config_of(DatasetName::cifar100, folder.path()), Split::train, 32, 0);
  REQUIRE(train->size() == 50000);
  REQUIRE(train->classes() == 100);
  REQUIRE(read(*train, 49999).label == 99);
  REQUIRE(read(*train, 49999).pixels[0] == 1);
  REQUIRE(
      open_images(config_of(DatasetName::cifar100, folder.path()), Split::test, 32, 0)->size() ==
      10000);
}

TEST_CASE("image folders are read with classes in name order and their own test part", "[data]") {
  const std::string test_name = GENERATE("test", "val", "validation", "valid", "dev");
  const TempDir folder;
  const RgbImage wide = test::make_gradient(60, 40);
  write_file(folder / "train/zebra/1.JPEG", test::encode_jpeg(wide));
  write_file(folder / "train/ant/2.png", test::encode_png(wide));
  write_file(folder / "train/ant/deeper/1.jpg", test::encode_jpeg(wide));
  write_file(folder / "train/ant/notes.txt", "not an image");
  write_file(folder / "train/.cache/x.png", "not a class");
  write_file(folder / test_name / "zebra/1.png", test::encode_png(wide));
  const auto data = config_of(DatasetName::images, folder.path());

  const auto train = open_images(data, Split::train, 28, 0);
  REQUIRE(train->classes() == 2);
  REQUIRE(train->shape() == ImageShape{32, 32, 3});
  REQUIRE(labels_of(*train) == std::vector<int>{0, 0, 1});
  const auto test = open_images(data, Split::test, 28, 0);
  REQUIRE(labels_of(*test) == std::vector<int>{1});
  REQUIRE(test->classes() == 2);

  // The middle 28 of 32 pixels to which 40 rows are reduced: column 0 is around 12.6 of 59.
  REQUIRE(test->shape() == ImageShape{28, 28, 3});
  const Sample sample = read(*test, 0);
  REQUIRE(std::abs(sample.pixels[14 * 84] - 12.6 * 255 / 59) < 3);
  REQUIRE(sample.pixels[14 * 84 + 2] == 100);
}

TEST_CASE("WebP and every name of JPEG are read, what is no image is counted and named", "[data]") {
  struct Notes final : ProgressSink {
    void note(const std::string& text) override { lines.push_back(text); }
    void progress(double, const std::string&) override {}
    std::vector<std::string> lines;
  } notes;
  const TempDir folder;
  const RgbImage image = test::make_gradient(8, 8);
  write_file(folder / "train/a/1.webp", test::encode_webp(image));
  write_file(folder / "train/a/2.JFIF", test::encode_jpeg(image));
  write_file(folder / "train/a/3.jpe", test::encode_jpeg(image));
  write_file(folder / "train/a/4.bmp", "BM");
  write_file(folder / "train/a/5.GIF", "GIF89a");
  write_file(folder / "train/a/deeper/6.gif", "GIF89a");
  write_file(folder / "train/a/._0.png", "a fork of macOS");
  write_file(folder / "train/a/.thumbnails/1.png", test::encode_png(image));
  write_file(folder / "train/a/__MACOSX/1.png", test::encode_png(image));
  write_file(folder / "train/__MACOSX/a/._1.png", "no class");
  write_file(folder / "train/b/1.png", test::encode_png(image));
  write_file(folder / "train/b/2.tiff", "II*");
  write_file(folder / "train/b/labels", "1");
  auto data = config_of(DatasetName::images, folder.path());
  data.resize = Fit::stretch;
  const auto train = open_images(data, Split::train, 8, 0, &notes);
  REQUIRE(labels_of(*train) == std::vector<int>{0, 0, 0, 1});
  CHECK(read(*train, 0).pixels == image.pixels);
  REQUIRE(notes.lines.size() == 1);
  const std::string root = (folder / "train").string();
  CHECK(notes.lines.front().starts_with(fmt::format(
      "left out below {}: 1 without an extension, 1 .bmp, 2 .gif, 1 .tiff (not JPEG, PNG or WebP "
      "by name; the first is {}/",
      root, root)));
}

TEST_CASE("a folder of classes without parts keeps every tenth image for the test", "[data]") {
  const TempDir folder;
  std::set<int> reds;
  for (const char* name : {"a", "b"}) {
    for (int i = 0; i < 21; ++i) {
      RgbImage image{8, 8, std::vector<std::uint8_t>(192, static_cast<std::uint8_t>(i))};
      write_file(folder / fmt::format("{}/{:02}.png", name, i), test::encode_png(image));
    }
  }
  const auto data = config_of(DatasetName::images, folder.path());
  const auto train = open_images(data, Split::train, 7, 0);
  const auto test = open_images(data, Split::test, 7, 0);
  REQUIRE(train->size() == 36);
  REQUIRE(test->size() == 6);
  for (std::int64_t i = 0; i < 6; ++i) {
    const Sample sample = read(*test, i);
    REQUIRE(sample.label == i / 3);
    REQUIRE(sample.pixels[0] == i % 3 * 10);
  }
  for (std::int64_t i = 0; i < 36; ++i) REQUIRE(read(*train, i).pixels[0] % 10 != 0);
  REQUIRE(dataset_facts(data, 7).classes == 2);
  REQUIRE(dataset_facts(data, 7).train_size == 36);
}

TEST_CASE("folders of parts are no classes, and a class is not lost with its link", "[data]") {
  const TempDir folder;
  const std::string image = test::encode_png(test::make_gradient(8, 8));
  for (const char* part : {"Train", "testing"})
    for (const char* name : {"cat/1.png", "cat/2.png", "dog/1.png"})
      write_file(folder / part / name, image);
  const auto data = config_of(DatasetName::images, folder.path());
  REQUIRE_THROWS_WITH(open_images(data, Split::train, 8, 0),
                      Catch::Contains("'Train' and 'testing', which would be classes"));
  // Each alone may be a class.
  std::filesystem::rename(folder / "testing", folder / "bus");
  REQUIRE(open_images(data, Split::train, 8, 0)->classes() == 2);
  std::filesystem::create_symlink("nowhere", folder / "tram");
  REQUIRE_THROWS_WITH(open_images(data, Split::train, 8, 0),
                      Catch::Contains("tram is a link to nothing"));
}

TEST_CASE("Food-101 is read by its lists, in text or JSON, with labels by classes.txt", "[data]") {
  const bool json = GENERATE(false, true);
  const TempDir folder;
  const std::string image = test::encode_jpeg(test::make_gradient(30, 30));
  for (const char* entry :
       {"cheesecake/11", "cheesecake/12", "cheese_plate/21", "cheese_plate/22"}) {
    write_file(folder / fmt::format("images/{}.jpg", entry), image);
  }
  write_file(folder / "meta/classes.txt", "cheesecake\ncheese_plate\n");
  if (json) {
    write_file(
        folder / "meta/train.json",
        R"({"cheese_plate": ["cheese_plate/21"], "cheesecake": ["cheesecake/12", "cheesecake/11"]})");
    write_file(folder / "meta/test.json",
               R"({"cheese_plate": ["cheese_plate/22"], "cheesecake": []})");
  } else {
    write_file(folder / "meta/train.txt", "cheese_plate/21\r\ncheesecake/12\r\ncheesecake/11\r\n");
    write_file(folder / "meta/test.txt", "cheese_plate/22");
  }
  const auto data = config_of(DatasetName::food101, folder.path());
  REQUIRE(labels_of(*open_images(data, Split::train, 14, 0)) == std::vector<int>{1, 0, 0});
  const auto test = open_images(data, Split::test, 14, 0);
  REQUIRE(labels_of(*test) == std::vector<int>{1});
  REQUIRE(test->classes() == 2);
  REQUIRE(test->shape() == ImageShape{14, 14, 3});
}

TEST_CASE("random images are a pure function of seed, part and index", "[data]") {
  auto data = config_of(DatasetName::random);
  data.samples = 200;
  const auto train = open_images(data, Split::train, 24, 5);
  REQUIRE(train->size() == 200);
  REQUIRE(train->classes() == 101);
  REQUIRE(train->shape() == ImageShape{24, 24, 3});
  REQUIRE(read(*train, 17) == read(*open_images(data, Split::train, 24, 5), 17));
  REQUIRE(read(*train, 17) != read(*train, 18));
  REQUIRE(read(*train, 17) != read(*open_images(data, Split::train, 24, 6), 17));
  const auto test = open_images(data, Split::test, 24, 5);
  REQUIRE(test->size() == 20);
  REQUIRE(read(*train, 17) != read(*test, 17));
  std::set<int> labels;
  for (const int label : labels_of(*train)) labels.insert(label);
  REQUIRE(labels.size() > 70);
  REQUIRE(*labels.begin() >= 0);
  REQUIRE(*labels.rbegin() < 101);
}

TEST_CASE("random images have the classes and channels of the model", "[data]") {
  DataConfig data = config_of(DatasetName::random);
  data.samples = 200;
  const auto grey = open_random_images(data, Split::train, 8, 1, {.classes = 3, .channels = 1});
  REQUIRE(grey->classes() == 3);
  REQUIRE(grey->shape() == ImageShape{8, 8, 1});
  std::vector<std::uint8_t> pixels(64);
  std::array<int, 3> labels{};
  for (std::int64_t i = 0; i < grey->size(); ++i)
    ++labels.at(static_cast<std::size_t>(grey->read(i, pixels)));
  CHECK(std::ranges::min(labels) > 40);
  const DatasetFacts facts = facts_of_kind(data, 8, {.classes = 3, .channels = 1});
  CHECK((facts.classes == 3 && facts.shape == grey->shape()));
  CHECK(open_images(data, Split::train, 8, 1)->classes() == 101);
  CHECK(open_random_images(data, Split::train, 8, 1, {.classes = 1000})->classes() == 101);
  const auto clips =
      open_random_images(data, Split::train, 8, 1, {.classes = 3, .channels = 1, .frames = 3});
  REQUIRE(clips->frames() == 3);
  std::vector<std::uint8_t> clip(3 * 64);
  CHECK(clips->read(5, clip) == grey->read(5, pixels));
  CHECK(std::ranges::equal(std::span(clip).first(64), pixels));
  CHECK_FALSE(std::ranges::equal(std::span(clip).last(64), pixels));
}

TEST_CASE("facts are known without the files and agree with them", "[data]") {
  const auto digits = dataset_facts(config_of(DatasetName::digits), 8);
  REQUIRE(digits.train_size == 1437);
  REQUIRE(digits.classes == 10);
  REQUIRE(digits.shape == ImageShape{8, 8, 1});
  const auto cifar = dataset_facts(config_of(DatasetName::cifar100, "/nowhere"), 224);
  REQUIRE(cifar.train_size == 50000);
  REQUIRE(cifar.classes == 100);
  REQUIRE(cifar.shape == ImageShape{32, 32, 3});
  const auto images = dataset_facts(config_of(DatasetName::images, "/nowhere"), 224);
  REQUIRE(images.classes == 0);
  REQUIRE(images.train_size == 0);
  REQUIRE(images.shape == ImageShape{256, 256, 3});
}

TEST_CASE("every data set of a recipe has its format", "[data]") {
  for (const DatasetRow& row : datasets()) {
    if (row.name == DatasetName::mixture) continue;  // its members have one
    CAPTURE(row.spelling);
    const DataConfig data = config_of(row.name);
    CHECK((stored_shape(data, 224).height > 0) == fits(row, Modality::images));
    if (row.modality == Modality::text) CHECK(text::text_format(data).name == row.name);
    if (row.modality == Modality::text)
      CHECK_THROWS_AS(open_images(data, Split::train, 8, 0), Error);
  }
}

}  // namespace
}  // namespace dstrain
