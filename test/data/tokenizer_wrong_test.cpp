#include <fmt/format.h>

#include <cstdlib>
#include <functional>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/data/tokenizer/tokenizer.h"
#include "test/data/tokenizer_file.h"
#include "test/support/catch.h"

namespace dstrain {
namespace {

using Json = nlohmann::json;
using test::split_by;
using test::tokenizer_file;

constexpr const char* kGolden = "test/golden/data/tokenizer_messages.txt";

/// What a person sees when this is opened.
std::string message_of(const std::string& json, const std::string& config = "") {
  try {
    static_cast<void>(Tokenizer::parse(json, config, "MODEL/tokenizer.json"));
    return "no error\n";
  } catch (const Error& error) {
    std::string text = fmt::format("{} (exit code {})\n", error.what(), exit_code(error.kind()));
    if (!error.hint().empty()) text += fmt::format("  hint: {}\n", error.hint());
    return text;
  }
}

struct Case {
  std::string name;
  std::function<void(Json&)> spoil;
};

std::vector<Case> cases() {
  return {
      {"no model", [](Json& f) { f.erase("model"); }},
      {"model is no object", [](Json& f) { f["model"] = 3; }},
      {"another model", [](Json& f) { f["model"]["type"] = "WordPiece"; }},
      {"no vocabulary", [](Json& f) { f["model"].erase("vocab"); }},
      {"a vocabulary that is a list",
       [](Json& f) {
         f["model"]["vocab"] = {"a", "b"};
       }},
      {"an id that is no number", [](Json& f) { f["model"]["vocab"]["a"] = "1"; }},
      {"a negative id", [](Json& f) { f["model"]["vocab"]["a"] = -1; }},
      {"an enormous id", [](Json& f) { f["model"]["vocab"]["a"] = 4000000000u; }},
      {"an id twice", [](Json& f) { f["model"]["vocab"]["a"] = 98; }},
      {"no merges", [](Json& f) { f["model"].erase("merges"); }},
      {"a merge of an unknown token",
       [](Json& f) {
         f["model"]["merges"].push_back({"a", "zz"});
       }},
      {"a merge to an unknown token",
       [](Json& f) {
         f["model"]["merges"].push_back({"b", "a"});
       }},
      {"a merge of three",
       [](Json& f) {
         f["model"]["merges"].push_back({"a", "b", "c"});
       }},
      {"a merge without a space", [](Json& f) { f["model"]["merges"] = {"ab"}; }},
      {"a merge that is a number", [](Json& f) { f["model"]["merges"].push_back(1); }},
      {"dropout", [](Json& f) { f["model"]["dropout"] = 0.1; }},
      {"a prefix of continued words",
       [](Json& f) { f["model"]["continuing_subword_prefix"] = "##"; }},
      {"byte fallback", [](Json& f) { f["model"]["byte_fallback"] = true; }},
      {"a missing byte and no unknown token",
       [](Json& f) {
         f["model"]["vocab"].erase("x");
         f["model"]["unk_token"] = "<unk>";
       }},
      {"another normalizer",
       [](Json& f) {
         f["normalizer"] = {{"type", "Lowercase"}};
       }},
      {"another normalizer in a sequence",
       [](Json& f) {
         f["normalizer"] = {{"type", "Sequence"},
                            {"normalizers", {{{"type", "NFC"}}, {{"type", "NFKC"}}}}};
       }},
      {"a normalizer that replaces by a regular expression",
       [](Json& f) {
         f["normalizer"] = {{"type", "Replace"}, {"pattern", {{"Regex", "a+"}}}, {"content", "b"}};
       }},
      {"a normalizer that replaces nothing",
       [](Json& f) {
         f["normalizer"] = {{"type", "Replace"}, {"pattern", {{"String", ""}}}, {"content", "b"}};
       }},
      {"another pre-tokenizer",
       [](Json& f) {
         f["pre_tokenizer"] = {{"type", "Whitespace"}};
       }},
      {"a Metaspace without its character",
       [](Json& f) {
         f["pre_tokenizer"] = {{"type", "Metaspace"}};
       }},
      {"a Metaspace of two characters",
       [](Json& f) {
         f["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", "__"}};
       }},
      {"a Metaspace of another scheme",
       [](Json& f) {
         f["pre_tokenizer"] = {
             {"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "last"}};
       }},
      {"a Metaspace that says two things",
       [](Json& f) {
         f["pre_tokenizer"] = {
             {"type", "Metaspace"}, {"replacement", "_"}, {"add_prefix_space", false}};
       }},
      {"two Metaspaces",
       [](Json& f) {
         const Json metaspace = {{"type", "Metaspace"}, {"replacement", "_"}};
         f["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {metaspace, metaspace}}};
       }},
      {"characters and an unknown token that is none",
       [](Json& f) {
         f["pre_tokenizer"] = nullptr;
         f["model"]["unk_token"] = "<unk>";
       }},
      {"a split after the bytes",
       [](Json& f) {
         f["pre_tokenizer"] = split_by("a");
         std::swap(f["pre_tokenizer"]["pretokenizers"][0], f["pre_tokenizer"]["pretokenizers"][1]);
       }},
      {"another behavior", [](Json& f) { f["pre_tokenizer"] = split_by("a", "Deleted"); }},
      {"another decoder",
       [](Json& f) {
         f["decoder"] = {{"type", "WordPiece"}};
       }},
      {"a decoder that strips two characters",
       [](Json& f) {
         f["decoder"] = {{"type", "Strip"}, {"content", "ab"}, {"start", 1}, {"stop", 0}};
       }},
      {"a decoder that strips without end",
       [](Json& f) {
         f["decoder"] = {{"type", "Strip"}, {"content", " "}, {"start", -1}, {"stop", 0}};
       }},
      {"no decoder", [](Json& f) { f["decoder"] = nullptr; }},
      {"another post-processor",
       [](Json& f) {
         f["post_processor"] = {{"type", "BertProcessing"}};
       }},
      {"a template of an unknown token",
       [](Json& f) {
         f["post_processor"] = {{"type", "TemplateProcessing"},
                                {"single", {{{"SpecialToken", {{"id", "<s>"}}}}}},
                                {"special_tokens", Json::object()}};
       }},
      {"an added token without content",
       [](Json& f) {
         f["added_tokens"] = {{{"id", 1}}};
       }},
      {"an added token with a flag that is none",
       [](Json& f) {
         f["added_tokens"] = {{{"content", "<s>"}, {"lstrip", "yes"}}};
       }},
      {"two added tokens that normalise to the same",
       [](Json& f) {
         f["normalizer"] = {{"type", "NFC"}};
         f["added_tokens"] = {{{"content", "\u00e9"}, {"normalized", true}},
                              {{"content", "e\u0301"}, {"normalized", true}}};
       }},
  };
}

TEST_CASE("every wrong tokenizer.json gives its message", "[tokenizer][golden]") {
  std::string all;
  for (const Case& wrong : cases()) {
    Json file = tokenizer_file({{"a", "b"}});
    wrong.spoil(file);
    all += fmt::format("# {}\n{}\n", wrong.name, message_of(file.dump()));
  }
  const std::string sound = tokenizer_file({}).dump();
  all += fmt::format("# cut off\n{}\n", message_of(sound.substr(0, 100)));
  all += fmt::format("# a list\n{}\n", message_of("[1]"));
  all += fmt::format("# a pointer of Git LFS\n{}\n",
                     message_of("version https://git-lfs.github.com/spec/v1\n"));
  all += fmt::format("# bytes that are not UTF-8\n{}\n", message_of("{\"model\": \"\xff\"}"));
  all += fmt::format("# an end of text that is no token\n{}\n",
                     message_of(sound, R"({"eos_token": "</s>"})"));
  all += fmt::format("# an end of text without content\n{}\n",
                     message_of(sound, R"({"eos_token": {"lstrip": true}})"));
  all += fmt::format("# a broken tokenizer_config.json\n{}\n", message_of(sound, "{"));
  for (const char* pattern :
       {"^a",          "a$",          "(?i)a",   "(?<name>a)", "a\\b",     "\\h",
        "[[:alpha:]]", "[a[^b]]",     "[a&&b]",  "\\p{Han}",   "[\\P{L}]", "(?i:\u00e9)",
        "(?i:ss)",     "a{2}+",       "a{2000}", "a{,3}",      "(a",       "a)",
        "[a",          "[]",          "[z-a]",   "\\",         "*a",       "a**",
        "\\xff",       "\\x{110000}", "\\1",     "(?=a)*",     "(?<=a+)b"}) {
    Json file = tokenizer_file({}, split_by(pattern));
    all += fmt::format("# pattern {}\n{}\n", pattern, message_of(file.dump()));
  }
  if (std::getenv("DSTRAIN_UPDATE_GOLDEN") != nullptr) write_file_atomically(kGolden, all);
  REQUIRE(all == read_file(kGolden));
}

TEST_CASE("a pattern that needs too many steps ends with its place", "[tokenizer]") {
  const auto tokenizer = Tokenizer::parse(
      tokenizer_file({}, split_by("(?:a+)+(?:a+)+(?:a+)+[bc]")).dump(), "", "tokenizer.json");
  std::string message;
  try {
    static_cast<void>(tokenizer->encode(std::string(5000, 'a')));
  } catch (const Error& error) {
    message = error.what();
  }
  REQUIRE(message.starts_with(
      "tokenizer.json: pre_tokenizer.pretokenizers[0].pattern: the pattern takes more than "));
}

}  // namespace
}  // namespace dstrain
