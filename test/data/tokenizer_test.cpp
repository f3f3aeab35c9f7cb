#include "engine/data/tokenizer/tokenizer.h"

#include <fmt/format.h>

#include <cstdlib>
#include <functional>
#include <random>
#include <thread>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/data/tokenizer/chat_template.h"
#include "engine/data/tokenizer/nfc.h"
#include "engine/data/tokenizer/pre_tokenizer.h"
#include "engine/data/tokenizer/utf8.h"
#include "test/data/tokenizer_file.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"

namespace dstrain {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<std::int32_t>;
using Words = std::vector<std::string>;
using test::Merges;
using test::split_by;
using test::tokenizer_file;

constexpr const char* kBloomPattern =
    " ?[^(\\s|[.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c])]+";
constexpr const char* kQwenPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

std::shared_ptr<const Tokenizer> made(const Json& file, const Json& config = nullptr) {
  return Tokenizer::parse(file.dump(), config.is_null() ? "" : config.dump(), "tokenizer.json");
}

Words words_of(const Json& pre_tokenizer, const std::string& text) {
  PreTokenizer::Scratch scratch;
  const PreTokenizer cutter(pre_tokenizer, "tokenizer.json");
  const auto& words = cutter.split(text, TextStart::first, scratch);
  return {words.begin(), words.end()};
}

std::string nfc_of(const std::string& text) {
  std::string buffer;
  return std::string(nfc(text, buffer));
}

/// Byte pair encoding by its definition: again and again the first of the merges that applies, at
/// its leftmost place.
Ids merged_by_definition(const std::string& word, const Merges& merges) {
  std::vector<std::string> symbols;
  for (const char c : word) symbols.emplace_back(1, c);
  const auto find = [&](std::size_t rank) {
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
      if (symbols[i] == merges[rank].first && symbols[i + 1] == merges[rank].second) return i;
    }
    return symbols.size();
  };
  for (std::size_t rank = 0; rank < merges.size();) {
    const std::size_t at = find(rank);
    if (at == symbols.size()) {
      ++rank;
      continue;
    }
    symbols[at] += symbols[at + 1];
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    rank = 0;
  }
  Ids ids;
  for (const std::string& symbol : symbols) {
    if (symbol.size() == 1) {
      ids.push_back(static_cast<unsigned char>(symbol[0]));
      continue;
    }
    for (std::size_t i = 0; i < merges.size(); ++i) {
      if (merges[i].first + merges[i].second == symbol)
        ids.push_back(static_cast<std::int32_t>(256 + i));
    }
  }
  return ids;
}

TEST_CASE("merges apply by rank, the leftmost first, in short and in long words",
          "[tokenizer][property]") {
  const Merges merges = {{"a", "b"}, {"b", "a"},   {"ab", "ab"}, {"c", "ab"},
                         {"a", "a"}, {"aa", "aa"}, {"b", "c"}};
  const auto tokenizer = made(tokenizer_file(merges));
  std::mt19937 random(7);
  for (const int length : {1, 2, 3, 10, 63, 64, 65, 66, 200, 1000}) {
    for (int i = 0; i < 20; ++i) {
      std::string word;
      for (int k = 0; k < length; ++k) word += static_cast<char>('a' + random() % 3);
      CAPTURE(word);
      REQUIRE(tokenizer->encode(word) == merged_by_definition(word, merges));
    }
  }
}

TEST_CASE("a million letters without a space take no quadratic time", "[tokenizer]") {
  const auto tokenizer = made(tokenizer_file({{"a", "a"}, {"aa", "aa"}}));
  REQUIRE(tokenizer->encode(std::string(1 << 20, 'a')) == Ids(1 << 18, 257));
}

TEST_CASE("both spellings of the merges are the same tokenizer", "[tokenizer]") {
  Json file = tokenizer_file({{"a", "b"}, {"ab", "c"}, {" ", "a"}});
  const Ids ids = made(file)->encode("abc ab");
  Json& merges = file["model"]["merges"];
  for (Json& pair : merges) pair = pair[0].get<std::string>() + " " + pair[1].get<std::string>();
  merges.insert(merges.begin(), "#version: 0.2");
  REQUIRE(made(file)->encode("abc ab") == ids);
  REQUIRE(ids == Ids{257, 32, 256});
}

TEST_CASE("ignore_merges takes a word that is a token as it is", "[tokenizer]") {
  Json file = tokenizer_file({{"a", "b"}});
  file["model"]["vocab"]["cba"] = 257;
  REQUIRE(made(file)->encode("cba") == Ids{'c', 'b', 'a'});
  file["model"]["ignore_merges"] = true;
  REQUIRE(made(file)->encode("cba") == Ids{257});
}

