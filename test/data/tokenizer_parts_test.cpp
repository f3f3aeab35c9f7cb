#include <fmt/format.h>

#include <vector>

#include "engine/data/tokenizer/pre_tokenizer.h"
#include "engine/data/tokenizer/tokenizer.h"
#include "test/data/tokenizer_file.h"
#include "test/support/catch.h"

/// The parts of tokenizers that came from SentencePiece: spaces as a character, characters as
/// symbols, bytes of those that are no token.
namespace dstrain {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<std::int32_t>;
using Words = std::vector<std::string>;

const std::string kSpace = "\u2581";

Words cut_words(const Json& pre_tokenizer, const std::string& text,
                TextStart start = TextStart::first) {
  PreTokenizer::Scratch scratch;
  const PreTokenizer cutter(pre_tokenizer, "tokenizer.json");
  const auto& words = cutter.split(text, start, scratch);
  return {words.begin(), words.end()};
}

Json metaspace(const std::string& scheme, bool split) {
  return {
      {"type", "Metaspace"}, {"replacement", kSpace}, {"prepend_scheme", scheme}, {"split", split}};
}

Json replace(const std::string& from, const std::string& to) {
  return {{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}};
}

/// As Llama 2's: ids 0 to 2 are special, 3 to 258 bytes, then characters and merges.
Json character_file() {
  Json vocab = {{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}};
  for (int byte = 0; byte < 256; ++byte) vocab[fmt::format("<0x{:02X}>", byte)] = 3 + byte;
  for (const std::string& token :
       {kSpace, std::string("a"), std::string("b"), std::string("ab"), kSpace + "ab"})
    vocab[token] = vocab.size();
  Json added = Json::array();
  for (const char* token : {"<unk>", "<s>", "</s>"})
    added.push_back({{"content", token}, {"special", true}, {"normalized", false}});
  return {{"added_tokens", std::move(added)},
          {"normalizer",
           {{"type", "Sequence"},
            {"normalizers", {{{"type", "Prepend"}, {"prepend", kSpace}}, replace(" ", kSpace)}}}},
          {"pre_tokenizer", nullptr},
          {"decoder",
           {{"type", "Sequence"},
            {"decoders",
             {replace(kSpace, " "),
              {{"type", "ByteFallback"}},
              {{"type", "Fuse"}},
              {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}}},
          {"model",
           {{"type", "BPE"},
            {"unk_token", "<unk>"},
            {"fuse_unk", true},
            {"byte_fallback", true},
            {"vocab", std::move(vocab)},
            {"merges", Json::array({Json::array({"a", "b"}), Json::array({kSpace, "ab"})})}}}};
}

std::shared_ptr<const Tokenizer> opened(const Json& file) {
  return Tokenizer::parse(file.dump(), "", "tokenizer.json");
}

constexpr int kSpaceId = 259, kA = 260, kAb = 262, kSpaceAb = 263;

TEST_CASE("Metaspace marks spaces, and prepends by its scheme", "[tokenizer]") {
  CHECK(cut_words(metaspace("always", true), "a  b") == Words{kSpace + "a", kSpace, kSpace + "b"});
  CHECK(cut_words(metaspace("always", false), "a b") == Words{kSpace + "a" + kSpace + "b"});
  CHECK(cut_words(metaspace("always", false), " a") == Words{kSpace + "a"});
  CHECK(cut_words(metaspace("first", false), "a") == Words{kSpace + "a"});
  CHECK(cut_words(metaspace("first", false), "a", TextStart::part) == Words{"a"});
  CHECK(cut_words(metaspace("never", true), "a b") == Words{"a", kSpace + "b"});
  for (const char* scheme : {"always", "first", "never"})
    CHECK(cut_words(metaspace(scheme, true), "a b", TextStart::continued) ==
          Words{"a", kSpace + "b"});
}

TEST_CASE("Digits cuts numbers apart, each digit or all", "[tokenizer]") {
  const auto digits = [](bool each) {
    return Json{{"type", "Digits"}, {"individual_digits", each}};
  };
  CHECK(cut_words(digits(true), "ab12\u00bd c3") == Words{"ab", "1", "2", "\u00bd", " c", "3"});
  CHECK(cut_words(digits(false), "ab12\u00bd c3") == Words{"ab", "12\u00bd", " c", "3"});
}

TEST_CASE("a character that is no token becomes its bytes", "[tokenizer]") {
  const auto tokenizer = opened(character_file());
  CHECK(tokenizer->encode("ab\u00e9") == Ids{kSpaceAb, 3 + 0xc3, 3 + 0xa9});
  CHECK(tokenizer->decode(Ids{kSpaceAb, 3 + 0xc3, 3 + 0xa9}) == "ab\u00e9");
  // A run of bytes that is no UTF-8 is one U+FFFD a byte.
  CHECK(tokenizer->decode(Ids{kSpaceAb, 3 + 0xc3, 3 + 0x41, kAb}) == "ab\ufffd\ufffdab");
}

TEST_CASE("without all of its bytes a character is unknown, and neighbours are one",
          "[tokenizer]") {
  Json file = character_file();
  file["model"]["vocab"].erase("<0xA9>");
  CHECK(opened(file)->encode("a\u00e9\u00e9b") == Ids{kSpaceId, kA, 0, 261});
  file["model"]["fuse_unk"] = false;
  CHECK(opened(file)->encode("a\u00e9\u00e9b") == Ids{kSpaceId, kA, 0, 0, 261});
  file["model"].erase("unk_token");
  CHECK(opened(file)->encode("a\u00e9\u00e9b") == Ids{kSpaceAb});
}

TEST_CASE("Prepend stands before each part between special tokens", "[tokenizer]") {
  const auto tokenizer = opened(character_file());
  CHECK(tokenizer->encode("ab</s>ab ab") == Ids{kSpaceAb, 2, kSpaceAb, kSpaceAb});
  CHECK(tokenizer->decode(Ids{kSpaceAb, 2, kSpaceAb, kSpaceAb}) == "ab ab ab");
  CHECK(tokenizer->decode(Ids{kSpaceAb, 2, kSpaceAb}, false) == "ab</s> ab");
}

TEST_CASE("a text that goes on gets nothing in front, unless a token stands before it",
          "[tokenizer]") {
  Json file = character_file();
  for (const bool normalised : {true, false}) {
    if (!normalised) {
      file["normalizer"] = nullptr;
      file["pre_tokenizer"] = metaspace("always", false);
    }
    const auto tokenizer = opened(file);
    const auto behind = [&](std::int32_t last, const std::string& text) {
      Ids ids;
      tokenizer->encode_around(text, {}, tokenizer->start_behind(last), ids);
      return ids;
    };
    CHECK(behind(kA, " ab") == Ids{kSpaceAb});
    CHECK(behind(kA, "ab ab") == Ids{kAb, kSpaceAb});
    CHECK(behind(2, "ab ab") == Ids{kSpaceAb, kSpaceAb});
    CHECK(behind(kA, "</s>ab") == Ids{2, kSpaceAb});
  }
}

TEST_CASE("Metaspace of the first part only leaves those behind tokens as they are",
          "[tokenizer]") {
  Json file = character_file();
  file["normalizer"] = nullptr;
  file["pre_tokenizer"] = metaspace("first", false);
  CHECK(opened(file)->encode("ab</s>ab ab") == Ids{kSpaceAb, 2, kAb, kSpaceAb});
  CHECK(opened(file)->encode("</s>ab") == Ids{2, kAb});
}

TEST_CASE("a decoder Metaspace drops what stood before the first token", "[tokenizer]") {
  Json file = character_file();
  file["decoder"] = metaspace("always", true);
  CHECK(opened(file)->decode(Ids{kSpaceAb, kSpaceAb}) == "ab ab");
  file["decoder"] = metaspace("never", true);
  CHECK(opened(file)->decode(Ids{kSpaceAb, kSpaceAb}) == " ab ab");
}

}  // namespace
}  // namespace dstrain
