#include <fmt/format.h>

#include <optional>
#include <span>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/input_file.h"
#include "engine/data/images/cifar.h"
#include "engine/weights/pickle_array.h"

namespace dstrain::formats {
namespace {

namespace fs = std::filesystem;
using Kind = PickleValue::Kind;

constexpr const char* kUnpackAgain = "unpack the archive of the python version again";

/// The largest published file has 155 MB; as Python 3 writes it, half as much again.
Pickle read_pickle(const fs::path& path) {
  constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 30;
  const MappedFile file(path);
  if (file.bytes().size() > kMaxBytes)
    throw Error(ErrorKind::data,
                fmt::format("{} has {} bytes, more than any file of CIFAR", path.string(),
                            file.bytes().size()),
                kUnpackAgain);
  return {file.bytes(), path.string(), {.text_bytes = kMaxBytes}};
}

/// A file of the python version: a dict of data [images, 3072] and labels.
class Batch {
 public:
  Batch(fs::path path, const CifarSet& set)
      : path_(std::move(path)), classes_(set.classes()), pickle_(read_pickle(path_)) {
    const PickleValue* data = pickle_.root().find("data");
    const std::optional<PickleArray> array = data == nullptr ? std::nullopt : byte_array(*data);
    if (!array || array->shape.size() != 2 || array->shape[0] == 0 ||
        array->shape[1] != std::int64_t{kCifarChannels} * kCifarPlane)
      refuse("its 'data' is no array of bytes [images, 3072]");
    planes_ = array->bytes;
    const char* key = set.number == 10 ? "labels" : set.coarse ? "coarse_labels" : "fine_labels";
    labels_ = pickle_.root().find(key);
    if (labels_ == nullptr || !labels_->is(Kind::list) ||
        std::cmp_not_equal(labels_->items.size(), array->shape[0]))
      refuse(fmt::format("its '{}' is no list of {} numbers", key, array->shape[0]));
  }

  [[nodiscard]] std::size_t size() const { return labels_->items.size(); }
  [[nodiscard]] const fs::path& path() const { return path_; }
  [[nodiscard]] const std::uint8_t* planes(std::size_t record) const {
    return reinterpret_cast<const std::uint8_t*>(planes_.data()) +
           record * kCifarChannels * kCifarPlane;
  }
  [[nodiscard]] int label(std::size_t record) const {
    const PickleValue& label = *labels_->items.at(record);
    if (label.is(Kind::integer) && label.integer >= 0 && label.integer < classes_)
      return static_cast<int>(label.integer);
    throw Error(
        ErrorKind::data,
        fmt::format(
            "{}: record {}: its label is {}, not a number of 0..{}", path_.string(), record,
            label.is(Kind::integer) ? fmt::format("{}", label.integer) : kind_text(label.kind),
            classes_ - 1),
        "the file is damaged or of another data set");
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(ErrorKind::data, fmt::format("{}: {}", path_.string(), what), kUnpackAgain);
  }

  fs::path path_;
  int classes_;
  Pickle pickle_;  ///< owns what the others point into
  std::string_view planes_ = {};
  const PickleValue* labels_ = nullptr;
};

class PythonCifar final : public PackSource {
 public:
  PythonCifar(std::vector<fs::path> files, const CifarSet& set)
      : files_(std::move(files)), set_(set) {}

  [[nodiscard]] std::string made_from() const override {
    std::string text = set_.coarse ? "coarse\n" : "";
    for (const fs::path& file : files_)
      text += fmt::format("{} {}\n", file.filename().string(), size_and_time(file));
    return text;
  }
  [[nodiscard]] std::string place() const override { return files_.front().string(); }
  [[nodiscard]] int classes() const override { return set_.classes(); }
  [[nodiscard]] std::int64_t open() override {
    std::size_t all = 0;
    for (const fs::path& file : files_) all += batches_.emplace_back(file, set_).size();
    return static_cast<std::int64_t>(all);
  }
  /// Those of one file at most.
  std::size_t advance(std::size_t max) override {
    first_ += std::exchange(taken_, 0);
    if (batch_ < batches_.size() && first_ == batches_[batch_].size()) {
      ++batch_;
      first_ = 0;
    }
    if (batch_ < batches_.size()) taken_ = std::min(max, batches_[batch_].size() - first_);
    return taken_;
  }
  [[nodiscard]] int label(std::size_t at) const override {
    return batches_[batch_].label(first_ + at);
  }
  [[nodiscard]] ImagePart image(std::size_t at, int, const DecodeRequest&,
                                std::string&) const override {
    RgbImage image{kCifarSide, kCifarSide, std::vector<std::uint8_t>(kCifarChannels * kCifarPlane)};
    interleave_planes(batches_[batch_].planes(first_ + at), image.pixels.data());
    return {.image = std::move(image), .width = kCifarSide, .height = kCifarSide};
  }

 private:
  std::vector<fs::path> files_;
  CifarSet set_;
  std::vector<Batch> batches_ = {};
  std::size_t batch_ = 0, first_ = 0, taken_ = 0;  ///< first_: in its file
};

}  // namespace

std::vector<fs::path> python_cifar_files(const fs::path& folder, const CifarSet& set, Split split) {
  const bool training = split == Split::train;
  std::vector<fs::path> files;
  if (set.number == 100) {
    files = {folder / (training ? "train" : "test")};
  } else if (!training) {
    files = {folder / "test_batch"};
  } else {
    for (int i = 1; i <= 5; ++i) files.push_back(folder / fmt::format("data_batch_{}", i));
  }
  if (path_kind(files.front()) != PathKind::file) files.clear();
  return files;
}

std::unique_ptr<PackSource> python_cifar(std::vector<fs::path> files, const CifarSet& set) {
  return std::make_unique<PythonCifar>(std::move(files), set);
}

std::vector<std::string> python_cifar_names(const fs::path& folder, const CifarSet& set) {
  const fs::path meta = folder / (set.number == 100 ? "meta" : "batches.meta");
  if (path_kind(meta) != PathKind::file) return {};
  const Pickle pickle = read_pickle(meta);
  const PickleValue* list = pickle.root().find(set.number == 10 ? "label_names"
                                               : set.coarse     ? "coarse_label_names"
                                                                : "fine_label_names");
  std::vector<std::string> names;
  if (list == nullptr || std::cmp_not_equal(list->items.size(), set.classes())) return names;
  for (const PickleValue* name : list->items) {
    if (!name->is(Kind::text) && !name->is(Kind::bytes)) return {};
    names.push_back(name->text);
  }
  return names;
}

}  // namespace dstrain::formats
