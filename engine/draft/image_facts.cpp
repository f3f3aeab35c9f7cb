#include <fmt/format.h>

#include <algorithm>

#include "engine/base/error.h"
#include "engine/base/input_file.h"
#include "engine/base/tar_file.h"
#include "engine/data/dataset.h"
#include "engine/data/images/image_listing.h"
#include "engine/data/images/parquet_images.h"
#include "engine/data/images/parquet_places.h"
#include "engine/data/text/parquet.h"
#include "engine/data/text/tar_records.h"
#include "engine/data/text/tar_shards.h"
#include "engine/data/text/test_folders.h"
#include "engine/draft/data_facts.h"

namespace dstrain::draft {
namespace {

namespace fs = std::filesystem;

constexpr int kAnyImageSize = 224;  // of a model: what is asked does not depend on it

/// Counts of what is named; Error{data} says what is wrong with its files.
DataFacts counted(DatasetName name, const fs::path& folder, std::string form,
                  const std::string& label = {}) {
  const DatasetFacts found = dataset_facts(config_of(name, folder.string(), label), kAnyImageSize);
  return {.name = name,
          .path = folder.string(),
          .label = label,
          .form = std::move(form),
          .samples = found.train_size,
          .own_test = true,
          .classes = found.classes};
}

/// A set whose files have fixed names, CIFAR or Food-101.
std::optional<DataFacts> published_set(const fs::path& folder, const std::string& label) {
  for (const DatasetRow& row : datasets()) {
    for (const auto& form : row.forms) {
      const bool whole = std::ranges::all_of(form, [&](std::string_view name) {
        // CIFAR-100's python version has files `train` and `test`, where others have folders.
        const PathKind kind = path_kind(folder / name);
        return kind == (name == "images" ? PathKind::folder : PathKind::file);
      });
      // Food-101's folders have no choice of labels.
      if (whole)
        return counted(row.name, folder, fmt::format("it has {} and {}", form.front(), form.back()),
                       row.name == DatasetName::food101 ? "" : label);
    }
  }
  return std::nullopt;
}

/// Whether an image lies at any depth in the folder, as far as one looks.
bool has_image_files(const fs::path& folder) {
  constexpr int kMaxEntries = 100000;
  int looked = 0;
  std::error_code failed;
  for (fs::recursive_directory_iterator at(folder, failed), end; !failed && at != end;
       at.increment(failed)) {
    if (formats::is_image_name(at->path())) return true;
    if (++looked > kMaxEntries) return false;
  }
  return false;
}

DataFacts images_of_folders(const fs::path& root, bool clips) {
  const bool split = path_kind(root / "train") == PathKind::folder;
  const fs::path training = split ? root / "train" : root;
  std::vector<std::string> names = formats::list_classes(training);
  if (clips) {
    DataFacts facts = counted(DatasetName::frames, root, "folders train/CLASS/CLIP of frames");
    facts.class_names = std::move(names);
    return facts;
  }
  const bool test = std::ranges::any_of(
      kTestFolders, [&](const char* name) { return path_kind(root / name) == PathKind::folder; });
  // Beside `train` alone a share of its files, as of any folder of classes.
  DataFacts facts =
      counted(DatasetName::images, split && test ? root : training,
              split && test ? "a folder for each class in train/" : "a folder for each class");
  facts.own_test = split && test;
  facts.class_names = std::move(names);
  return facts;
}

std::optional<DataFacts> parquet_of_images(const fs::path& root, const std::string& label) {
  const std::vector<fs::path> places = parquet_places(root);
  if (places.empty()) return std::nullopt;
  fs::path first;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(places.front(), none)) {
    if (is_parquet_of(entry.path(), "train") && (first.empty() || entry.path() < first))
      first = entry.path();
  }
  const auto fields = text::open_parquet(first, {})->fields();
  if (std::ranges::none_of(fields, &text::ParquetField::image)) return std::nullopt;
  const DataConfig data = config_of(DatasetName::images, root.string(), label);
  const formats::ParquetImages found = formats::find_parquet_images(data, Split::train);
  DataFacts facts = {.name = DatasetName::images,
                     .path = root.string(),
                     .label = label,
                     .form = fmt::format("{} has images in column {} and classes in {}",
                                         first.filename().string(), found.image, found.label),
                     .samples = formats::count_rows(found),
                     .classes = found.classes,
                     .class_names = found.class_names};
  try {
    facts.own_test = !formats::find_parquet_images(data, Split::test).files.empty();
  } catch (const Error&) {
    facts.evaluated = false;
  }
  const auto has = [&](const char* name) {
    return std::ranges::find(fields, name, &text::ParquetField::name) != fields.end();
  };
  // Images of one small size, which are read faster as what they are.
  if (facts.classes == 100 && has("fine_label") && has("coarse_label"))
    facts.name = DatasetName::cifar100;
  if (facts.classes == 10 && facts.class_names.front() == "airplane")
    facts.name = DatasetName::cifar10;
  return facts;
}

/// Whether a tar has images, as data.name webdataset takes them. For a model of text those with a
/// text beside are none; a class is no text.
bool has_images(const fs::path& path, const LookOptions& options) {
  const std::vector<text::TarSample> samples = text::tar_samples(TarFile(path));
  const auto is_image = [](const std::string& ending) {
    return ending.find('.') == std::string::npos && formats::is_image_name("x." + ending);
  };
  const auto is_text = [&](const auto& member) {
    return !is_image(member.first) && member.first != "cls";
  };
  const auto has_image = [&](const text::TarSample& sample) {
    return std::ranges::any_of(sample.members,
                               [&](const auto& member) { return is_image(member.first); });
  };
  // --label says that these are images with classes.
  if (options.text && options.label.empty() && !samples.empty() &&
      std::ranges::any_of(samples.front().members, is_text))
    return false;
  return std::ranges::any_of(samples, has_image);
}

std::optional<DataFacts> images_in_tars(const fs::path& path, const LookOptions& options) {
  const std::string& label = options.label;
  const std::optional<TarShards> tars = find_tar_shards(path.string());
  if (!tars || tars->train.empty() || !has_images(tars->root / tars->train.front(), options))
    return std::nullopt;
  DataFacts facts = counted(DatasetName::webdataset, path,
                            fmt::format("images in tar files, with their classes in {}",
                                        label.empty() ? "KEY.cls" : label),
                            label);
  facts.own_test = facts.evaluated = !tars->test.empty();
  return facts;
}

}  // namespace

std::optional<DataFacts> images_in(const fs::path& path, const LookOptions& options) {
  if (path_kind(path) != PathKind::folder)
    return path.extension() == ".tar" ? images_in_tars(path, options) : std::nullopt;
  if (auto facts = published_set(path, options.label)) return facts;
  if (auto facts = parquet_of_images(path, options.label)) return facts;
  if (!has_image_files(path)) return images_in_tars(path, options);
  return images_of_folders(path, options.clips);
}

}  // namespace dstrain::draft
