#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <iterator>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/input_file.h"
#include "engine/base/printable.h"
#include "engine/chat/json_reader.h"
#include "engine/data/text/format.h"
#include "engine/data/text/json_lines.h"
#include "engine/data/text/jsonl.h"
#include "engine/data/text/parquet.h"
#include "engine/data/text/sources.h"
#include "engine/data/text/tar_records.h"
#include "engine/data/text/tar_shards.h"
#include "engine/data/text/token_file.h"
#include "engine/draft/data_facts.h"

namespace dstrain::draft {
namespace {

namespace fs = std::filesystem;

/// The first record of a file.
struct FirstRecord {
  enum class Kind { lines, list, parquet, squad };
  Kind kind = Kind::lines;
  std::vector<std::string> fields = {};  ///< in their order
  std::vector<std::string> simple = {};  ///< of them, those that a template can name

  [[nodiscard]] bool has(std::initializer_list<std::string_view> names) const {
    return std::ranges::all_of(names, [this](std::string_view name) {
      return std::ranges::find(fields, name) != fields.end();
    });
  }
};

/// Ends a reader that would go through the whole file.
struct FirstIsRead {};

FirstRecord first_of_parquet(const fs::path& file) {
  FirstRecord record{.kind = FirstRecord::Kind::parquet};
  for (const text::ParquetField& field : text::open_parquet(file, {})->fields())
    record.fields.push_back(field.name);
  return record;
}

/// Whether a file is one JSON object with SQuAD's articles.
bool is_squad_json(std::string_view text) {
  constexpr std::size_t kHead = std::size_t{64} << 10;
  const std::string_view head = text.substr(0, kHead);
  return head.starts_with('{') && head.find("\"paragraphs\"") != std::string_view::npos &&
         head.find("\"data\"") != std::string_view::npos;
}

/// Adds the fields of a JSON object, which `place` says where it is.
void add_fields(FirstRecord& record, std::string_view json, const std::string& place,
                const std::string& wanted) {
  const chat::Value value = chat::read_json_value(
      json, [&](std::size_t byte) { return fmt::format("{}: byte {}", place, byte); });
  if (value.as_dict() == nullptr)
    throw Error(ErrorKind::data,
                fmt::format("{} is a {}, not an object", place, chat::type_name(value)), wanted);
  for (const auto& [key, field] : value.as_dict()->entries()) {
    record.fields.push_back(key.bytes());
    const bool one = !field.is_none() && field.as_list() == nullptr && field.as_dict() == nullptr;
    if (one && key.bytes().find_first_of("{}") == std::string::npos)
      record.simple.push_back(key.bytes());
  }
}

FirstRecord first_of_json(const fs::path& path) {
  FirstRecord record;
  {
    const MappedFile file(path);
    std::string_view text = text::without_byte_order_mark(file.text());
    text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
    if (text.empty())
      throw Error(ErrorKind::data, fmt::format("{} is empty", shown_path(path)),
                  "a file with a JSON object a line is wanted");
    if (text.starts_with('[')) record.kind = FirstRecord::Kind::list;
    if (is_squad_json(text)) {
      record.kind = FirstRecord::Kind::squad;
      return record;
    }
  }
  std::string json;
  try {
    // It takes lines and lists apart, whatever is in them.
    text::kChat.read({}, {.files = {path}}, path, "", [&](text::Record&& first) {
      if (!first.problem.empty())
        throw Error(ErrorKind::data, fmt::format("{}: record {}: {}", shown_path(path),
                                                 first.number, first.problem));
      json = std::move(first.prompt);
      throw FirstIsRead();
    });
    throw Error(ErrorKind::data, fmt::format("{} is an empty list", shown_path(path)),
                "a list of JSON objects, or one object a line, is wanted");
  } catch (const FirstIsRead&) {
  }
  add_fields(record, json, fmt::format("{}: record 1", shown_path(path)),
             "a JSON object a line is wanted, or a list of objects");
  return record;
}

std::string fields_of(const FirstRecord& record) {
  return shown(fmt::format("{}", fmt::join(record.fields, ", ")), 200);
}

bool is_pair(const FirstRecord& record) { return record.has({"chosen", "rejected"}); }

/// The format whose records have such fields; jsonl where it is none of the others.
DatasetName format_of(const FirstRecord& record, const fs::path& file) {
  using Kind = FirstRecord::Kind;
  if (record.kind == Kind::squad) return DatasetName::squad;
  if (is_pair(record)) return DatasetName::chat;
  if (record.kind == Kind::parquet && record.has({"context", "question", "answers"}))
    return DatasetName::squad;
  if (record.kind != Kind::lines && record.has({"query", "response", "original_question"}))
    return DatasetName::metamathqa;
  if (record.has({"messages"}) || record.has({"conversations"}) ||
      record.has({"instruction", "output"}) || record.has({"prompt", "completion"}) ||
      record.has({"prompt", "response"}))
    return DatasetName::chat;
  if (record.kind == Kind::lines) return DatasetName::jsonl;
  throw Error(ErrorKind::data,
              fmt::format("{} has the fields {}: it is no chat, and other records are read as JSON "
                          "Lines",
                          shown_path(file), fields_of(record)),
              "write one JSON object a line, such as {\"question\": \"...\", \"answer\": \"...\"}");
}

/// The fields of the object in a tar's first sample; where that is no chat, also the texts beside
/// it.
FirstRecord first_of_tar(const fs::path& path) {
  const TarFile tar(path);
  const std::vector<text::TarSample> samples = text::tar_samples(tar);
  FirstRecord object;
  std::vector<std::string> texts;
  const auto members =
      samples.empty() ? std::vector<std::pair<std::string, TarMember>>() : samples.front().members;
  for (const auto& [ending, member] : members) {
    if (std::cmp_greater(member.bytes, text::kMaxRecordBytes)) continue;
    const std::string content = tar.read(member.offset, member.bytes);
    if (text::is_object_ending(ending)) {
      add_fields(object, text::without_byte_order_mark(content),
                 fmt::format("{}: {}", shown_path(path), shown(member.name)),
                 "a sample's .json is one object");
    } else if (text::not_utf8(content, "").empty()) {
      texts.push_back(ending);
    }
  }
  if (object.fields.empty() && texts.empty())
    throw Error(
        ErrorKind::data,
        fmt::format("{} holds neither images nor texts in its first sample", shown_path(path)),
        "members are called KEY.jpg and KEY.cls, or KEY.json, KEY.txt");
  if (format_of(object, path) == DatasetName::chat) return object;
  object.fields.insert(object.fields.end(), texts.begin(), texts.end());
  std::ranges::copy_if(texts, std::back_inserter(object.simple), [](const std::string& name) {
    return name.find_first_of("{}") == std::string::npos;
  });
  return object;
}

/// The first of `names` that is a simple field.
std::string first_named(const std::vector<std::string>& fields,
                        std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) {
    if (std::ranges::find(fields, name) != fields.end()) return std::string(name);
  }
  return "";
}

void guess_fields(DataFacts& facts) {
  const std::string answer =
      first_named(facts.fields, {"answer", "response", "output", "completion", "target", "label",
                                 "summary", "reply", "translation", "solution"});
  std::string question =
      first_named(facts.fields, {"question", "problem", "query", "instruction", "prompt", "input",
                                 "source", "text", "txt", "document", "article", "sentence"});
  if (!answer.empty() && !question.empty()) return name_fields(facts, question, answer);
  if (answer.empty() && (question == "text" || question == "txt"))
    return name_fields(facts, "", question);
  if (facts.fields.size() == 1) return name_fields(facts, "", facts.fields[0]);
  if (facts.fields.size() == 2) return name_fields(facts, facts.fields[0], facts.fields[1]);
}

/// The training file whose first record tells the format; nothing where the folder has no file of
/// text. Error{data} where it has some, but none that is meant.
std::optional<fs::path> training_file(const fs::path& folder) {
  std::optional<Error> wrong;
  for (const DatasetName name : {DatasetName::squad, DatasetName::chat, DatasetName::metamathqa}) {
    try {
      return text::find_sources(config_of(name, folder.string())).train.files.front();
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::usage) throw;
      if (name == DatasetName::chat) wrong = error;
    }
  }
  for (const char* end : {".jsonl", ".json", ".parquet"}) {
    if (!text::list_files(folder, "", end).empty()) throw Error(*wrong);
  }
  return std::nullopt;
}

