#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "engine/base/error.h"
#include "engine/base/input_file.h"
#include "engine/base/json.h"
#include "engine/base/tar_file.h"
#include "engine/data/formats.h"
#include "engine/data/images/image_listing.h"
#include "engine/data/text/file_stamp.h"
#include "engine/data/text/hash.h"
#include "engine/data/text/progress_sink.h"
#include "engine/data/text/tar_shards.h"
#include "engine/data/text/test_folders.h"
#include "engine/data/text/token_cache.h"

/// Tar files as WebDataset writes them: members of one name up to its first dot are a sample.
namespace dstrain::formats {
namespace {

namespace fs = std::filesystem;
constexpr int kMaxClasses = 1 << 20;
constexpr std::uint64_t kMaxIndexBytes = std::uint64_t{1} << 32;

/// Where the label of a sample stands.
struct LabelPlace {
  std::string ending;  ///< of the member
  std::string field;   ///< of its JSON object; empty: its text is the number
};

LabelPlace label_place(const DataConfig& data) {
  constexpr std::string_view kJson = "json.";
  if (data.label.empty()) return {.ending = "cls", .field = {}};
  if (data.label.starts_with(kJson))
    return {.ending = "json", .field = data.label.substr(kJson.size())};
  return {.ending = data.label, .field = {}};
}

std::optional<std::int64_t> whole_number(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r\n";
  const std::size_t begin = text.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) return std::nullopt;
  text = text.substr(begin, text.find_last_not_of(kBlank) + 1 - begin);
  std::int64_t value = 0;
  const auto [end, mistake] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (mistake != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

int read_label(const TarFile& tar, const TarMember& member, const LabelPlace& place) {
  constexpr std::int64_t kMaxBytes = 16 << 20;
  const std::string name = fmt::format("{}: {}", tar.path().string(), member.name);
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorKind::data, fmt::format("{}: {}", name, what),
                "a class is a whole number from 0; data.label names the ending of the members that "
                "have it, or json.FIELD");
  };
  if (member.bytes > kMaxBytes) refuse(fmt::format("{} bytes are no class", member.bytes));
  const std::string text = tar.read(member.offset, member.bytes);
  std::optional<std::int64_t> label;
  if (place.field.empty()) {
    label = whole_number(text);
    if (!label) refuse(fmt::format("'{}' is no class", shown_text(text, 40)));
  } else {
    const nlohmann::json json = parse_json(text, name);
    const auto field = json.is_object() ? json.find(place.field) : json.end();
    if (!json.is_object() || field == json.end()) refuse(fmt::format("no field '{}'", place.field));
    if (field->is_number_integer()) label = field->get<std::int64_t>();
    if (!label) refuse(fmt::format("field '{}' is {}, no class", place.field, shown_json(*field)));
  }
  if (*label < 0 || *label >= kMaxClasses) refuse(fmt::format("{} is no class", *label));
  return static_cast<int>(*label);
}

struct Sample {
  TarMember image;
  int label = 0;
};

/// The images of a tar with their labels, in the order of the images.
std::vector<Sample> index_of(const TarFile& tar, const LabelPlace& place) {
  struct Parts {
    std::optional<TarMember> image, label;
  };
  std::map<std::string, Parts> by_key;
  const auto set = [&](std::optional<TarMember>& part, TarMember& member, const std::string& key) {
    if (part)
      throw Error(ErrorKind::data,
                  fmt::format("{}: sample {} has both {} and {}", tar.path().string(), key,
                              part->name, member.name),
                  "a sample has one image; a name up to its first dot tells samples apart");
    part = std::move(member);
  };
  for (TarMember& member : tar.members()) {
    const std::optional<TarName> name = tar_name(member.name);
    if (!name) continue;
    const auto& [key, ending] = *name;
    if (ending == place.ending) {
      set(by_key[key].label, member, key);
    } else if (ending.find('.') == std::string::npos && is_image_name("x." + ending)) {
      set(by_key[key].image, member, key);
    }
  }
  std::vector<Sample> samples;
  for (auto& [key, parts] : by_key) {
    if (!parts.image) continue;
    if (!parts.label)
      throw Error(ErrorKind::data,
                  fmt::format("{}: {} has no {}.{} beside it", tar.path().string(),
                              parts.image->name, key, place.ending),
                  "data.label names the ending of the members with the classes, or json.FIELD");
    const int label = read_label(tar, *parts.label, place);
    samples.push_back({std::move(*parts.image), label});
  }
  std::ranges::sort(samples, {}, [](const Sample& one) { return one.image.offset; });
  return samples;
}

/// One line.
std::string to_text(const std::vector<Sample>& samples) {
  std::string text;
  for (const Sample& one : samples)
    text += fmt::format("{} {} {} {}\t", one.image.offset, one.image.bytes, one.label,
                        nlohmann::json(one.image.name)
                            .dump(-1, ' ', true, nlohmann::json::error_handler_t::replace));
  return text + "end\t";
}

/// Nothing for what to_text() has not written whole.
std::optional<std::vector<Sample>> from_text(std::string_view text) {
  std::vector<Sample> samples;
  while (true) {
    const std::size_t end = text.find('\t');
    if (end == std::string_view::npos) return std::nullopt;
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end + 1);
    if (line == "end") return samples;
    std::array<std::int64_t, 3> numbers{};
    for (std::int64_t& number : numbers) {
      const std::size_t blank = line.find(' ');
      const auto value = whole_number(line.substr(0, blank));
      if (blank == std::string_view::npos || !value) return std::nullopt;
      number = *value;
      line.remove_prefix(blank + 1);
    }
    const nlohmann::json name = json_or_null(line);
    if (!name.is_string()) return std::nullopt;
    samples.push_back(
        {{name.get<std::string>(), numbers[0], numbers[1]}, static_cast<int>(numbers[2])});
  }
}

