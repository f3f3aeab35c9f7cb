#include "engine/data/images/cifar.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/input_file.h"
#include "engine/data/formats.h"
#include "engine/data/images/image_pack.h"
#include "engine/data/images/parquet_images.h"
#include "engine/data/text/progress_sink.h"

namespace dstrain::formats {
namespace {

[[nodiscard]] std::int64_t label_bytes(const CifarSet& set) { return set.number == 100 ? 2 : 1; }
[[nodiscard]] std::int64_t record_bytes(const CifarSet& set) {
  return label_bytes(set) + std::int64_t{kCifarChannels} * kCifarPlane;
}

/// A record is the label bytes (CIFAR-100: coarse, fine), then the red, green and blue planes. A
/// file holds any number of records; one that has others than the published file is named.
class Cifar final : public ImageDataset {
 public:
  Cifar(const std::filesystem::path& folder, const CifarSet& set,
        const std::vector<std::string>& names, std::int64_t published, ProgressSink* progress)
      : folder_(folder), set_(set) {
    for (const auto& name : names) {
      paths_.push_back(folder / name);
      files_.emplace_back(paths_.back());
      const auto found = static_cast<std::int64_t>(files_.back().bytes().size());
      const std::int64_t each = record_bytes(set), records = found / each;
      if (found % each != 0 || records == 0) {
        throw Error(
            ErrorKind::data,
            fmt::format("{} has {} bytes, which are no whole records of CIFAR-{} ({} bytes each; "
                        "{} of them in the published file, {} bytes)",
                        paths_.back().string(), found, set.number, each, published,
                        published * each),
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
  [[nodiscard]] int classes() const override { return set_.classes(); }
  /// Names out of the list in the archive, a line for each.
  [[nodiscard]] std::vector<std::string> class_names() const override {
    const std::filesystem::path list = folder_ / (set_.number == 10 ? "batches.meta.txt"
                                                  : set_.coarse     ? "coarse_label_names.txt"
                                                                    : "fine_label_names.txt");
    if (!path_exists(list)) return {};
    std::vector<std::string> names;
    std::istringstream lines(read_file(list, 1 << 16));
    for (std::string line; std::getline(lines, line);) {
      while (line.ends_with('\r') || line.ends_with(' ')) line.pop_back();
      if (!line.empty()) names.push_back(line);
    }
    if (std::cmp_not_equal(names.size(), classes())) names.clear();
    return names;
  }
  [[nodiscard]] ImageShape shape() const override {
    return {kCifarSide, kCifarSide, kCifarChannels};
  }

  [[nodiscard]] int read(std::int64_t index, std::span<std::uint8_t> pixels) const override {
    DSTRAIN_CHECK(static_cast<std::int64_t>(pixels.size()) == shape().bytes(),
                  "wrong pixel buffer");
    const Record record = record_of(index);
    interleave_planes(record.bytes + label_bytes(set_), pixels.data());
    return label_of(record);
  }
  [[nodiscard]] int label(std::int64_t index) const override { return label_of(record_of(index)); }

 private:
  struct Record {
    std::size_t file;
    std::int64_t number;  ///< in its file
    const std::uint8_t* bytes;
  };

  [[nodiscard]] Record record_of(std::int64_t index) const {
    DSTRAIN_CHECK(index >= 0 && index < size(), "no such sample");
    const auto file =
        static_cast<std::size_t>(std::ranges::upper_bound(ends_, index) - ends_.begin());
    const std::int64_t number = index - (file == 0 ? 0 : ends_[file - 1]);
    const std::int64_t each = record_bytes(set_);
    files_[file].have_read(static_cast<std::uint64_t>(each));
    return {file, number,
            reinterpret_cast<const std::uint8_t*>(files_[file].bytes().data()) + number * each};
  }
  [[nodiscard]] int label_of(const Record& record) const {
    const std::int64_t place = set_.coarse ? 0 : label_bytes(set_) - 1;
    const int label = record.bytes[place];
    if (label < classes()) return label;
    throw Error(ErrorKind::data,
                fmt::format("{}: record {} (byte {}): label {} is outside 0..{}",
                            paths_[record.file].string(), record.number,
                            record.number * record_bytes(set_) + place, label, classes() - 1),
                "the file is damaged or of another data set");
  }

  std::filesystem::path folder_;
  CifarSet set_;
  std::vector<std::int64_t> ends_ = {};  ///< by file: records of it and those before it
  std::vector<std::filesystem::path> paths_;
  std::vector<MappedFile> files_;
};

/// Images out of a packed file of pixels.
class PackedCifar final : public ImageDataset {
 public:
  PackedCifar(std::shared_ptr<const PackedImages> pack, std::vector<std::string> names)
      : pack_(std::move(pack)), names_(std::move(names)) {}

  [[nodiscard]] std::int64_t size() const override { return pack_->size(); }
  [[nodiscard]] int classes() const override { return pack_->classes(); }
  [[nodiscard]] std::vector<std::string> class_names() const override { return names_; }
  [[nodiscard]] ImageShape shape() const override {
    return {kCifarSide, kCifarSide, kCifarChannels};
  }
  [[nodiscard]] int read(std::int64_t index, std::span<std::uint8_t> pixels) const override {
    const std::vector<std::uint8_t> image = pack_->decode(index, 0, {}).image.pixels;
    DSTRAIN_CHECK(image.size() == pixels.size(), "wrong pixel buffer");
    std::ranges::copy(image, pixels.begin());
    return pack_->label(index);
  }
  [[nodiscard]] int label(std::int64_t index) const override { return pack_->label(index); }
  [[nodiscard]] std::int64_t stored_bytes(std::int64_t index) const override {
    return pack_->stored_bytes(index, 0);
  }

 private:
  std::shared_ptr<const PackedImages> pack_;
  std::vector<std::string> names_;
};

struct Files {
  std::vector<std::string> names;
  std::int64_t published;  ///< records of each
};

/// Files of the binary version.
Files files_of(const CifarSet& set, Split split) {
  const bool training = split == Split::train;
  if (set.number == 100) return {{training ? "train.bin" : "test.bin"}, training ? 50000 : 10000};
  if (!training) return {{"test_batch.bin"}, 10000};
  Files files{{}, 10000};
  for (int i = 1; i <= 5; ++i) files.names.push_back(fmt::format("data_batch_{}.bin", i));
  return files;
}

/// The labels that data.label names.
CifarSet set_of(const DataConfig& data, int number) {
  const std::string_view fine = number == 100 ? "fine_label" : "label";
  if (data.label.empty() || data.label == fine) return {number};
  if (number == 100 && data.label == "coarse_label") return {number, true};
  throw Error(ErrorKind::usage, fmt::format("data.label: CIFAR-{} has no '{}'", number, data.label),
              number == 100 ? "it has fine_label and coarse_label" : "it has label");
}

constexpr ImageShape kCifarShape = {kCifarSide, kCifarSide, kCifarChannels};

/// Pixels of one size are packed as they are.
std::unique_ptr<ImageDataset> open_packed(PackSource& source, std::vector<std::string> names,
                                          const DataConfig& data, Split split,
                                          ProgressSink* progress) {
  const PackForm form = {data, Pack::pixels, kCifarSide};
  return std::make_unique<PackedCifar>(open_pack(source, form, split, progress), std::move(names));
}

/// Whether the folder holds a file of the binary version, which goes before the others.
bool is_binary(const std::filesystem::path& folder, const CifarSet& set, Split split) {
  return path_exists(folder / files_of(set, split).names.front());
}

/// Error{data} where the schema has other classes.
ParquetImages parquet_cifar(const DataConfig& data, const CifarSet& set, Split split) {
  ParquetImages found = find_parquet_images(data, split);
  found.side = kCifarSide;
  if (found.classes == set.classes()) return found;
  throw Error(ErrorKind::data,
              fmt::format("{}: column {} has {} classes, CIFAR-{} has {}", found.place.string(),
                          found.label, found.classes, set.number, set.classes()),
              "use data.name: images for other data sets");
}

template <int kNumber>
std::unique_ptr<ImageDataset> open_cifar(const DataConfig& data, Split split, int, std::int64_t,
                                         ProgressSink* progress) {
  const char* what = kNumber == 100
                         ? "the folder with train.bin and test.bin, train and test, or parquet"
                         : "the folder with data_batch_1.bin ... data_batch_5.bin and "
                           "test_batch.bin, the same without .bin, or parquet";
  const CifarSet set = set_of(data, kNumber);
  const std::filesystem::path folder = required_folder(data, what);
  if (!is_binary(folder, set, split)) {
    if (auto files = python_cifar_files(folder, set, split); !files.empty())
      return open_packed(*python_cifar(std::move(files), set), python_cifar_names(folder, set),
                         data, split, progress);
    if (holds_parquet_images(folder)) {
      ParquetImages found = parquet_cifar(data, set, split);
      auto names = found.class_names;
      return open_packed(*parquet_source(std::move(found)), std::move(names), data, split,
                         progress);
    }
  }
  const auto [names, published] = files_of(set, split);
  return std::make_unique<Cifar>(folder, set, names, published, progress);
}

ImageShape cifar_shape(const DataConfig&, int) { return kCifarShape; }

/// Training images of the binary version.
std::int64_t binary_size(const std::filesystem::path& folder, const CifarSet& set) {
  std::int64_t records = 0;
  for (const std::string& name : files_of(set, Split::train).names) {
    std::error_code absent;
    const auto bytes = std::filesystem::file_size(folder / name, absent);
    if (!absent) records += static_cast<std::int64_t>(bytes) / record_bytes(set);
  }
  return records;
}

/// The published files where there are none.
template <int kNumber>
DatasetFacts cifar_facts(const DataConfig& data) {
  const CifarSet set = set_of(data, kNumber);
  DatasetFacts facts{.classes = set.classes(), .train_size = 50000};
  const std::filesystem::path folder = data.path;
  if (is_binary(folder, set, Split::train)) {
    facts.train_size = binary_size(folder, set);
  } else if (auto files = python_cifar_files(folder, set, Split::train); !files.empty()) {
    facts.train_size = python_cifar(std::move(files), set)->open();
  } else if (holds_parquet_images(folder)) {
    facts.train_size = count_rows(parquet_cifar(data, set, Split::train));
  }
  return facts;
}

template <int kNumber>
bool cifar_packed(const DataConfig& data) {
  const CifarSet set = set_of(data, kNumber);
  const std::filesystem::path folder = data.path;
  return !is_binary(folder, set, Split::train) &&
         (!python_cifar_files(folder, set, Split::train).empty() || holds_parquet_images(folder));
}

}  // namespace

void interleave_planes(const std::uint8_t* planes, std::uint8_t* pixels) {
  for (std::size_t i = 0; i < kCifarPlane; ++i) {
    for (std::size_t c = 0; c < kCifarChannels; ++c)
      pixels[i * kCifarChannels + c] = planes[c * kCifarPlane + i];
  }
}

const ImageFormat kCifar10 = {.name = DatasetName::cifar10,
                              .open = open_cifar<10>,
                              .shape = cifar_shape,
                              .facts = cifar_facts<10>,
                              .packed = cifar_packed<10>};
const ImageFormat kCifar100 = {.name = DatasetName::cifar100,
                               .open = open_cifar<100>,
                               .shape = cifar_shape,
                               .facts = cifar_facts<100>,
                               .packed = cifar_packed<100>};

}  // namespace dstrain::formats