/// Tokens that `dstrain data prepare` has made.
DataFacts tokens_in(const fs::path& path) {
  const text::Sources sources = text::find_sources(config_of(DatasetName::tokens, path.string()));
  const fs::path& first = sources.train.files.front();
  std::string problem;
  const auto file = text::TokenFile::open_any(first, problem);
  if (!file)
    throw Error(ErrorKind::data, fmt::format("{}: {}", shown_path(first), problem),
                "fetch it again, or prepare its source again");
  const text::TokenFileSummary& summary = file->summary();
  return {.name = DatasetName::tokens,
          .path = path.string(),
          .form = fmt::format("{} has tokens of {}, which dstrain data prepare has made",
                              first.filename().string(), shown(summary.set)),
          .own_test = !sources.test.files.empty(),
          .marked = summary.marked};
}

}  // namespace

void name_fields(DataFacts& facts, const std::string& question, const std::string& answer) {
  for (const std::string& field : {question, answer}) {
    if (field.empty() || std::ranges::find(facts.fields, field) != facts.fields.end()) continue;
    throw Error(
        ErrorKind::usage, fmt::format("the records have no field '{}'", shown(field)),
        fmt::format("they have {}", shown(fmt::format("{}", fmt::join(facts.fields, ", ")), 200)));
  }
  facts.question = question;
  facts.answer = answer;
  if (question.empty()) {
    facts.prompt.clear();
    facts.response = fmt::format("{{{}}}", answer);
    return;
  }
  const bool asked = question == "question" || question == "problem" || question == "query";
  const bool context = asked && std::ranges::find(facts.fields, "context") != facts.fields.end();
  facts.prompt =
      asked ? fmt::format("{}Question: {{{}}}\nAnswer:", context ? "Context: {context}\n" : "",
                          question)
            : fmt::format("{{{}}}\n", question);
  facts.response = fmt::format("{}{{{}}}", asked ? " " : "", answer);
}