/// index_of(), remembered in the cache for as long as the tar is as it was.
std::vector<Sample> remembered_index(const TarFile& tar, const DataConfig& data) {
  const fs::path folder = text::make_cache_folder(data, "images");
  const std::string place =
      fmt::format("tar index 1\n{}\n{}", fs::absolute(tar.path()).string(), data.label);
  const fs::path memory = folder / (text::hash128(place) + ".tar-index");
  const auto stamp = text::stamp_of(tar.path());
  if (stamp) {
    if (const auto known = text::read_stamped(memory, *stamp, kMaxIndexBytes)) {
      if (auto samples = from_text(*known)) return *std::move(samples);
    }
  }
  std::vector<Sample> samples = index_of(tar, label_place(data));
  if (stamp) text::write_stamped(memory, *stamp, to_text(samples));
  return samples;
}

ImageList list_tars(const DataConfig& data, const TarShards& tars, Split split) {
  const std::vector<std::string>& names = split == Split::train ? tars.train : tars.test;
  if (names.empty()) {
    throw Error(
        ErrorKind::data,
        split == Split::train
            ? fmt::format("data.path '{}' holds no tar; expected {}", data.path, kTarShards)
            : fmt::format("{} has no tar for evaluation: none in it has a word of {} in its name",
                          tars.root.string(), fmt::join(kTestFolders, ", ")),
        split == Split::train ? "put them there, or name their place with --set data.path=..."
                              : "put it beside the others, or set run.evaluate: never");
  }
  ImageList list{.root = tars.root};
  auto archives = std::make_shared<std::vector<TarFile>>();
  for (const std::string& name : names) {
    archives->emplace_back(tars.root / name);
    const auto archive = static_cast<std::int32_t>(archives->size() - 1);
    for (Sample& one : remembered_index(archives->back(), data)) {
      list.items.push_back({.file = std::move(one.image.name),
                            .label = one.label,
                            .archive = archive,
                            .offset = one.image.offset,
                            .bytes = one.image.bytes});
      list.classes = std::max(list.classes, one.label + 1);
    }
  }
  list.archives = std::move(archives);
  if (list.items.empty())
    throw Error(ErrorKind::data,
                fmt::format("{} holds no image", (tars.root / names.front()).string()),
                "members are called KEY.jpg, KEY.png or KEY.webp, and KEY.cls");
  return list;
}

std::unique_ptr<ImageDataset> open_webdataset(const DataConfig& data, Split split, int image_size,
                                              std::int64_t, ProgressSink* progress) {
  if (data.path.empty())
    throw Error(ErrorKind::usage,
                fmt::format("data.path is empty; it must name tar files: {}", kTarShards),
                "set data.path in the recipe or with --set data.path=...");
  const auto tars = find_tar_shards(data.path);
  if (!tars)
    throw Error(ErrorKind::data,
                fmt::format("data.path '{}' is not there; expected {}", data.path, kTarShards),
                "put the data there, or name its place with --set data.path=...");
  ImageList list = list_tars(data, *tars, split);
  if (const std::string splits = tars->describe();
      progress != nullptr && split == Split::train && !splits.empty())
    progress->note(splits);
  if (split == Split::test) {
    const int classes = list_tars(data, *tars, Split::train).classes;
    const auto other = std::ranges::find_if(
        list.items, [&](const ImageList::Item& item) { return item.label >= classes; });
    if (other != list.items.end())
      throw Error(ErrorKind::data,
                  fmt::format("{}: its class is {}, those of training are 0 to {}",
                              list.name(*other, 0), other->label, classes - 1),
                  "the test split has classes that training lacks");
    list.classes = classes;
  }
  return open_image_files(std::move(list), data, split, image_size, progress);
}

}  // namespace

const ImageFormat kWebDataset = {
    .name = DatasetName::webdataset,
    .open = open_webdataset,
    .shape = square_shape,
    .facts =
        [](const DataConfig& data) {
          const auto tars = find_tar_shards(data.path);
          if (!tars) return DatasetFacts{};
          const ImageList list = list_tars(data, *tars, Split::train);
          return DatasetFacts{.classes = list.classes,
                              .shape = {},
                              .train_size = static_cast<std::int64_t>(list.items.size())};
        },
};

}  // namespace dstrain::formats
