#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/input_file.h"
#include "engine/data/formats.h"

namespace dstrain::formats {
namespace {

constexpr int kCifarSide = 32;
constexpr int kPlane = kCifarSide * kCifarSide;
constexpr int kChannels = 3;

/// A record is the label bytes (CIFAR-100: coarse, fine), then the red, green and blue planes.
class Cifar final : public ImageDataset {
 public:
  Cifar(const std::filesystem::path& folder, int classes, const std::vector<std::string>& names,
        std::int64_t records_per_file)
      : folder_(folder),
        classes_(classes),
        label_bytes_(classes == 100 ? 2 : 1),
        records_per_file_(records_per_file) {
    const auto expected = static_cast<std::size_t>(records_per_file * record_bytes());
    for (const auto& name : names) {
      paths_.push_back(folder / name);
      files_.emplace_back(paths_.back());
      const std::size_t found = files_.back().bytes().size();
      if (found == expected) continue;
      throw Error(
          ErrorKind::data,
          fmt::format(
              "{} has {} bytes; this file of CIFAR-{} must have {} ({} records of {} bytes)",
              paths_.back().string(), found, classes, expected, records_per_file, record_bytes()),
          found < expected ? "the file ends early; unpack the archive of the binary version again"
                           : "use the files of the binary version");
    }
  }

  [[nodiscard]] std::int64_t size() const override {
    return records_per_file_ * static_cast<std::int64_t>(files_.size());
  }
  [[nodiscard]] int classes() const override { return classes_; }
  /// Of the list in the archive, a line for each.
  [[nodiscard]] std::vector<std::string> class_names() const override {
    const std::filesystem::path list =
        folder_ / (classes_ == 100 ? "fine_label_names.txt" : "batches.meta.txt");
    if (!path_exists(list)) return {};
    std::vector<std::string> names;
    std::istringstream lines(read_file(list, 1 << 16));
    for (std::string line; std::getline(lines, line);) {
      while (line.ends_with('\r') || line.ends_with(' ')) line.pop_back();
      if (!line.empty()) names.push_back(line);
    }
    if (std::cmp_not_equal(names.size(), classes_)) names.clear();
    return names;
  }
  [[nodiscard]] ImageShape shape() const override { return {kCifarSide, kCifarSide, kChannels}; }

  [[nodiscard]] int read(std::int64_t index, std::span<std::uint8_t> pixels) const override {
    DSTRAIN_CHECK(index >= 0 && index < size(), "no such sample");
    DSTRAIN_CHECK(static_cast<std::int64_t>(pixels.size()) == shape().bytes(),
                  "wrong pixel buffer");
    const auto file = static_cast<std::size_t>(index / records_per_file_);
    const std::int64_t record = index % records_per_file_;
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(files_[file].bytes().data()) +
                        record * record_bytes();
    files_[file].have_read(static_cast<std::uint64_t>(record_bytes()));
    const int label = bytes[label_bytes_ - 1];
    if (label >= classes_) {
      throw Error(
          ErrorKind::data,
          fmt::format("{}: record {} (byte {}): label {} is outside 0..{}", paths_[file].string(),
                      record, record * record_bytes() + label_bytes_ - 1, label, classes_ - 1),
          "the file is damaged or of another data set");
    }
    const std::uint8_t* planes = bytes + label_bytes_;
    for (std::size_t i = 0; i < kPlane; ++i) {
      for (std::size_t c = 0; c < kChannels; ++c)
        pixels[i * kChannels + c] = planes[c * kPlane + i];
    }
    return label;
  }

 private:
  [[nodiscard]] std::int64_t record_bytes() const { return label_bytes_ + kChannels * kPlane; }

  std::filesystem::path folder_;
  int classes_;
  int label_bytes_;
  std::int64_t records_per_file_;
  std::vector<std::filesystem::path> paths_;
  std::vector<MappedFile> files_;
};

std::unique_ptr<ImageDataset> open_cifar(const std::filesystem::path& folder, int classes,
                                         Split split) {
  std::vector<std::string> names;
  std::int64_t records_per_file = 10000;
  if (classes == 100) {
    names = {split == Split::train ? "train.bin" : "test.bin"};
    if (split == Split::train) records_per_file = 50000;
  } else if (split == Split::train) {
    for (int i = 1; i <= 5; ++i) names.push_back(fmt::format("data_batch_{}.bin", i));
  } else {
    names = {"test_batch.bin"};
  }
  return std::make_unique<Cifar>(folder, classes, names, records_per_file);
}

template <int kClasses>
std::unique_ptr<ImageDataset> open_binary(const DataConfig& data, Split split, int, std::int64_t,
                                          ProgressSink*) {
  const char* what = kClasses == 100
                         ? "the folder with train.bin and test.bin"
                         : "the folder with data_batch_1.bin ... data_batch_5.bin, test_batch.bin";
  return open_cifar(required_folder(data, what), kClasses, split);
}

ImageShape cifar_shape(const DataConfig&, int) { return {kCifarSide, kCifarSide, kChannels}; }

template <int kClasses>
DatasetFacts cifar_facts(const DataConfig&) {
  return {.classes = kClasses, .train_size = 50000};
}

}  // namespace

const ImageFormat kCifar10 = {.name = DatasetName::cifar10,
                              .open = open_binary<10>,
                              .shape = cifar_shape,
                              .facts = cifar_facts<10>};
const ImageFormat kCifar100 = {.name = DatasetName::cifar100,
                               .open = open_binary<100>,
                               .shape = cifar_shape,
                               .facts = cifar_facts<100>};

}  // namespace dstrain::formats
