#include "engine/data/text/prompts.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/data/tokenizer/chat_template.h"
#include "engine/data/tokenizer/utf8.h"

namespace dstrain::text {
namespace {

constexpr std::size_t kShown = 60;  ///< bytes of a text that a message quotes

/// The first `limit` bytes or so of valid UTF-8, on one line.
std::string quoted(std::string_view text, std::size_t limit = kShown) {
  std::size_t end = 0;
  while (end < std::min(text.size(), limit)) end += code_point_at(text, end).length;
  std::string line(text.substr(0, end));
  std::ranges::replace_if(line, [](unsigned char c) { return c < ' '; }, ' ');
  return fmt::format("'{}{}'", line, end < text.size() ? "..." : "");
}

/// Byte at which code point `index` of valid UTF-8 begins; npos past its end.
std::size_t byte_of_code_point(std::string_view text, std::int64_t index) {
  std::size_t at = 0;
  for (; index > 0 && at < text.size(); --index) at += code_point_at(text, at).length;
  return index == 0 ? at : std::string_view::npos;
}

}  // namespace

std::string squad_prompt(std::string_view question, std::string_view context) {
  return fmt::format("Question: {} Context: {} Answer:", question, context);
}

std::string squad_response(std::string_view answer) { return fmt::format(" {}", answer); }

std::string chat_response(std::string_view answer) {
  std::string text = qwen_chat_answer(answer);
  while (text.ends_with('\n')) text.pop_back();  // it parts the answer from a next turn
  return text;
}

std::string check_answer(std::string_view context, std::string_view answer, std::int64_t start) {
  const std::size_t at = start < 0 ? std::string_view::npos : byte_of_code_point(context, start);
  if (at == std::string_view::npos) {
    return fmt::format("answer_start {} lies outside the context", start);
  }
  if (context.substr(at).starts_with(answer)) return "";
  return fmt::format("answer_start {} points at {}, the answer is {}", start,
                     quoted(context.substr(at), std::min(kShown, answer.size())), quoted(answer));
}

bool is_blank(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c == ' ' || (c >= '\t' && c <= '\r'); });
}

}  // namespace dstrain::text