std::optional<DataFacts> text_in(const fs::path& path) {
  const bool folder = path_kind(path) == PathKind::folder;
  const std::string end = path.extension().string();
  if (!folder && end == ".tokens") return tokens_in(path);
  if (!folder && end != ".json" && end != ".jsonl" && end != ".parquet" &&
      !is_tar_name(path.string()))
    return std::nullopt;
  const std::optional<fs::path> file = folder ? training_file(path) : path;
  if (!file)
    return text::list_files(path, "", ".tokens").empty() ? std::nullopt
                                                         : std::optional(tokens_in(path));
  const bool tar = is_tar_name(file->string());
  const FirstRecord record = tar                               ? first_of_tar(*file)
                             : file->extension() == ".parquet" ? first_of_parquet(*file)
                                                               : first_of_json(*file);
  DataFacts facts{.name = format_of(record, *file), .path = path.string()};
  if (record.kind == FirstRecord::Kind::squad) {
    facts.form = fmt::format("{} has SQuAD's articles", file->filename().string());
  } else {
    facts.form = fmt::format("{} has the fields {}", file->filename().string(), fields_of(record));
  }
  if (facts.name == DatasetName::jsonl) {
    facts.fields = record.simple;
    if (record.simple.empty())
      throw Error(ErrorKind::data,
                  fmt::format("{}: record 1 has no field with a text: it has {}", shown_path(*file),
                              fields_of(record)),
                  "chats have messages or conversations; other records have a text in a field");
    guess_fields(facts);
    if (folder && !tar && file->filename() != "train.jsonl") facts.path = file->string();
  }
  facts.pairs = is_pair(record);
  const text::Sources sources = text::find_sources(config_of(facts.name, facts.path));
  facts.own_test = !sources.test.files.empty();
  return facts;
}

}  // namespace dstrain::draft