TEST_CASE("bytes that the vocabulary lacks vanish, or become the unknown token", "[tokenizer]") {
  Json file = tokenizer_file({});
  file["model"]["vocab"].erase("x");
  file["model"]["vocab"]["<unk>"] = 'x';
  REQUIRE(made(file)->encode("axxb") == Ids{'a', 'b'});
  file["model"]["unk_token"] = "<unk>";
  REQUIRE(made(file)->encode("axxb") == Ids{'a', 'x', 'x', 'b'});
  file["model"]["fuse_unk"] = true;
  REQUIRE(made(file)->encode("axxb") == Ids{'a', 'x', 'b'});
}

TEST_CASE("a word keeps its ids however many words came between", "[tokenizer]") {
  const auto tokenizer = made(tokenizer_file({{"a", "b"}, {"1", "2"}}, split_by(kBloomPattern)));
  const Ids first = tokenizer->encode("ab 12 abab");
  for (int i = 0; i < 200000; ++i) static_cast<void>(tokenizer->encode(fmt::format(" w{}", i)));
  REQUIRE(tokenizer->encode("ab 12 abab") == first);
  REQUIRE(tokenizer->encode(" w77777") == Ids{' ', 'w', '7', '7', '7', '7', '7'});
}

TEST_CASE("many threads encode with one tokenizer", "[tokenizer]") {
  const auto tokenizer = made(tokenizer_file({{"a", "b"}, {"c", "d"}}, split_by(kQwenPattern)));
  std::vector<std::string> texts;
  for (int i = 0; i < 500; ++i) texts.push_back(fmt::format("ab{} cd{}\n", i % 50, i));
  std::vector<Ids> expected;
  for (const std::string& text : texts) expected.push_back(tokenizer->encode(text));
  std::vector<int> wrong(4, 0);
  std::vector<std::thread> threads;
  for (int& count : wrong) {
    threads.emplace_back([&] {
      for (std::size_t i = 0; i < texts.size(); ++i) {
        if (tokenizer->encode(texts[i]) != expected[i] ||
            tokenizer->decode(expected[i]) != texts[i])
          ++count;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  REQUIRE(wrong == std::vector<int>(4, 0));
}

TEST_CASE("a split does with its matches what its behavior says", "[tokenizer]") {
  const std::string text = "the-final--countdown";
  const std::vector<std::pair<std::string, Words>> cases = {
      {"Removed", {"the", "final", "countdown"}},
      {"Isolated", {"the", "-", "final", "-", "-", "countdown"}},
      {"MergedWithPrevious", {"the-", "final-", "-", "countdown"}},
      {"MergedWithNext", {"the", "-final", "-", "-countdown"}},
      {"Contiguous", {"the", "-", "final", "--", "countdown"}},
  };
  for (const auto& [behavior, words] : cases)
    REQUIRE(words_of(split_by("-", behavior), text) == words);
  REQUIRE(words_of(split_by("-", "Removed", true), text) == Words{"-", "-", "-"});
}

TEST_CASE("BLOOM's pattern, with its set inside a set, cuts at punctuation and spaces",
          "[tokenizer]") {
  REQUIRE(words_of(split_by(kBloomPattern), "Hi (a|b), you\u3002x\n y") ==
          Words{"Hi", " (", "a", "|", "b", "),", " you", "\u3002", "x", "\n", " y"});
}

TEST_CASE("Qwen's pattern cuts contractions, single digits, runs of spaces and lines",
          "[tokenizer]") {
  REQUIRE(words_of(split_by(kQwenPattern), "I'LL pay $12  now!!\n\n  ok \u017f's\u017f \t") ==
          Words{"I", "'LL", " pay", " $", "1", "2", " ", " now", "!!\n\n", " ", " ok", " \u017f",
                "'s", "\u017f", " \t"});
}

TEST_CASE("characters of Unicode 15 and 16 are letters, and U+180E is no space", "[tokenizer]") {
  REQUIRE(words_of(split_by("\\p{L}+"), "a\U00031350\U000105c0!") ==
          Words{"a\U00031350\U000105c0", "!"});
  REQUIRE(words_of(split_by("[^\\p{N}]+"), "a\U00010d40") == Words{"a", "\U00010d40"});
  REQUIRE(words_of(split_by("\\s"), "a\u180e \u0085") == Words{"a\u180e", " ", "\u0085"});
}

TEST_CASE("ByteLevel's own pattern and prefix space", "[tokenizer]") {
  const Json byte_level = {{"type", "ByteLevel"},
                           {"add_prefix_space", true},
                           {"trim_offsets", true},
                           {"use_regex", true}};
  REQUIRE(words_of(byte_level, "it's  12 o'clock") ==
          Words{" it", "'s", " ", " 12", " o", "'", "clock"});
  REQUIRE(words_of(byte_level, " x") == Words{" x"});
}

TEST_CASE("added tokens are found before the text is cut, the longest first", "[tokenizer]") {
  Json file = tokenizer_file({});
  file["added_tokens"] = {{{"content", "<a>"}, {"special", true}},
                          {{"content", "<a><b>"}, {"special", true}},
                          {{"content", "<l>"}, {"lstrip", true}, {"special", true}},
                          {{"content", "<r>"}, {"rstrip", true}, {"special", true}},
                          {{"content", "ww"}, {"single_word", true}, {"normalized", false}}};
  const auto tokenizer = made(file);
  REQUIRE(tokenizer->vocab_size() == 261);
  REQUIRE(tokenizer->token_id("<a><b>") == 257);
  REQUIRE(tokenizer->token_id("<c>") == std::nullopt);
  REQUIRE(tokenizer->encode("<a<a><a><b>") == Ids{'<', 'a', 256, 257});
  REQUIRE(tokenizer->encode(" \u3000<l> x\t<r> \n y") == Ids{258, ' ', 'x', '\t', 259, 'y'});
  REQUIRE(tokenizer->encode("ww aww-ww") == Ids{260, ' ', 'a', 'w', 'w', '-', 260});
  const Ids ids = {256, 'x', 260, -1, 1000};
  REQUIRE(tokenizer->decode(ids) == "xww");
  REQUIRE(tokenizer->decode(ids, false) == "<a>xww");
}

TEST_CASE("a normalised added token is found in the normalised text only", "[tokenizer]") {
  Json file = tokenizer_file({});
  file["normalizer"] = {{"type", "NFC"}};
  file["added_tokens"] = {{{"content", "e\u0301"}, {"normalized", true}},
                          {{"content", "o\u0301"}, {"normalized", false}}};
  const auto tokenizer = made(file);
  REQUIRE(tokenizer->encode("\u00e9e\u0301") == Ids{256, 256});
  REQUIRE(tokenizer->encode("\u00f3o\u0301") == Ids{0xc3, 0xb3, 257});
}

TEST_CASE("NFC composes, reorders marks and leaves what is newer than Unicode 9", "[tokenizer]") {
  REQUIRE(nfc_of("plain \u00e9 \u4e00") == "plain \u00e9 \u4e00");
  REQUIRE(nfc_of("e\u0301x\u0327\u0301") == "\u00e9x\u0327\u0301");
  REQUIRE(nfc_of("a\u0301\u0323") == "\u1ea1\u0301");
  REQUIRE(nfc_of("\u212b\u2126\u0344") == "\u00c5\u03a9\u0308\u0301");
  REQUIRE(nfc_of("\u1100\u1161\u11a8\uac00\u11a8") == "\uac01\uac01");
  REQUIRE(nfc_of("\u0301\u0323") == "\u0323\u0301");
  REQUIRE(nfc_of("a\u08d3\u0301") == "a\u08d3\u0301");  // since Unicode 11, below
  REQUIRE(nfc_of("\U00011935\U00011930") == "\U00011935\U00011930");
}

TEST_CASE("a hundred thousand marks are put in order at once", "[tokenizer]") {
  std::string text = "a", lower, upper;
  for (int i = 0; i < 50000; ++i) {
    text += "\u0301\u0316";
    lower += "\u0316";
    upper += "\u0301";
  }
  // The first upper mark is not blocked by the lower ones and composes.
  REQUIRE(nfc_of(text) == "\u00e1" + lower + upper.substr(2));
}

TEST_CASE("ill-formed UTF-8 becomes U+FFFD as Python's errors='replace' has it", "[tokenizer]") {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"a\x80z", "a\ufffdz"},
      {"\xc0\xaf", "\ufffd\ufffd"},
      {"\xe2\x82", "\ufffd"},
      {"\xe2\x82(", "\ufffd("},
      {"\xed\xa0\x80", "\ufffd\ufffd\ufffd"},
      {"\xf0\x9f\x98", "\ufffd"},
      {"\xf0\x80\x80\x80", "\ufffd\ufffd\ufffd\ufffd"},
      {"\xf4\x90\x80\x80", "\ufffd\ufffd\ufffd\ufffd"},
      {"\xff\xfe ok \u00e9", "\ufffd\ufffd ok \u00e9"},
  };
  const auto tokenizer = made(tokenizer_file({}));
  for (const auto& [bytes, text] : cases) {
    REQUIRE(replace_invalid_utf8(bytes) == text);
    REQUIRE_FALSE(is_utf8(bytes));
    REQUIRE(tokenizer->encode(bytes) == tokenizer->encode(text));
    const Ids ids(reinterpret_cast<const unsigned char*>(bytes.data()),
                  reinterpret_cast<const unsigned char*>(bytes.data()) + bytes.size());
    REQUIRE(tokenizer->decode(ids) == text);
  }
}

TEST_CASE("the template of the post-processor is added on demand", "[tokenizer]") {
  Json file = tokenizer_file({});
  file["added_tokens"] = {{{"content", "<s>"}, {"special", true}},
                          {{"content", "</s>"}, {"special", true}}};
  file["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single",
       {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}},
        {{"Sequence", {{"id", "A"}, {"type_id", 0}}}},
        {{"SpecialToken", {{"id", "</s>"}, {"type_id", 0}}}}}},
      {"pair", Json::array()},
      {"special_tokens",
       {{"<s>", {{"id", "<s>"}, {"ids", {256}}, {"tokens", {"<s>"}}}},
        {"</s>", {{"id", "</s>"}, {"ids", {257, 257}}, {"tokens", {"</s>", "</s>"}}}}}}};
  REQUIRE(made(file)->encode("x") == Ids{'x'});
  REQUIRE(made(file)->encode("x", true) == Ids{256, 'x', 257, 257});
  REQUIRE(made(file)->encode("", true) == Ids{256, 257, 257});
  REQUIRE(made(file)->opening() == Ids{256});
  REQUIRE(made(tokenizer_file({}))->opening().empty());
}

