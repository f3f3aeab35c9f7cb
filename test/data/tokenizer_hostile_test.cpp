#include <ctime>
#include <functional>

#include "engine/base/error.h"
#include "engine/data/tokenizer/tokenizer.h"
#include "test/data/tokenizer_file.h"
#include "test/support/catch.h"
#include "test/support/hostile_json.h"
#include "test/support/mutate.h"

/// tokenizer.json and texts that are made to hurt: each ends in Error{data} with its place, or in
/// tokens, within bounds of time and memory.
namespace dstrain {
namespace {

using Json = nlohmann::json;
using test::mutated;
using test::split_by;
using test::tokenizer_file;

double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

std::string error_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::data);
    CHECK(std::string(error.what()).size() < 1000);
    return error.what();
  }
  return "no error";
}

std::string opening(const std::string& json, const std::string& config = "") {
  return error_of([&] { (void)Tokenizer::parse(json, config, "tokenizer.json"); });
}

TEST_CASE("hostile JSON is no tokenizer", "[tokenizer][hostile]") {
  const std::string sound = tokenizer_file({}).dump();
  REQUIRE(opening(sound) == "no error");
  for (const test::HostileJson& hostile : test::hostile_json()) {
    CAPTURE(hostile.name);
    CHECK(opening(hostile.text).starts_with("tokenizer.json:"));
    if (!hostile.text.empty())
      CHECK(opening(sound, hostile.text).starts_with("tokenizer_config.json:"));
  }
}

