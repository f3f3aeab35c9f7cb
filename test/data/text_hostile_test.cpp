#include <ctime>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/data/text/jsonl.h"
#include "engine/data/text/metamathqa.h"
#include "engine/data/text/split.h"
#include "engine/data/text/squad.h"
#include "test/data/text_files.h"
#include "test/support/catch.h"
#include "test/support/hostile_json.h"
#include "test/support/mutate.h"
#include "test/support/temp_dir.h"

/// Files of text that are made to hurt: each ends in records, bad ones named, or in Error{data}, at
/// once and in little memory.
namespace dstrain::text {
namespace {

using namespace test;
namespace fs = std::filesystem;

constexpr const char* kParquet = "test/data/corpus/parquet";

using Reader = std::function<void(const fs::path&, const RecordSink&)>;
void take_squad(const fs::path& file, const RecordSink& sink) { read_squad_json(file, sink); }
void take_metamathqa(const fs::path& file, const RecordSink& sink) {
  read_metamathqa_json(file, "", sink);
}
void take_jsonl(const fs::path& file, const RecordSink& sink) {
  read_jsonl(file, Template("{q}", "data.prompt"), Template("{a}", "data.response"), sink);
}

/// The problems of all records, then what ended reading if anything did.
std::vector<std::string> problems_of(const fs::path& path, const Reader& read) {
  std::vector<std::string> problems;
  try {
    read(path, [&](Record&& record) { problems.push_back(std::move(record.problem)); });
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::data);
    CHECK(std::string(error.what()).starts_with(path.string()));
    problems.emplace_back(error.what());
  }
  for (const std::string& problem : problems) CHECK(problem.size() < 1000);
  return problems;
}

double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

TEST_CASE("hostile JSON ends a JSON data set with its place", "[text][hostile]") {
  const TempDir folder;
  const fs::path path = folder / "data.json";
  for (const HostileJson& hostile : hostile_json()) {
    CAPTURE(hostile.name);
    write_text(path, hostile.text);
    for (const Reader& read : {Reader(take_squad), Reader(take_metamathqa)}) {
      const auto problems = problems_of(path, read);
      REQUIRE(problems.size() == 1);
      CHECK(problems[0].starts_with(path.string() + ": byte "));
    }
  }
}

TEST_CASE("a hostile line of JSONL costs only itself", "[text][hostile]") {
  const TempDir folder;
  const fs::path path = folder / "data.jsonl";
  const std::string good = "{\"q\": \"1+1\", \"a\": \"2\"}\n";
  std::size_t tried = 0;
  for (const HostileJson& hostile : hostile_json()) {
    if (hostile.text.find_first_not_of(" \t\n") == std::string::npos) continue;  // a blank line
    CAPTURE(hostile.name);
    write_text(path, good + hostile.text + "\n" + good);
    const auto problems = problems_of(path, take_jsonl);
    REQUIRE(problems.size() == 3);
    CHECK(problems[0].empty());
    CHECK(problems[1] != "");
    CHECK(problems[2].empty());
    ++tried;
  }
  CHECK(tried > 25);
  write_text(path, "{\"q\": 1e999, \"a\": \"2\"}");
  CHECK(problems_of(path, take_jsonl)[0] ==
        "byte 11 of the line: not JSON: a number beyond the range of double");
}

TEST_CASE("a number beyond double in JSONL is skipped, or stops with its line", "[text][hostile]") {
  const TempDir folder;
  write_text(folder / "train.jsonl",
             repeated("{\"q\": \"1+1\", \"a\": \"2\"}\n", 9) + "{\"q\": 1e999, \"a\": \"2\"}\n");
  DataConfig data = text_config(DatasetName::jsonl, folder.path(), folder / "cache");
  data.prompt = "{q}";
  data.response = "{a}";
  data.test_share = 0;
  CHECK_NOTHROW(open_split(data, false, byte_encoder(), nullptr));
  data.bad_record = BadRecord::stop;
  CHECK_THROWS_WITH(open_split(data, false, byte_encoder(), nullptr),
                    Catch::Contains("train.jsonl: line 10: byte 11 of the line: not JSON"));
}

TEST_CASE("a record that is too long is named and costs only itself", "[text][hostile]") {
  const TempDir folder;
  const std::string good = "{\"q\": \"1+1\", \"a\": \"2\"}\n";
  const std::string lengthy(kMaxRecordBytes, 'x');
  const fs::path lines = folder / "data.jsonl";
  write_text(lines, good + "{\"q\": \"" + lengthy + "\", \"a\": \"2\"}\n" + good);
  CHECK(problems_of(lines, take_jsonl) ==
        std::vector<std::string>{"", "16777235 bytes, a record has at most 16777216", ""});
  const fs::path json = folder / "data.json";
  write_text(json, "[{\"query\": \"a\", \"response\": \"b\"}, {\"query\": \"" + lengthy + "\"}]");
  const auto problems = problems_of(json, take_metamathqa);
  REQUIRE(problems.size() == 2);
  CHECK(problems[1] == json.string() + ": byte 41: the next value has more than 16777216 bytes");
}

TEST_CASE("a text that its template makes too long is a bad record", "[text][hostile]") {
  const TempDir folder;
  const std::string good = "{\"q\": \"1+1\", \"a\": \"2\"}\n";
  write_text(folder / "train.jsonl",
             good + "{\"q\": \"" + std::string(kMaxRecordBytes / 2, 'x') + "\", \"a\": \"2\"}\n");
  DataConfig data = text_config(DatasetName::jsonl, folder.path(), folder / "cache");
  data.prompt = "{q} {q}";
  data.response = "{a}";
  data.test_share = 0;
  data.bad_record = BadRecord::stop;
  CHECK_THROWS_WITH(
      open_split(data, false, byte_encoder(), nullptr),
      Catch::Contains("train.jsonl: line 2: 16777218 bytes, a record has at most 16777216"));
}

TEST_CASE("mutated files of text are read or refused", "[text][hostile]") {
  const TempDir folder;
  std::mt19937 random(7);
  const auto try_all = [&](const std::string& name, const std::string& seed, const Reader& read,
                           int count) {
    const fs::path path = folder / name;
    const double begin = cpu_seconds();
    std::size_t refused = 0;
    for (int i = 0; i < count; ++i) {
      CAPTURE(name, i);
      write_text(path, mutated(seed, random));
      for (const std::string& problem : problems_of(path, read)) refused += problem.empty() ? 0 : 1;
    }
    CHECK(refused > static_cast<std::size_t>(count) / 4);
    CHECK(cpu_seconds() - begin < 15);
  };
  const Json question = squad_question("Which?", "Limmat", 19);
  try_all("squad.json", squad_file("Zürich lies on the Limmat.", {question, question}).dump(),
          take_squad, 1500);
  try_all("meta.json",
          Json::array({metamathqa_entry("a", "b", "c"), metamathqa_entry("d", "e", "f")}).dump(),
          take_metamathqa, 1500);
  try_all("lines.jsonl", repeated("{\"q\": \"1+1\", \"a\": \"2\"}\n", 3), take_jsonl, 1500);
  std::size_t seeds = 0;
  for (const auto& entry : fs::directory_iterator(kParquet)) {
    const std::string name = entry.path().filename().string();
    const bool is_squad = name.starts_with("squad");
    const Reader read = [is_squad](const fs::path& file, const RecordSink& sink) {
      if (is_squad) return read_squad_parquet(file, false, sink);
      read_metamathqa_parquet(file, "", sink);
    };
    for (const std::string& problem : problems_of(entry.path(), read)) CHECK(problem == "");
    try_all(name, read_file(entry.path()), read, 300);
    ++seeds;
  }
  CHECK(seeds == 5);
}

}  // namespace
}  // namespace dstrain::text
