#include <fmt/format.h>

#include "engine/data/text/jsonl.h"
#include "engine/data/text/metamathqa.h"
#include "engine/data/text/prompts.h"
#include "engine/data/text/sources.h"
#include "engine/data/text/squad.h"
#include "test/data/text_files.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"

namespace dstrain::text {
namespace {

using namespace test;

std::vector<Record> squad(const std::string& content) {
  const TempDir folder;
  write_text(folder / "train.json", content);
  std::vector<Record> records;
  read_squad_json(folder / "train.json", [&](Record&& r) { records.push_back(std::move(r)); });
  return records;
}

std::vector<Record> metamathqa(const std::string& content) {
  const TempDir folder;
  write_text(folder / "m.json", content);
  std::vector<Record> records;
  read_metamathqa_json(folder / "m.json", "Be brief.",
                       [&](Record&& r) { records.push_back(std::move(r)); });
  return records;
}

std::vector<Record> jsonl(const std::string& content, const std::string& prompt = "Q: {q}\nA:",
                          const std::string& response = " {a}") {
  const TempDir folder;
  write_text(folder / "d.jsonl", content);
  std::vector<Record> records;
  read_jsonl(folder / "d.jsonl", Template(prompt, "data.prompt"),
             Template(response, "data.response"),
             [&](Record&& r) { records.push_back(std::move(r)); });
  return records;
}

std::vector<std::string> problems(const std::vector<Record>& records) {
  std::vector<std::string> found;
  for (const Record& record : records) found.push_back(record.problem);
  return found;
}

TEST_CASE("SQuAD v1.1 and v2.0 give the first answer, members in either order", "[text]") {
  const bool v2 = GENERATE(false, true);
  const std::string context = "Zürich lies on the Limmat.";
  const auto records = squad(
      squad_file(
          context,
          {squad_question("Which river?", "Limmat", 19), squad_question("Where?", "Zürich", 0)}, v2)
          .dump());
  REQUIRE(problems(records) == std::vector<std::string>{"", ""});
  REQUIRE(records[0].prompt ==
          "Question: Which river? Context: Zürich lies on the Limmat. Answer:");
  REQUIRE(records[0].response == " Limmat");
  REQUIRE(records[1].number == 2);
  REQUIRE(records[1].response == " Zürich");
  REQUIRE(records[0].group == context);
  REQUIRE(records[0].share > 0.5);
}

TEST_CASE("an impossible question of SQuAD v2 is answered 'unanswerable'", "[text]") {
  const auto records = squad(squad_file("c", {squad_impossible("Who?")}, true).dump());
  REQUIRE(records.at(0).problem.empty());
  REQUIRE(records[0].response == " unanswerable");
}

TEST_CASE("every problem of a SQuAD record is found, and the others are read", "[text]") {
  const auto good = squad_question("Which?", "Limmat", 19);
  const auto with = [&](const char* key, const Json& value) {
    Json question = good;
    question[key] = value;
    return question;
  };
  const auto answer = [&](const char* key, const Json& value) {
    Json question = good;
    question["answers"][0][key] = value;
    return question;
  };
  Json no_question = good, no_answers = good, no_text = good, no_start = good;
  no_question.erase("question");
  no_answers.erase("answers");
  no_text["answers"][0].erase("text");
  no_start["answers"][0].erase("answer_start");
  Json contradiction = squad_impossible("Who?");
  contradiction["answers"] = good["answers"];
  const auto records = squad(
      squad_file("Zürich lies on the Limmat.",
                 {good, no_question, no_answers, no_text, no_start, with("question", 5),
                  with("answers", Json::object()), with("answers", Json::array()),
                  with("answers", {7}), with("is_impossible", "no"), answer("text", ""),
                  answer("text", nullptr), answer("answer_start", 18), answer("answer_start", 400),
                  answer("answer_start", -1), answer("answer_start", 1.5), contradiction, good})
          .dump());
  REQUIRE(problems(records) ==
          std::vector<std::string>{"", "it has no question", "it has no answers",
                                   "its answer has no text", "its answer has no answer_start",
                                   "question is a number, expected text",
                                   "answers is an object, expected a list", "answers is empty",
                                   "an answer is a number, expected an object",
                                   "is_impossible is text, expected true or false",
                                   "its answer is empty", "text is null, expected text",
                                   "answer_start 18 points at ' Limma...', the answer is 'Limmat'",
                                   "answer_start 400 lies outside the context",
                                   "answer_start -1 lies outside the context",
                                   "answer_start is a number, expected a whole number",
                                   "is_impossible is true, yet there are answers", ""});
}

TEST_CASE("a SQuAD paragraph without a context costs its own questions alone", "[text]") {
  Json file = squad_file("c", {squad_question("Q?", "c", 0)});
  Json& paragraphs = file["data"][0]["paragraphs"];
  paragraphs.push_back(paragraphs[0]);
  paragraphs[0].erase("context");
  paragraphs.push_back(paragraphs[1]);
  paragraphs[2]["context"] = {1};
  REQUIRE(problems(squad(file.dump())) ==
          std::vector<std::string>{"its paragraph has no context", "",
                                   "context is a list, expected text"});
}

TEST_CASE("bytes that are not UTF-8 cost only the record they are in", "[text]") {
  std::string text = squad_file("c", {squad_question("Q1?", "c", 0), squad_question("Q2?", "c", 0),
                                      squad_question("Q3?", "c", 0)})
                         .dump();
  const auto at = text.find("Q2?");
  text[at] = '\xe2';  // the lead of three bytes, of which none follows
  const auto records = squad(text);
  REQUIRE(problems(records) ==
          std::vector<std::string>{"", fmt::format("question is not UTF-8 at byte {}", at), ""});
  std::string ignored = squad_file("c", {squad_question("Q?", "c", 0)}).dump();
  ignored[ignored.find("University")] = '\xff';
  REQUIRE(problems(squad(ignored)) == std::vector<std::string>{""});
}

TEST_CASE("MetaMathQA becomes a chat, what rephrases one question is one group", "[text]") {
  const auto records = metamathqa(
      Json::array({metamathqa_entry("What is 2+2?", "The answer is: 4", "What is two and two?")})
          .dump());
  REQUIRE(records.size() == 1);
  REQUIRE(records[0].prompt ==
          "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhat is 2+2?<|im_end|>\n"
          "<|im_start|>assistant\n");
  REQUIRE(records[0].response == "The answer is: 4<|im_end|>");
  REQUIRE(records[0].group == "What is two and two?");
  REQUIRE(records[0].answers == std::vector<std::string>{"The answer is: 4"});
  REQUIRE(records[0].rule == AnswerRule::math);
  Json number = metamathqa_entry("q", "r", "o"), none = number, odd = number;
  number["type"] = "GSM_Rephrased";
  none.erase("type");
  odd["type"] = 7;
  const auto others = metamathqa(Json::array({number, none, odd}).dump());
  REQUIRE(problems(others) == std::vector<std::string>{"", "", ""});
  REQUIRE(others[0].rule == AnswerRule::gsm);
  REQUIRE(others[1].rule == AnswerRule::math);
  REQUIRE(others[2].rule == AnswerRule::math);
}

TEST_CASE("every problem of a MetaMathQA entry is found, and the others are read", "[text]") {
  const Json good = metamathqa_entry("q", "r", "o");
  Json no_query = good, no_response = good, empty = good, number = good, nested = good;
  no_query.erase("query");
  no_response.erase("response");
  empty["response"] = " \n";
  number["query"] = 3;
  nested["response"] = {{"query", "x"}};
  const Json list = Json::array({Json::array({good}), Json::array()});
  const auto records = metamathqa(Json::array({good, no_query, no_response, empty, number, nested,
                                               "text", list, Json::array(), good})
                                      .dump());
  REQUIRE(problems(records) ==
          std::vector<std::string>{
              "", "it has no query", "it has no response", "its response is empty",
              "query is a number, expected text", "response is an object, expected text",
              "it is text, expected an object", "it is a list, expected an object",
              "it is a list, expected an object", ""});
  REQUIRE(records.back().number == 10);
}

TEST_CASE("JSONL fills its templates, counts lines and passes over blank ones", "[text]") {
  const auto records =
      jsonl("\xef\xbb\xbf{\"q\": \"one\", \"a\": 1}\r\n\n   \n{\"a\": true, \"q\": \"two {q}\"}");
  REQUIRE(records.size() == 2);
  REQUIRE(records[0].prompt == "Q: one\nA:");
  REQUIRE(records[0].response == " 1");
  REQUIRE(records[1].number == 4);
  REQUIRE(records[1].prompt == "Q: two {q}\nA:");
  REQUIRE(records[1].response == " True");
  REQUIRE(records[1].group == records[1].prompt);
  REQUIRE(records[1].share == 1.0);
  // Without a field in the prompt all would be one group.
  REQUIRE(jsonl("{\"a\": \"x\"}", "Say:")[0].group == " x");
  REQUIRE(jsonl("{\"a\": \"x\"}", "{{json}}")[0].prompt == "{json}");
}

TEST_CASE("numbers and truth values of JSONL are those that Python prints", "[text]") {
  // json.loads() and str() of Python 3.11.
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"18446744073709551615", "18446744073709551615"},
      {"18446744073709551616", "18446744073709551616"},
      {"-9223372036854775808", "-9223372036854775808"},
      {"-9223372036854775809", "-9223372036854775809"},
      {"100000000000000000000000000000000000001", "100000000000000000000000000000000000001"},
      {"18446744073709551616.0", "1.8446744073709552e+19"},
      {"-0", "0"},
      {"-0.0", "-0.0"},
      {"0.0", "0.0"},
      {"2.50", "2.5"},
      {"1e3", "1000.0"},
      {"1E15", "1000000000000000.0"},
      {"9999999999999998.0", "9999999999999998.0"},
      {"1e16", "1e+16"},
      {"12345678.9e9", "1.23456789e+16"},
      {"0.0001", "0.0001"},
      {"-0.00012", "-0.00012"},
      {"0.00001", "1e-05"},
      {"1.25e-7", "1.25e-07"},
      {"0.1", "0.1"},
      {"5e-324", "5e-324"},
      {"1.7976931348623157e308", "1.7976931348623157e+308"},
      {"true", "True"},
      {"false", "False"}};
  for (const auto& [written, printed] : cases) {
    CAPTURE(written);
    const auto records = jsonl("{\"q\": \"one\", \"a\": " + written + "}");
    REQUIRE(records.size() == 1);
    CHECK(records[0].response == " " + printed);
  }
}

