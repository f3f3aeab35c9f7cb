#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/input_file.h"
#include "engine/data/formats.h"
#include "engine/data/text/progress_sink.h"

namespace dstrain::formats {
namespace {

constexpr int kCifarSide = 32;
constexpr int kPlane = kCifarSide * kCifarSide;
constexpr int kChannels = 3;

[[nodiscard]] std::int64_t record_bytes(int classes) {
  return (classes == 100 ? 2 : 1) + std::int64_t{kChannels} * kPlane;
}

/// A record is the label bytes (CIFAR-100: coarse, fine), then the red, green and blue planes. A
/// file holds any number of records; one that has others than the published file is named.
class Cifar final : public ImageDataset {
 public:
  Cifar(const std::filesystem::path& folder, int classes, const std::vector<std::string>& names,
        std::int64_t published, ProgressSink* progress)
      : folder_(folder), classes_(classes), label_bytes_(classes == 100 ? 2 : 1) {
    for (const auto& name : names) {
      paths_.push_back(folder / name);
      files_.emplace_back(paths_.back());
      const auto found = static_cast<std::int64_t>(files_.back().bytes().size());
      const std::int64_t each = record_bytes(classes), records = found / each;
      if (found % each != 0 || records == 0) {
        throw Error(
            ErrorKind::data,
            fmt::format("{} has {} bytes, which are no whole records of CIFAR-{} ({} bytes each; "
                        "{} of them in the published file, {} bytes)",
                        paths_.back().string(), found, classes, each, published, published * each),
            found < published * each
                ? "the file ends early; unpack the archive of the binary version again"
                : "use the files of the binary version");
      }
      if (records != published && progress != nullptr) {
        progress->note(fmt::format("{} holds {} images; the published file holds {}",
                                   paths_.back().string(), records, published));
      }
      ends_.push_back(size() + records);
    }
  }

  [[nodiscard]] std::int64_t size() const override { return ends_.empty() ? 0 : ends_.back(); }
  [[nodiscard]] int classes() const override { return classes_; }
  /// Names out of the list in the archive, a line for each.
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
    const auto file =
        static_cast<std::size_t>(std::ranges::upper_bound(ends_, index) - ends_.begin());
    const std::int64_t record = index - (file == 0 ? 0 : ends_[file - 1]);
    const std::int64_t each = record_bytes(classes_);
    const auto* bytes =
        reinterpret_cast<const std::uint8_t*>(files_[file].bytes().data()) + record * each;
    files_[file].have_read(static_cast<std::uint64_t>(each));
    const int label = bytes[label_bytes_ - 1];
    if (label >= classes_) {
      throw Error(
          ErrorKind::data,
          fmt::format("{}: record {} (byte {}): label {} is outside 0..{}", paths_[file].string(),
                      record, record * each + label_bytes_ - 1, label, classes_ - 1),
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
  std::filesystem::path folder_;
  int classes_;
  int label_bytes_;
  std::vector<std::int64_t> ends_ = {};  ///< by file: records of it and those before it
  std::vector<std::filesystem::path> paths_;
  std::vector<MappedFile> files_;
};

struct Files {
  std::vector<std::string> names;
  std::int64_t published;  ///< records of each
};

Files files_of(int classes, Split split) {
  const bool training = split == Split::train;
  if (classes == 100) return {{training ? "train.bin" : "test.bin"}, training ? 50000 : 10000};
  if (!training) return {{"test_batch.bin"}, 10000};
  Files files{{}, 10000};
  for (int i = 1; i <= 5; ++i) files.names.push_back(fmt::format("data_batch_{}.bin", i));
  return files;
}

template <int kClasses>
std::unique_ptr<ImageDataset> open_binary(const DataConfig& data, Split split, int, std::int64_t,
                                          ProgressSink* progress) {
  const char* what = kClasses == 100
                         ? "the folder with train.bin and test.bin"
                         : "the folder with data_batch_1.bin ... data_batch_5.bin, test_batch.bin";
  const auto [names, published] = files_of(kClasses, split);
  return std::make_unique<Cifar>(required_folder(data, what), kClasses, names, published, progress);
}

ImageShape cifar_shape(const DataConfig&, int) { return {kCifarSide, kCifarSide, kChannels}; }

/// The published files where these are absent.
template <int kClasses>
DatasetFacts cifar_facts(const DataConfig& data) {
  DatasetFacts facts{.classes = kClasses, .train_size = 50000};
  std::int64_t records = 0;
  for (const std::string& name : files_of(kClasses, Split::train).names) {
    std::error_code absent;
    const auto bytes = std::filesystem::file_size(std::filesystem::path(data.path) / name, absent);
    if (absent) return facts;
    records += static_cast<std::int64_t>(bytes) / record_bytes(kClasses);
  }
  facts.train_size = records;
  return facts;
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
