#include "engine/data/text/jsonl.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/data/text/format.h"
#include "engine/data/text/json_lines.h"
#include "engine/data/text/prompts.h"
#include "engine/data/text/tar_records.h"
#include "engine/data/text/test_folders.h"
#include "engine/data/tokenizer/utf8.h"

namespace dstrain::text {
namespace {

/// A whole number beyond 64 bits keeps its digits, as text.
class LineReader final : public JsonBuilder {
 public:
  using JsonBuilder::JsonBuilder;
  bool number_float(number_float_t v, const string_t& digits) override {
    const bool whole = digits.find_first_of(".eE") == string_t::npos;
    return whole ? value(digits) : value(v);
  }
};

Sources find_jsonl(const DataConfig& data) {
  const std::filesystem::path path = data.path;
  if (auto tars = tar_sources(data, Folders::left)) return *std::move(tars);
  if (is_file(path)) return {.train = json_file(path), .test = {}};
  Sources found = {.train = json_file(path / "train.jsonl"), .test = {}};
  for (std::size_t i = 0; i < kTestFolders.size() && found.test.files.empty(); ++i)
    found.test = json_file(path / fmt::format("{}.jsonl", kTestFolders[i]));
  if (!found.train.files.empty()) return found;
  if (auto tars = tar_sources(data, Folders::taken)) return *std::move(tars);
  fail_missing(data, "a file, or a folder with train.jsonl, or with tar files");
}

void read_with_templates(const DataConfig& data, const SourceFiles& sources,
                         const std::filesystem::path& file, const std::string&,
                         const RecordSink& sink) {
  const auto read = sources.tar ? read_tar_fields : read_jsonl;
  read(file, Template(data.prompt, "data.prompt"), Template(data.response, "data.response"), sink);
}

void check_templates(const DataConfig& data) {
  const Template prompt(data.prompt, "data.prompt");
  if (!Template(data.response, "data.response").empty()) return;
  throw Error(ErrorKind::usage, "data.response is empty; data.name: jsonl needs it",
              "say which field is the answer, such as data.response: \"{answer}\"");
}

}  // namespace

std::string not_utf8(std::string_view text, std::string_view what) {
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint point = code_point_at(text, at);
    if (!point.valid) return fmt::format("not UTF-8 at byte {} of {}", at + 1, what);
    at += point.length;
  }
  return "";
}

std::string read_object(std::string_view json, std::string_view what, nlohmann::json& object) {
  if (json.size() > kMaxRecordBytes) return too_long(json.size());
  if (auto wrong = not_utf8(json, what); !wrong.empty()) return wrong;
  try {
    const JsonPlace place = [&](std::size_t byte) {
      return fmt::format("byte {} of {}", byte, what);
    };
    object = LineReader(json, place, {}).build();
  } catch (const Error& error) {
    return error.what();
  }
  if (!object.is_object()) return fmt::format("it is {}, expected an object", kind_of(object));
  return "";
}

std::string fill_record(const nlohmann::json& object, const Template& prompt,
                        const Template& response, Record& record) {
  if (auto wrong = prompt.fill(object, record.prompt); !wrong.empty()) return wrong;
  if (auto wrong = response.fill(object, record.response); !wrong.empty()) return wrong;
  if (is_blank(record.response)) return "its answer is empty";
  record.group = prompt.has_fields() ? record.prompt : record.response;
  return "";
}

void read_jsonl(const std::filesystem::path& path, const Template& prompt, const Template& response,
                const RecordSink& sink) {
  const MappedFile file(path);
  for_each_line(file, without_byte_order_mark(file.text()),
                [&](std::string_view line, std::int64_t number, double share) {
                  Record record{.number = number, .share = share};
                  nlohmann::json object;
                  record.problem = read_object(line, "the line", object);
                  if (record.problem.empty())
                    record.problem = fill_record(object, prompt, response, record);
                  sink(std::move(record));
                });
}

const TextFormat kJsonl = {.name = DatasetName::jsonl,
                           .find = find_jsonl,
                           .read = read_with_templates,
                           .check = check_templates,
                           .record = "line"};

}  // namespace dstrain::text
