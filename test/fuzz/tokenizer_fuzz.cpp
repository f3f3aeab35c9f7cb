#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "engine/base/error.h"
#include "engine/data/tokenizer/pre_tokenizer.h"
#include "engine/data/tokenizer/tokenizer.h"
#include "engine/data/tokenizer/utf8.h"

namespace {

using namespace dstrain;

/// A tokenizer.json is refused with Error{data}, or encodes any text to tokens that it can decode.
void try_tokenizer(std::string_view json, std::string_view text) {
  const auto tokenizer = Tokenizer::parse(json, "", "fuzz");
  for (const bool special : {false, true}) {
    const auto ids = tokenizer->encode(text, special);
    if (!is_utf8(tokenizer->decode(ids, special))) std::abort();
    if (ids != tokenizer->encode(text, special)) std::abort();
  }
}

/// A pattern is refused with Error{data}, or cuts any text into words that are the text.
void try_pattern(std::string_view pattern, std::string_view text) {
  const nlohmann::json split = {{"type", "Split"},
                                {"pattern", {{"Regex", replace_invalid_utf8(pattern)}}},
                                {"behavior", "Isolated"},
                                {"invert", false}};
  const nlohmann::json bytes = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  const PreTokenizer cutter({{"type", "Sequence"}, {"pretokenizers", {split, bytes}}}, "fuzz");
  PreTokenizer::Scratch scratch;
  const std::string valid = replace_invalid_utf8(text);
  std::string joined;
  for (const std::string_view word : cutter.split(valid, TextStart::first, scratch)) {
    if (word.empty()) std::abort();
    joined += word;
  }
  if (joined != valid) std::abort();
}

}  // namespace

/// A pattern or a tokenizer.json, a byte 0, and a text.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::size_t end = input.find('\0');
  const std::string_view first = input.substr(0, end);
  const std::string_view text =
      end == std::string_view::npos ? std::string_view() : input.substr(end + 1);
  try {
    if (first.starts_with('{')) {
      try_tokenizer(first, text);
    } else {
      try_pattern(first, text);
    }
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::data) std::abort();
  }
  return 0;
}
