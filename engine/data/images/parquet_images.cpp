#include "engine/data/images/parquet_images.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/input_file.h"
#include "engine/base/json.h"
#include "engine/data/images/parquet_places.h"
#include "engine/data/text/parquet.h"
#include "engine/data/text/source_files.h"
#include "engine/data/text/test_folders.h"

namespace dstrain::formats {
namespace {

namespace fs = std::filesystem;
using text::ParquetColumn;
using text::ParquetField;
using text::ParquetReader;
using text::ParquetType;
using text::ParquetValue;

constexpr int kMaxClasses = 1 << 20;

std::vector<fs::path> files_of_split(const fs::path& place, const std::string& split) {
  auto files = text::parquet_files(place, split + "-").files;
  if (files.empty() && path_exists(place / (split + ".parquet")))
    files.push_back(place / (split + ".parquet"));
  return files;
}

std::vector<fs::path> test_files(const fs::path& place) {
  for (const char* split : kTestFolders) {
    if (auto files = files_of_split(place, split); !files.empty()) return files;
  }
  throw Error(ErrorKind::data,
              fmt::format("{} has parquet files of 'train' but none of {}", place.string(),
                          fmt::join(kTestFolders, ", ")),
              "put the images for evaluation there, or set run.evaluate: never");
}

/// "info.features" of what `datasets` writes; null where a file has none.
nlohmann::json features_of(const ParquetReader& reader, const fs::path& file) {
  const std::string text = reader.metadata("huggingface");
  if (text.empty()) return {};
  constexpr std::uint64_t kMaxBytes = std::uint64_t{16} << 20;
  const auto json = parse_json(text, file.string() + ": metadata huggingface", {kMaxBytes});
  const nlohmann::json* at = &json;
  for (const char* key : {"info", "features"}) {
    const auto found = at->is_object() ? at->find(key) : at->end();
    if (!at->is_object() || found == at->end()) return {};
    at = &*found;
  }
  return at->is_object() ? *at : nlohmann::json();
}

/// Names of a column's classes; none where it is no ClassLabel.
std::vector<std::string> names_of(const nlohmann::json& features, const std::string& column) {
  std::vector<std::string> names;
  const auto feature = features.is_object() ? features.find(column) : features.end();
  if (!features.is_object() || feature == features.end() || !feature->is_object()) return names;
  const auto list = feature->find("names");
  if (list == feature->end() || !list->is_array() || list->size() > kMaxClasses) return names;
  for (const auto& name : *list) {
    if (!name.is_string()) return {};
    names.push_back(name.get<std::string>());
  }
  return names;
}

std::string image_column(const std::vector<ParquetField>& fields, const fs::path& file) {
  std::vector<std::string> found, all;
  for (const ParquetField& field : fields) {
    if (field.image) found.push_back(field.name);
    all.push_back(fmt::format("{} ({})", field.name, field.type));
  }
  if (found.size() == 1) return found[0];
  throw Error(ErrorKind::data,
              found.empty()
                  ? fmt::format("{}: no column holds images, struct<bytes: binary, path: string>; "
                                "it has {}",
                                file.string(), shown_text(fmt::format("{}", fmt::join(all, ", "))))
                  : fmt::format("{}: several columns hold images: {}", file.string(),
                                fmt::join(found, ", ")),
              "write files with one column of images, as `datasets` does");
}

/// The column that is meant, of whole numbers.
std::string label_column(const std::vector<ParquetField>& fields, const nlohmann::json& features,
                         const std::string& wanted, const fs::path& file) {
  std::vector<std::string> numbers, classes;
  for (const ParquetField& field : fields) {
    if (!field.integer) continue;
    numbers.push_back(field.name);
    if (!names_of(features, field.name).empty()) classes.push_back(field.name);
  }
  const auto has = [](const std::vector<std::string>& names, const std::string& name) {
    return std::ranges::find(names, name) != names.end();
  };
  const auto& likely = classes.empty() ? numbers : classes;
  if (!wanted.empty()) {
    if (has(numbers, wanted)) return wanted;
    throw Error(
        ErrorKind::usage,
        fmt::format("data.label: {} has no column '{}' of whole numbers", file.string(), wanted),
        numbers.empty() ? "it has none of them"
                        : fmt::format("it has {}", fmt::join(numbers, ", ")));
  }
  if (has(likely, "fine_label")) return "fine_label";
  if (likely.size() == 1) return likely[0];
  throw Error(ErrorKind::usage,
              likely.empty()
                  ? fmt::format("{}: no column holds classes as whole numbers", file.string())
                  : fmt::format("{}: several columns hold classes: {}", file.string(),
                                fmt::join(likely, ", ")),
              likely.empty() ? "write them as a ClassLabel of `datasets`"
                             : "name one of them in data.label");
}

/// One more than the largest label of the training files, which name no classes.
int count_classes(const std::vector<fs::path>& files, const std::string& column) {
  std::int64_t largest = -1;
  for (const fs::path& file : files) {
    text::for_each_parquet_row(file, {{.name = column, .type = ParquetType::integer}},
                               [&](const text::ParquetRow& row, std::int64_t, double) {
                                 if (!row[0]->null)
                                   largest = std::max(largest, row[0]->integers[0]);
                               });
  }
  if (largest >= 0 && largest < kMaxClasses) return static_cast<int>(largest) + 1;
  throw Error(ErrorKind::data, fmt::format("{}: the largest label of column {} is {}",
                                           files.front().string(), column, largest));
}

/// Rows of all files, one after the other.
class ParquetSource final : public PackSource {
 public:
  explicit ParquetSource(ParquetImages images)
      : images_(std::move(images)),
        columns_({{.name = images_.image + ".bytes", .type = ParquetType::bytes},
                  {.name = images_.label, .type = ParquetType::integer}}) {}

