#include "engine/data/tokenizer/decode_steps.h"

#include <fmt/format.h>

#include <charconv>
#include <optional>
#include <utility>

#include "engine/base/error.h"
#include "engine/data/tokenizer/byte_alphabet.h"
#include "engine/data/tokenizer/json_fields.h"
#include "engine/data/tokenizer/normalizer.h"
#include "engine/data/tokenizer/utf8.h"

namespace dstrain {

namespace {

constexpr int kDeepestStep = 16;
constexpr std::size_t kMaxStripped = 1 << 16;

void read(const nlohmann::json& json, const std::string& path, const std::string& place, int depth,
          std::vector<DecodeStep>& steps) {
  using Kind = DecodeStep::Kind;
  const JsonFields fields(json, path, place);
  const std::string type = fields.required_text("type");
  const auto count = [&](const char* key) {
    const nlohmann::json& value = fields.field(key);
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() > kMaxStripped)
      fields.refuse(key, fmt::format("a number of 0 to {}", kMaxStripped));
    return value.get<std::size_t>();
  };
  if (type == "Sequence" && depth < kDeepestStep) {
    const nlohmann::json& list = fields.list("decoders");
    for (std::size_t i = 0; i < list.size(); ++i)
      read(list[i], path, fmt::format("{}.decoders[{}]", place, i), depth + 1, steps);
  } else if (type == "ByteLevel") {
    steps.push_back({.kind = Kind::byte_level});
  } else if (type == "Replace") {
    steps.push_back({.kind = Kind::replace,
                     .pattern = read_replaced_text(json, path, place),
                     .content = read_content(json, "content", path, place)});
  } else if (type == "ByteFallback") {
    steps.push_back({.kind = Kind::byte_fallback});
  } else if (type == "Fuse") {
    steps.push_back({.kind = Kind::fuse});
  } else if (type == "Strip") {
    DecodeStep strip{.kind = Kind::strip, .content = fields.required_text("content")};
    if (strip.content.empty() || code_point_at(strip.content, 0).length != strip.content.size())
      fields.refuse("content", "one character");
    strip.start = count("start");
    strip.stop = count("stop");
    steps.push_back(std::move(strip));
  } else if (type == "Metaspace") {
    steps.push_back({.kind = Kind::metaspace, .metaspace = read_metaspace(json, path, place)});
  } else {
    fields.refuse("type",
                  "ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace or Sequence, which are "
                  "supported");
  }
}

/// The byte of a token like <0x0A>.
std::optional<char> byte_of(const std::string& token) {
  if (token.size() != 6 || !token.starts_with("<0x") || !token.ends_with('>')) return {};
  const char* const last = token.data() + 5;
  const char* const first = token.data() + (token[3] == '+' ? 4 : 3);  // as Rust reads numbers
  unsigned value = 0;
  const auto [end, error] = std::from_chars(first, last, value, 16);
  if (error != std::errc() || end != last) return {};
  return static_cast<char>(value);
}

void fuse(std::vector<std::string>& tokens) {
  std::string all;
  for (const std::string& token : tokens) all += token;
  tokens.assign(1, std::move(all));
}

void join_bytes(std::vector<std::string>& tokens) {
  std::string all;
  for (const std::string& token : tokens) all += bytes_of_token(token).value_or(token);
  tokens.assign(1, is_utf8(all) ? std::move(all) : replace_invalid_utf8(all));
}

/// Runs of tokens of bytes become text. A run that is no UTF-8 is one U+FFFD a byte.
void join_fallen_back(std::vector<std::string>& tokens) {
  std::vector<std::string> texts;
  std::string run;
  const auto end_run = [&] {
    if (run.empty()) return;
    if (is_utf8(run)) {
      texts.push_back(run);
    } else {
      std::string unknown;
      append_utf8(unknown, kReplacementCharacter);
      texts.insert(texts.end(), run.size(), unknown);
    }
    run.clear();
  };
  for (std::string& token : tokens) {
    if (const auto byte = byte_of(token)) {
      run += *byte;
      continue;
    }
    end_run();
    texts.push_back(std::move(token));
  }
  end_run();
  tokens = std::move(texts);
}

void strip(const DecodeStep& step, std::string& token) {
  std::string_view left = token;
  for (std::size_t i = 0; i < step.start && left.starts_with(step.content); ++i)
    left.remove_prefix(step.content.size());
  for (std::size_t i = 0; i < step.stop && left.ends_with(step.content); ++i)
    left.remove_suffix(step.content.size());
  token = std::string(left);
}

}  // namespace

void DecodeStep::apply(std::vector<std::string>& tokens) const {
  switch (kind) {
    case Kind::byte_level:
      return join_bytes(tokens);
    case Kind::byte_fallback:
      return join_fallen_back(tokens);
    case Kind::fuse:
      return fuse(tokens);
    case Kind::strip:
      for (std::string& token : tokens) strip(*this, token);
      return;
    case Kind::replace:
      for (std::string& token : tokens) {
        std::string replaced;
        if (append_replaced(token, pattern, content, replaced)) token = std::move(replaced);
      }
      return;
    case Kind::metaspace:
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        // What was put before the text goes with the first token's.
        const bool drops = i == 0 && metaspace.prepend != Metaspace::Prepend::never;
        std::string replaced;
        if (append_replaced(tokens[i], metaspace.replacement, drops ? "" : " ", replaced))
          tokens[i] = std::move(replaced);
      }
      return;
  }
}

std::vector<DecodeStep> read_decoder(const nlohmann::json& json, const std::string& path) {
  if (json.is_null()) {
    throw Error(ErrorKind::data, fmt::format("{}: decoder: missing", path),
                "expected ByteLevel, or a Sequence of Replace, ByteFallback, Fuse and Strip");
  }
  std::vector<DecodeStep> steps;
  read(json, path, "decoder", 0, steps);
  return steps;
}

}  // namespace dstrain
