#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/input_file.h"
#include "engine/base/json.h"
#include "engine/data/formats.h"
#include "engine/data/images/parquet_images.h"

namespace dstrain::formats {
namespace {

namespace fs = std::filesystem;
constexpr std::uint64_t kMaxMetaBytes = std::uint64_t{64} << 20;

/// Non-empty lines without their line ends; the second is the line's number from 1.
std::vector<std::pair<std::string, int>> read_lines(const fs::path& path) {
  std::vector<std::pair<std::string, int>> lines;
  const std::string text = read_file(path, kMaxMetaBytes);
  std::string_view rest = text;
  for (int number = 1; !rest.empty(); ++number) {
    std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    while (line.ends_with('\r') || line.ends_with(' ')) line.remove_suffix(1);
    if (!line.empty()) lines.emplace_back(line, number);
  }
  return lines;
}

/// Entries "class/id" of a split, each with its place in the file for messages.
std::vector<std::pair<std::string, std::string>> read_split(const fs::path& meta,
                                                            const char* split) {
  std::vector<std::pair<std::string, std::string>> entries;
  const fs::path text = meta / (std::string(split) + ".txt");
  if (path_exists(text)) {
    for (auto& [entry, number] : read_lines(text)) {
      entries.emplace_back(entry, fmt::format("{}:{}", text.string(), number));
    }
    return entries;
  }
  const fs::path path = meta / (std::string(split) + ".json");
  if (!path_exists(path)) {
    throw Error(ErrorKind::data,
                fmt::format("neither {} nor {} exists", text.string(), path.filename().string()),
                "data.path must name the folder of Food-101 that holds images/ and meta/");
  }
  const nlohmann::json json = read_json_object(path, {.bytes = kMaxMetaBytes});
  for (const auto& [name, list] : json.items()) {
    for (const auto& entry : list) {
      if (!entry.is_string()) {
        throw Error(ErrorKind::data,
                    fmt::format("{}: an entry of '{}' is not a string", path.string(), name));
      }
      entries.emplace_back(entry.get<std::string>(),
                           fmt::format("{}: entry of '{}'", path.string(), name));
    }
  }
  return entries;
}

/// Bossard et al. 2014, "Food-101 - mining discriminative components with random forests". The
/// label of a class is its line in meta/classes.txt, as in the Hugging Face data set; readers that
/// sort the names differ in two labels.
ImageList list_food101(const fs::path& root, Split split) {
  std::map<std::string, int, std::less<>> labels;
  std::vector<std::string> names;
  for (const auto& [name, number] : read_lines(root / "meta" / "classes.txt")) {
    if (!labels.emplace(name, static_cast<int>(labels.size())).second) {
      throw Error(ErrorKind::data,
                  fmt::format("{}:{}: class '{}' is there twice",
                              (root / "meta" / "classes.txt").string(), number, name));
    }
    names.push_back(name);
  }
  ImageList list{.root = root / "images",
                 .classes = static_cast<int>(labels.size()),
                 .class_names = std::move(names)};
  for (const auto& [entry, where] :
       read_split(root / "meta", split == Split::train ? "train" : "test")) {
    const auto slash = entry.find('/');
    if (slash == std::string::npos || slash + 1 == entry.size() ||
        entry.find('/', slash + 1) != std::string::npos) {
      throw Error(ErrorKind::data, fmt::format("{}: '{}' is not CLASS/ID", where, entry));
    }
    const auto label = labels.find(std::string_view(entry).substr(0, slash));
    if (label == labels.end()) {
      throw Error(ErrorKind::data, fmt::format("{}: class '{}' is not in classes.txt", where,
                                               entry.substr(0, slash)));
    }
    list.items.push_back({entry + ".jpg", label->second});
  }
  if (list.items.empty()) {
    throw Error(ErrorKind::data,
                fmt::format("{} lists no images for this split", (root / "meta").string()));
  }
  return list;
}

std::unique_ptr<ImageDataset> open_food101(const DataConfig& data, Split split, int image_size,
                                           std::int64_t, ProgressSink* progress) {
  const fs::path root = required_folder(data, "the folder with images/ and meta/");
  if (holds_parquet_images(root)) return open_parquet_images(data, split, image_size, progress);
  refuse_label(data);
  return open_image_files(list_food101(root, split), data, split, image_size, progress);
}

}  // namespace

const ImageFormat kFood101 = {
    .name = DatasetName::food101,
    .open = open_food101,
    .shape = square_shape,
    .facts = [](const DataConfig& data) { return facts_of_files(data, list_food101); },
    .packed = [](const DataConfig& data) { return holds_parquet_images(data.path); },
};

}  // namespace dstrain::formats