TEST_CASE("a tokenizer.json that asks for too much is refused by name", "[tokenizer][hostile]") {
  const auto spoiled = [](const std::function<void(Json&)>& spoil) {
    Json file = tokenizer_file({});
    spoil(file);
    return opening(file.dump());
  };
  CHECK(spoiled([](Json& f) {
          f["added_tokens"] = {{{"content", std::string(60'000'000, 'a')}}};
        }) ==
        "tokenizer.json: added_tokens[0].content: 60000000 bytes, an added token has at most 1024");
  CHECK(spoiled([](Json& f) {
          f["pre_tokenizer"] = split_by(std::string(100'000, 'a'));
        }).starts_with("tokenizer.json: pre_tokenizer.pretokenizers[0].pattern: a pattern of "));
  CHECK(
      spoiled([](Json& f) {
        f["pre_tokenizer"] = split_by("a");
        f["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {{"String", std::string(70'000, 'a')}};
      }).ends_with(" bytes, more than 65536"));
  const auto with_template = [&](const Json& single, const Json& ids) {
    return spoiled([&](Json& f) {
      f["post_processor"] = {{"type", "TemplateProcessing"},
                             {"single", single},
                             {"special_tokens", {{"<s>", {{"ids", ids}}}}}};
    });
  };
  const Json text = {{"Sequence", {{"id", "A"}}}}, token = {{"SpecialToken", {{"id", "<s>"}}}};
  CHECK(with_template({token, text}, {1}) == "no error");
  CHECK(with_template({text, text}, {1})
            .ends_with("expected the text once and at most 256 tokens around it"));
  CHECK(with_template({token, text}, std::vector<int>(1000, 1))
            .ends_with("expected the text once and at most 256 tokens around it"));
  CHECK(spoiled([](Json& f) {
          f["more"] = std::vector<int>(4'000'000, 1);
        }).ends_with(": more than 4000000 values"));
  CHECK(spoiled([](Json& f) {
          f["model"]["merges"] = {std::string(10'000'000, 'a')};
        }).starts_with("tokenizer.json: model.merges[0]: 'aaa"));
}

TEST_CASE("steps that let a text grow and grow are ended", "[tokenizer][hostile]") {
  const Json grow = {
      {"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", std::string(64, 'a')}};
  Json file = tokenizer_file({});
  file["normalizer"] = {{"type", "Sequence"}, {"normalizers", std::vector<Json>(16, grow)}};
  CHECK(error_of([&] {
          (void)Tokenizer::parse(file.dump(), "", "tokenizer.json")->encode("aa");
        }).starts_with("tokenizer.json: normalizer: makes "));
  file["normalizer"] = nullptr;
  file["decoder"] = {{"type", "Sequence"}, {"decoders", std::vector<Json>(16, grow)}};
  const std::vector<std::int32_t> ids = {'a', 'a'};
  CHECK(error_of([&] {
          (void)Tokenizer::parse(file.dump(), "", "tokenizer.json")->decode(ids);
        }).starts_with("tokenizer.json: decoder: makes "));
  file["decoder"]["decoders"][0]["content"] = std::string(65, 'a');
  CHECK(opening(file.dump()) ==
        "tokenizer.json: decoder.decoders[0].content: 65 bytes, more than 64");
}

struct HostilePattern {
  const char* regex;
  std::string text;
};

TEST_CASE("a pattern may cost so much a text, not a match", "[tokenizer][hostile]") {
  const std::string some(4000, 'a');
  const std::vector<HostilePattern> hostile = {
      {"(?:a+)+(?:a+)+(?:a+)+[bc]", some},
      // Each match is soon there, after a detour of many steps: 4,000 of them took minutes.
      {"(?:a+)+(?:a+)+[bc]|a", some},
      {"(?:a|aa)+b|a", some},
      {"a*a*a*a*a*b|a", some},
      // Each place reads all the rest, which PCRE2 does not count.
      {"(?=a*+b)a|a(?=a*+c)|a", std::string(300'000, 'a')},
  };
  for (const auto& [regex, text] : hostile) {
    CAPTURE(regex);
    const auto tokenizer =
        Tokenizer::parse(tokenizer_file({}, split_by(regex)).dump(), "", "tokenizer.json");
    const double begin = cpu_seconds();
    const std::string error = error_of([&] { (void)tokenizer->encode(text); });
    CHECK(error.starts_with(
        "tokenizer.json: pre_tokenizer.pretokenizers[0].pattern: the pattern takes more than "));
    CHECK(cpu_seconds() - begin < 12);
    // The next text begins anew.
    CHECK(tokenizer->encode("aaa").size() == 3);
  }
}

TEST_CASE("usual patterns have time enough for long texts", "[tokenizer]") {
  const std::string words = test::repeated("some words and  7 numbers\n\n\n", 100'000);
  const std::string spaces(3'000'000, ' ');
  const auto gpt2 = Tokenizer::parse(
      tokenizer_file({}, split_by(R"('s|'t| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"))
          .dump(),
      "", "tokenizer.json");
  CHECK(gpt2->encode(words).size() == words.size());
  CHECK(gpt2->encode(spaces).size() == spaces.size());
  // One that matches at the end only.
  const auto rare =
      Tokenizer::parse(tokenizer_file({}, split_by("\\d{7}x")).dump(), "", "tokenizer.json");
  CHECK(rare->encode(words + "1234567x").size() == words.size() + 8);
}

TEST_CASE("added tokens of white space are found in linear time", "[tokenizer][hostile]") {
  for (const char* strip : {"lstrip", "rstrip"}) {
    Json file = tokenizer_file({});
    file["added_tokens"] = {{{"content", " "}, {strip, true}}};
    const auto tokenizer = Tokenizer::parse(file.dump(), "", "tokenizer.json");
    const double begin = cpu_seconds();
    CHECK(tokenizer->encode(std::string(2'000'000, ' ')).size() == 2'000'000);
    CHECK(cpu_seconds() - begin < 5);
  }
}

TEST_CASE("mutated tokenizers encode or are refused", "[tokenizer][hostile]") {
  std::mt19937 random(11);
  Json file = tokenizer_file({{"a", "b"}}, split_by("[a-z]+| ?\\p{N}+|\\s+(?!\\S)"));
  file["normalizer"] = {{"type", "NFC"}};
  file["added_tokens"] = {{{"content", "<s>"}, {"lstrip", true}, {"special", true}}};
  const std::string seed = file.dump(), config = R"({"eos_token": "<s>", "pad_token": null})";
  REQUIRE(opening(seed, config) == "no error");
  const double begin = cpu_seconds();
  int refused = 0;
  for (int i = 0; i < 1500; ++i) {
    CAPTURE(i);
    const std::string error = error_of([&] {
      const auto tokenizer = Tokenizer::parse(
          mutated(seed, random), i % 3 == 0 ? mutated(config, random) : config, "tokenizer.json");
      (void)tokenizer->decode(tokenizer->encode("ab <s> 12  e\u0301\xff", true));
    });
    refused += error == "no error" ? 0 : 1;
  }
  CHECK(refused > 300);
  CHECK(cpu_seconds() - begin < 20);
}

}  // namespace
}  // namespace dstrain
