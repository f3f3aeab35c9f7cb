#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/input_file.h"
#include "engine/data/text/format.h"
#include "engine/data/text/json_lines.h"
#include "engine/data/text/parquet.h"
#include "engine/data/text/tar_records.h"
#include "engine/data/text/test_folders.h"

/// Conversations: one JSON object a line, or a list of them in one file, or rows of parquet files,
/// or members of tar files.
/// What is inside of a record is read where it is encoded (chat_encoder.h).
namespace dstrain::text {
namespace {

namespace fs = std::filesystem;

/// The fields that chats have, in any form.
constexpr const char* kFields[] = {"messages", "tools",   "conversations", "system",
                                   "history",  "prompt",  "completion",    "response",
                                   "input",    "output",  "instruction",   "chat_template_kwargs",
                                   "chosen",   "rejected"};

SourceFiles split_of(const fs::path& folder, const std::vector<std::string_view>& names) {
  for (const std::string_view name : names) {
    for (const char* extension : {".jsonl", ".json"})
      if (auto found = json_file(folder / fmt::format("{}{}", name, extension));
          !found.files.empty())
        return found;
    for (const fs::path& place : {folder, folder / "data", folder / "default" / std::string(name)})
      if (auto parts = parquet_files(place, fmt::format("{}-", name)); !parts.files.empty())
        return parts;
  }
  return {};
}

Sources find_chats(const DataConfig& data) {
  const fs::path path = data.path;
  if (auto tars = tar_sources(data, Folders::left)) return *std::move(tars);
  if (is_file(path))
    return {.train = {.files = {path}, .parquet = path.extension() == ".parquet"}, .test = {}};
  std::vector<std::string_view> tests(kTestFolders.begin(), kTestFolders.end());
  tests.insert(data.pairs ? tests.begin() : tests.begin() + 1,
               data.pairs ? "test_prefs" : "test_sft");
  Sources found = {.train = data.pairs ? split_of(path, {"train_prefs", "train"})
                                       : split_of(path, {"train", "train_sft"}),
                   .test = split_of(path, tests)};
  if (!found.train.files.empty()) return found;
  if (auto tars = tar_sources(data, Folders::taken)) return *std::move(tars);
  std::vector<fs::path> single;
  for (const char* extension : {".jsonl", ".json", ".parquet"})
    for (const fs::path& file : list_files(path, "", extension)) single.push_back(file);
  std::erase_if(single,
                [](const fs::path& file) { return file.filename() == "dataset_infos.json"; });
  if (single.size() == 1)
    return {.train = {.files = single, .parquet = single[0].extension() == ".parquet"}, .test = {}};
  fail_missing(data,
               "a file, or a folder with train.jsonl, train.json, train-*.parquet or tar files");
}

/// Where the JSON value that begins at `at` ends; npos where it does not.
std::size_t end_of_value(std::string_view text, std::size_t at) {
  int depth = 0;
  bool quoted = false;
  for (; at < text.size(); ++at) {
    const char c = text[at];
    if (quoted) {
      if (c == '\\') ++at;
      if (c == '"') quoted = false;
      continue;
    }
    if (depth == 0 && (c == ',' || c == ']')) return at;
    if (c == '"') quoted = true;
    if (c == '{' || c == '[') ++depth;
    if ((c == '}' || c == ']') && --depth == 0) return at + 1;
  }
  return std::string_view::npos;
}

std::size_t skip_blank(std::string_view text, std::size_t at) {
  return std::min(text.find_first_not_of(" \t\r\n", at), text.size());
}

/// A record whose JSON is `json`, unless it is too long.
Record record_of(std::string_view json, std::int64_t number, double share) {
  Record record{.number = number, .share = share};
  if (json.size() > kMaxRecordBytes)
    record.problem = too_long(json.size());
  else
    record.prompt = json;
  return record;
}

/// The entries of a list.
void read_list(const fs::path& path, const MappedFile& file, std::string_view text,
               const RecordSink& sink) {
  const auto size = static_cast<double>(text.size());
  const auto fail = [&](std::size_t at, const char* what) {
    throw Error(ErrorKind::data, fmt::format("{}: byte {}: {}", path.string(), at + 1, what),
                "a list of JSON objects, or one object a line, is read");
  };
  std::size_t at = skip_blank(text, 1);
  for (std::int64_t number = 1; at < text.size() && text[at] != ']'; ++number) {
    const std::size_t end = end_of_value(text, at);
    if (end == std::string_view::npos || end == at) fail(at, "the list does not end");
    file.have_read(end - at);
    sink(record_of(text.substr(at, end - at), number, static_cast<double>(end) / size));
    at = skip_blank(text, end);
    if (at < text.size() && text[at] == ',')
      at = skip_blank(text, at + 1);
    else if (at >= text.size() || text[at] != ']')
      fail(at, "',' or ']' is expected");
  }
  if (at >= text.size()) fail(text.size(), "the list does not end");
}

void read_parquet(const fs::path& file, const RecordSink& sink) {
  std::vector<ParquetColumn> columns;
  for (const char* name : kFields)
    columns.push_back({.name = name, .type = ParquetType::json, .optional = true});
  for_each_parquet_row(
      file, columns, [&](const ParquetRow& row, std::int64_t number, double share) {
        Record record{.number = number, .share = share};
        std::string json;
        for (std::size_t i = 0; i < row.size(); ++i) {
          if (row[i]->null) continue;
          json +=
              fmt::format("{}\"{}\":{}", json.empty() ? "{" : ",", kFields[i], row[i]->texts[0]);
        }
        record.prompt = json.empty() ? "{}" : json + "}";
        sink(std::move(record));
      });
}

void read_chats(const DataConfig&, const SourceFiles& sources, const fs::path& path,
                const std::string&, const RecordSink& sink) {
  if (sources.parquet) return read_parquet(path, sink);
  if (sources.tar) return read_tar_objects(path, sink);
  const MappedFile file(path);
  std::string_view text = without_byte_order_mark(file.text());
  text.remove_prefix(skip_blank(text, 0));
  if (text.starts_with('[')) return read_list(path, file, text, sink);
  for_each_line(file, text, [&](std::string_view line, std::int64_t number, double share) {
    sink(record_of(line, number, share));
  });
}

}  // namespace

const TextFormat kChat = {.name = DatasetName::chat, .find = find_chats, .read = read_chats};

}  // namespace dstrain::text