TEST_CASE("tokenizer_config.json names the tokens of beginning, end and padding", "[tokenizer]") {
  Json file = tokenizer_file({});
  file["added_tokens"] = {{{"content", "</s>"}, {"special", true}}};
  const Json config = {{"bos_token", nullptr},
                       {"eos_token", {{"content", "</s>"}, {"lstrip", false}}},
                       {"pad_token", "</s>"},
                       {"chat_template", "{{ x }}"}};
  const auto tokenizer = made(file, config);
  REQUIRE(tokenizer->bos() == std::nullopt);
  REQUIRE(tokenizer->eos() == 256);
  REQUIRE(tokenizer->pad() == 256);
  REQUIRE(tokenizer->chat_template() == "{{ x }}");
  REQUIRE(made(file)->eos() == std::nullopt);
  REQUIRE(made(file)->content_hash() != tokenizer->content_hash());
  REQUIRE(made(file)->content_hash() == made(file)->content_hash());
}

TEST_CASE("a tokenizer opens from its folder and from its file", "[tokenizer]") {
  const test::TempDir folder;
  write_file_atomically(folder / "tokenizer.json", tokenizer_file({{"a", "b"}}).dump());
  write_file_atomically(folder / "tokenizer_config.json", R"({"eos_token": "b"})");
  REQUIRE(Tokenizer::open(folder.path())->encode("ab") == Ids{256});
  REQUIRE(Tokenizer::open(folder / "tokenizer.json")->eos() == 'b');
}

TEST_CASE("the chat of Qwen2.5 is its model card's", "[tokenizer]") {
  REQUIRE(qwen_chat_prompt({}, "Give me a short introduction to large language model.") ==
          "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful "
          "assistant.<|im_end|>\n"
          "<|im_start|>user\nGive me a short introduction to large language model.<|im_end|>\n"
          "<|im_start|>assistant\n");
  REQUIRE(
      qwen_chat_prompt("", "Hi") ==
      "<|im_start|>system\n<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
  const std::vector<ChatMessage> messages = {{"system", "S"}, {"user", "U"}, {"assistant", "A"}};
  REQUIRE(
      qwen_chat(messages, false) ==
      "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n" +
          qwen_chat_answer("A"));
  REQUIRE(qwen_default_system("{{- '<|im_start|>system\\n' }}...{{- '<|im_start|>system\\nIt\\'s "
                              "me.<|im_end|>\\n' }}") == "It's me.");
  REQUIRE(qwen_default_system("") == kQwenSystemMessage);
}

}  // namespace
}  // namespace dstrain
