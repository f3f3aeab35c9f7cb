#include "engine/draft/data_facts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>

#include "engine/base/error.h"
#include "engine/base/input_file.h"
#include "engine/base/printable.h"
#include "engine/data/dataset.h"
#include "engine/hub/known_folders.h"

namespace dstrain::draft {
namespace {

namespace fs = std::filesystem;

constexpr int kAnySize = 224;  // of a model: what is asked does not depend on it
constexpr const char* kDataWords =
    "name a file or folder, ORG/NAME of the Hub, or cifar100, food101, squad, metamathqa or digits";
constexpr const char* kLookedFor =
    "looked for: a folder for each class with JPEG, PNG or WebP files (train/CLASS/ and "
    "test/CLASS/, or CLASS/), Food-101 (images/, meta/), CIFAR (binary or python version), parquet "
    "files of images, tar files of images (train-*.tar); train.jsonl, train.json or "
    "train-*.parquet, tar files of texts or chats (KEY.txt, KEY.json), SQuAD (train-v1.1.json), "
    "MetaMathQA (MetaMathQA-395K.json), tokens of `dstrain data prepare` (*.tokens)";

/// "3 .csv, 1 .zip": the files of a folder by the ends of their names; at most five of them.
std::string files_in(const fs::path& folder) {
  std::map<std::string, int> counts;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder, none)) {
    const std::string end = entry.path().extension().string();
    ++counts[entry.is_directory(none) ? "folders" : end.empty() ? "files without extension" : end];
  }
  std::vector<std::string> words;
  for (const auto& [name, count] : counts) {
    if (words.size() < 5) words.push_back(fmt::format("{} {}", count, shown(name)));
  }
  return fmt::format("{}{}", fmt::join(words, ", "), counts.size() > words.size() ? ", ..." : "");
}

/// What is packed must be unpacked, what is no data of a model be something else.
std::string hint_for_file(const fs::path& file) {
  const std::string end = file.extension().string();
  for (const char* packed : {".zip", ".gz", ".tgz", ".bz2", ".xz", ".zst", ".7z"}) {
    if (end == packed) return "unpack it and name the folder";
  }
  if (end == ".csv" || end == ".tsv")
    return "write each row as a JSON object on a line of its own, with the columns as fields";
  if (end == ".txt") return "write JSON Lines, such as {\"text\": \"...\"} for each text";
  return "JSON, JSON Lines and parquet files are read; images lie in a folder";
}

}  // namespace

DataWord read_data_word(const std::string& word) {
  DataWord data{.word = word};
  if (path_exists(word, ErrorKind::usage)) {
    data.path = word;
    return data;
  }
  data.digits = word == dataset_row(DatasetName::digits).spelling;
  data.archive = hub::find_archive(word);
  if (data.digits || data.archive != nullptr) return data;
  for (const hub::KnownFolder& one : hub::known_folders()) {
    if (!one.data.empty() && (word == one.data || word == one.id))
      data.hub =
          hub::HubName{.dataset = true, .id = std::string(one.id), .revision = {}, .file = {}};
  }
  if (data.hub) return data;
  const bool bare = hub::is_bare_name(word);
  data.hub = hub::parse_hub_name(bare ? "hf://datasets/" + word : word);
  if (!data.hub)
    throw Error(ErrorKind::usage, fmt::format("there is no data '{}'", shown(word)), kDataWords);
  if (!data.hub->dataset)
    throw Error(ErrorKind::usage, fmt::format("'{}' is a model, not a data set", shown(word)),
                "write hf://datasets/ORG/NAME");
  return data;
}

DataConfig config_of(DatasetName name, const std::string& path, const std::string& label) {
  DataConfig data;
  data.name = name;
  data.path = path;
  data.label = label;
  return data;
}

DataFacts look_at_data(const fs::path& path, const LookOptions& options) {
  const PathKind kind = path_kind(path);
  if (kind == PathKind::nothing)
    throw Error(ErrorKind::data, fmt::format("{} is not there", shown_path(path)), kDataWords);
  if (kind == PathKind::other) (void)open_input_file(path);  // says what it is
  auto facts = images_in(path, options);
  if (!facts) facts = text_in(path);
  if (facts) {
    facts->place = facts->path;
    return *std::move(facts);
  }
  if (kind != PathKind::folder)
    throw Error(ErrorKind::data, fmt::format("{} is no data of a known form", shown_path(path)),
                hint_for_file(path));
  const std::string there = files_in(path);
  throw Error(ErrorKind::data,
              there.empty() ? fmt::format("{} is empty", shown_path(path))
                            : fmt::format("{} holds no data of a known form, but {}",
                                          shown_path(path), there),
              kLookedFor);
}

DataFacts facts_of_archive(const hub::Archive& archive, const fs::path& folder) {
  const bool food = archive.name == dataset_row(DatasetName::food101).spelling;
  return {.name = food ? DatasetName::food101 : DatasetName::cifar100,
          .path = folder.string(),
          .form = fmt::format("{}, which launch brings", archive.about),
          .samples = food ? 75750 : 50000,
          .own_test = true,
          .classes = food ? 101 : 100};
}

DataFacts facts_of_digits() {
  const DatasetFacts facts = dataset_facts(config_of(DatasetName::digits, {}), kAnySize);
  return {.name = DatasetName::digits,
          .form = "part of dstrain",
          .samples = facts.train_size,
          .own_test = true,
          .classes = facts.classes,
          .channels = facts.shape.channels};
}

}  // namespace dstrain::draft