  [[nodiscard]] std::string made_from() const override {
    std::string text = fmt::format("{} {} {}\n", images_.image, images_.label, images_.side);
    for (const fs::path& file : images_.files)
      text += fmt::format("{} {}\n", file.filename().string(), size_and_time(file));
    return text;
  }
  [[nodiscard]] std::string place() const override { return images_.place.string(); }
  [[nodiscard]] int classes() const override { return images_.classes; }
  [[nodiscard]] std::int64_t open() override { return count_rows(images_); }

  std::size_t advance(std::size_t max) override {
    rows_.clear();
    while (rows_.size() < max && (next_ < ready_ || read_more())) {
      const ParquetValue &image = values_[0][next_], &label = values_[1][next_];
      Row row{.file = file_ - 1, .number = ++number_};
      if (image.null) {
        row.problem = "it holds no image, or only the path of one";
      } else {
        row.image = image.texts[0];
      }
      if (label.null) {
        row.problem = fmt::format("its {} is null", images_.label);
      } else if (label.integers[0] < 0 || label.integers[0] >= images_.classes) {
        row.problem = fmt::format("its {} is {}, outside 0..{}", images_.label, label.integers[0],
                                  images_.classes - 1);
      } else {
        row.label = static_cast<int>(label.integers[0]);
      }
      ++next_;
      rows_.push_back(std::move(row));
    }
    return rows_.size();
  }

  [[nodiscard]] int label(std::size_t at) const override {
    if (!rows_[at].problem.empty()) fail(rows_[at], rows_[at].problem);
    return rows_[at].label;
  }
  [[nodiscard]] ImagePart image(std::size_t at, int, const DecodeRequest& request,
                                std::string& file) const override {
    const Row& row = rows_[at];
    ImagePart part = decode_part(row.image, request, name_of(row));
    if (images_.side > 0 && (part.image.width != images_.side || part.image.height != images_.side))
      fail(row, fmt::format("it is {} x {} pixels, all others {} x {}", part.image.width,
                            part.image.height, images_.side, images_.side));
    file = row.image;
    return part;
  }