TEST_CASE("every wrong line of JSONL is found, and the others are read", "[text]") {
  const auto records = jsonl(
      "{\"q\": \"one\"}\n"
      "{\"q\": \"one\", \"a\": \"\"}\n"
      "{\"q\": \"o\xff\", \"a\": \"x\"}\n"
      "{\"q\": \n"
      "[1]\n"
      "{\"q\": null, \"a\": \"x\"}\n"
      "{\"q\": {}, \"a\": \"x\"}\n"
      "{\"q\": \"\\ud800\", \"a\": \"x\"}\n"
      "{\"q\": \"one\", \"a\": \"x\"}\n");
  REQUIRE(problems(records) ==
          std::vector<std::string>{
              "it has no a", "its answer is empty", "not UTF-8 at byte 9 of the line",
              "byte 7 of the line: not JSON: syntax error while parsing value - unexpected end of "
              "input; "
              "expected '[', '{', or a literal",
              "it is a list, expected an object", "q is null, expected text",
              "q is an object, expected text",
              "byte 14 of the line: not JSON: syntax error while parsing value - invalid string: "
              "surrogate U+D800..U+DBFF must be followed by U+DC00..U+DFFF",
              ""});
}

TEST_CASE("files are found under their published names", "[text]") {
  const TempDir folder;
  const auto config = [&](DatasetName name, const std::string& path) {
    return text_config(name, folder / path, folder.path());
  };
  const auto touch = [&](const std::string& name) { write_text(folder / name, ""); };
  using enum DatasetName;

  touch("s1/train-v1.1.json");
  touch("s1/dev-v1.1.json");
  Sources found = find_sources(config(squad, "s1"));
  REQUIRE(found.train.files == std::vector{folder / "s1/train-v1.1.json"});
  REQUIRE(found.test.files == std::vector{folder / "s1/dev-v1.1.json"});

  touch("s1/train-v2.0.json");
  REQUIRE_THROWS_WITH(find_sources(config(squad, "s1")), Catch::Contains("more than once"));
  found = find_sources(config(squad, "s1/train-v2.0.json"));
  REQUIRE(found.train.files == std::vector{folder / "s1/train-v2.0.json"});
  REQUIRE(found.test.files.empty());

  touch("s2/squad_v2/train-00000-of-00001.parquet");
  touch("s2/squad_v2/validation-00000-of-00001.parquet");
  found = find_sources(config(squad, "s2"));
  REQUIRE((found.train.parquet && found.train.unanswerable));
  REQUIRE(found.test.files.size() == 1);

  touch("s3/plain_text/train-00001-of-00002.parquet");
  REQUIRE_THROWS_WITH(find_sources(config(squad, "s3")),
                      Catch::Contains("is one of 2 parts, of which 1 are there"));
  touch("s3/plain_text/train-00000-of-00002.parquet");
  found = find_sources(config(squad, "s3"));
  REQUIRE_FALSE(found.train.unanswerable);
  REQUIRE(found.train.files.front().filename() == "train-00000-of-00002.parquet");

  touch("m/MetaMathQA-395K.json");
  touch("m/MetaMathQA-40K.json");
  found = find_sources(config(metamathqa, "m"));
  REQUIRE(found.train.files == std::vector{folder / "m/MetaMathQA-395K.json"});
  touch("m2/data/train-00000-of-00001.parquet");
  REQUIRE(find_sources(config(metamathqa, "m2")).train.parquet);

  touch("j/train.jsonl");
  REQUIRE(find_sources(config(jsonl, "j")).test.files.empty());
  for (const char* name : {"dev", "valid", "validation", "val", "test"}) {
    const std::filesystem::path file = folder / fmt::format("j/{}.jsonl", name);
    touch(fmt::format("j/{}.jsonl", name));
    REQUIRE(find_sources(config(jsonl, "j")).test.files == std::vector{file});
  }
  REQUIRE_THROWS_WITH(find_sources(config(jsonl, "none")), Catch::Contains("is not there"));
}

}  // namespace
}  // namespace dstrain::text