 private:
  struct Row {
    std::size_t file;
    std::int64_t number;  ///< in its file, from 1
    std::string image = {};
    int label = 0;
    std::string problem = {};
  };

  [[nodiscard]] std::string name_of(const Row& row) const {
    return fmt::format("{}: row {}", images_.files[row.file].string(), row.number);
  }
  [[noreturn]] void fail(const Row& row, const std::string& what) const {
    throw Error(ErrorKind::data, fmt::format("{}: {}", name_of(row), what),
                "write the files anew; data.bad_record: skip leaves it out");
  }

  /// The next rows of the file, or of the next one; false behind the last.
  bool read_more() {
    next_ = ready_ = 0;
    while (true) {
      std::string error;
      if (reader_ != nullptr && reader_->next(values_, error)) {
        ready_ = values_[0].size();
        if (ready_ > 0) return true;
        continue;
      }
      if (!error.empty())
        throw Error(
            ErrorKind::data,
            fmt::format("{}: after row {}: {}", images_.files[file_ - 1].string(), number_, error),
            "the file is damaged or cut off; fetch it again");
      if (file_ == images_.files.size()) return false;
      reader_ = text::open_parquet(images_.files[file_++], columns_);
      number_ = 0;
    }
  }

  ParquetImages images_;
  std::vector<ParquetColumn> columns_;
  std::unique_ptr<ParquetReader> reader_;
  std::vector<std::vector<ParquetValue>> values_;
  std::size_t file_ = 0, next_ = 0, ready_ = 0;  ///< file to open; row of `values_`, their number
  std::int64_t number_ = 0;
  std::vector<Row> rows_;
};

}  // namespace

bool holds_parquet_images(const fs::path& folder) { return !parquet_places(folder).empty(); }

ParquetImages find_parquet_images(const DataConfig& data, Split split) {
  const auto places = parquet_places(data.path);
  if (places.size() != 1) {
    std::vector<std::string> names;
    for (const fs::path& place : places) names.push_back(place.string());
    throw Error(ErrorKind::usage,
                fmt::format("data.path '{}' holds several data sets: {}", data.path,
                            fmt::join(names, ", ")),
                "name the folder of one of them");
  }
  ParquetImages found{.place = places[0]};
  const auto training = files_of_split(found.place, "train");
  const auto reader = text::open_parquet(training.front(), {});
  const auto fields = reader->fields();
  const nlohmann::json features = features_of(*reader, training.front());
  found.image = image_column(fields, training.front());
  found.label = label_column(fields, features, data.label, training.front());
  found.class_names = names_of(features, found.label);
  found.classes = found.class_names.empty() ? count_classes(training, found.label)
                                            : static_cast<int>(found.class_names.size());
  found.files = split == Split::train ? training : test_files(found.place);
  return found;
}

std::int64_t count_rows(const ParquetImages& images) {
  std::int64_t rows = 0;
  for (const fs::path& file : images.files) rows += text::open_parquet(file, {})->rows();
  return rows;
}

std::unique_ptr<PackSource> parquet_source(ParquetImages images) {
  return std::make_unique<ParquetSource>(std::move(images));
}

std::unique_ptr<ImageDataset> open_parquet_images(const DataConfig& data, Split split,
                                                  int image_size, ProgressSink* progress) {
  ParquetImages found = find_parquet_images(data, split);
  ImageList list{.root = found.place, .classes = found.classes, .class_names = found.class_names};
  const auto source = parquet_source(std::move(found));
  return open_image_files(std::move(list), data, split, image_size, progress, source.get());
}

void refuse_label(const DataConfig& data) {
  if (data.label.empty()) return;
  throw Error(ErrorKind::usage,
              fmt::format("data.label: '{}' names a column of parquet files; '{}' holds images in "
                          "folders",
                          data.label, data.path),
              "leave it out: the folders name the classes");
}

}  // namespace dstrain::formats
