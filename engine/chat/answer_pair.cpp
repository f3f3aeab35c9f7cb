#include "engine/chat/answer_pair.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "engine/chat/budget.h"
#include "engine/chat/python.h"
#include "engine/chat/record_field.h"

namespace dstrain::chat {
namespace {

using Items = std::vector<Value>;

[[noreturn]] void fail_pair(const std::string& message) { throw Error(ErrorKind::data, message); }

bool same(const Value& left, const Value& right) {
  Budget budget(RenderLimits{});
  return equal(left, right, budget);
}

bool blank(std::string_view text) { return text.find_first_not_of(" \t\r\n") == text.npos; }

bool has_role(const Value& message, std::string_view role) {
  const Value* found = field(message, "role");
  return found != nullptr && found->as_text() != nullptr && found->as_text()->bytes() == role;
}

/// Whether a message says something or calls a tool.
bool says_something(const Value& message) {
  const Value* content = field(message, "content");
  if (const Value* calls = field(message, "tool_calls"))
    if (calls->as_list() != nullptr && !calls->as_list()->items.empty()) return true;
  if (content == nullptr) return false;
  return content->as_text() == nullptr ? length_of(*content).value_or(0) > 0
                                       : !blank(content->as_text()->bytes());
}

void refuse_images(const Items& messages) {
  for (const Value& message : messages) {
    const Value* content = field(message, "content");
    if (content == nullptr || content->as_list() == nullptr) continue;
    for (const Value& part : content->as_list()->items) {
      const Value* type = field(part, "type");
      if (type != nullptr && type->as_text() != nullptr &&
          type->as_text()->bytes().starts_with("image"))
        fail_pair("pairs with images are not supported");
    }
  }
}

/// The record of one of the answers, as read_chat takes it.
Conversation read_answer(const Value& record, Value prompt, Value answer) {
  std::vector<Dict::Entry> entries = {{Text("prompt"), std::move(prompt)},
                                      {Text("completion"), std::move(answer)}};
  if (const Value* tools = field(record, "tools")) entries.push_back({Text("tools"), *tools});
  return read_chat(Value::dict(Dict(std::move(entries))), ChatFormat::completion);
}

/// Bytes that both texts begin with: whole characters, without a space at their end, which belongs
/// to the answers.
std::size_t common_text(std::string_view left, std::string_view right) {
  const auto differ = std::ranges::mismatch(left, right);
  auto same_bytes = static_cast<std::size_t>(differ.in1 - left.begin());
  if (same_bytes == left.size() || same_bytes == right.size()) return same_bytes;
  const auto inside = [](char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; };
  while (same_bytes > 0 && (inside(left[same_bytes]) || inside(right[same_bytes]))) --same_bytes;
  if (same_bytes > 0 && left[same_bytes - 1] == ' ') --same_bytes;
  return same_bytes;
}

AnswerPair pair_of_texts(const Value& record, const std::string& chosen,
                         const std::string& rejected) {
  const Value* given = field(record, "prompt");
  if (given != nullptr && given->as_text() == nullptr)
    fail_pair(fmt::format("'prompt' is a {}, and 'chosen' a text", type_name(*given)));
  const std::size_t common = given == nullptr ? common_text(chosen, rejected) : 0;
  if (given == nullptr && common == 0)
    fail_pair("there is no 'prompt', and 'chosen' and 'rejected' begin with different ones");
  const std::string prompt =
      given == nullptr ? chosen.substr(0, common) : given->as_text()->bytes();
  for (const auto& [name, answer] :
       {std::pair("chosen", &chosen), std::pair("rejected", &rejected)})
    if (blank(std::string_view(*answer).substr(common)))
      fail_pair(fmt::format("the {} answer is empty", name));
  const auto read = [&](const std::string& answer) {
    return read_answer(record, Value::text(prompt), Value::text(answer.substr(common)));
  };
  return {.chosen = read(chosen), .rejected = read(rejected)};
}

/// Messages that both lists begin with.
std::size_t common_messages(const Items& left, const Items& right) {
  std::size_t count = 0;
  while (count < std::min(left.size(), right.size()) && same(left[count], right[count])) ++count;
  return count;
}

/// Whether `answer` begins with the messages of `prompt`.
bool begins_with(const Items& answer, const Items& prompt) {
  return !prompt.empty() && common_messages(answer, prompt) == prompt.size();
}

AnswerPair pair_of_lists(const Value& record, const Items& chosen, const Items& rejected) {
  const Value* given = field(record, "prompt");
  const List* list = given == nullptr ? nullptr : given->as_list();
  if (given != nullptr && list == nullptr && given->as_text() == nullptr)
    fail_pair(fmt::format("'prompt' is a {}, not a list of messages", type_name(*given)));
  std::size_t inside = 0;  // messages of the prompt that stand in both answers
  if (list == nullptr) {
    inside = common_messages(chosen, rejected);
    const bool asked =
        given == nullptr ||
        std::ranges::any_of(chosen.begin(), chosen.begin() + static_cast<std::ptrdiff_t>(inside),
                            [&](const Value& message) {
                              const Value* content = field(message, "content");
                              return content != nullptr && same(*content, *given);
                            });
    if (!asked) fail_pair("'prompt' is none of the messages that both answers begin with");
  } else if (begins_with(chosen, list->items) && begins_with(rejected, list->items)) {
    inside = list->items.size();
  }
  const Items prompt =
      list == nullptr ? Items(chosen.begin(), chosen.begin() + static_cast<std::ptrdiff_t>(inside))
                      : list->items;
  if (prompt.empty()) fail_pair("there is no 'prompt', and the first messages differ");
  refuse_images(prompt);
  const auto read = [&](const char* name, const Items& all) {
    const Items answer(all.begin() + static_cast<std::ptrdiff_t>(inside), all.end());
    refuse_images(answer);
    if (answer.empty() || std::ranges::none_of(answer, says_something))
      fail_pair(fmt::format("the {} answer is empty", name));
    if (!has_role(answer.front(), "assistant"))
      fail_pair(
          fmt::format("the prompts differ: message {} of '{}' is not the same in the other answer, "
                      "and none of the assistant's",
                      inside + 1, name));
    return read_answer(record, Value::list({.items = prompt}), Value::list({.items = answer}));
  };
  return {.chosen = read("chosen", chosen), .rejected = read("rejected", rejected)};
}

}  // namespace

bool is_pair(const Value& record) {
  return field(record, "chosen") != nullptr && field(record, "rejected") != nullptr;
}

AnswerPair read_pair(const Value& record) {
  if (!is_pair(record)) fail_pair("the record is no pair: 'chosen' and 'rejected' are wanted");
  for (const char* name : {"image", "images"})
    if (field(record, name) != nullptr) fail_pair("pairs with images are not supported");
  const Value& chosen = *field(record, "chosen");
  const Value& rejected = *field(record, "rejected");
  try {
    if (chosen.as_text() != nullptr && rejected.as_text() != nullptr) {
      if (same(chosen, rejected)) fail_pair("the chosen answer is the rejected one");
      return pair_of_texts(record, chosen.as_text()->bytes(), rejected.as_text()->bytes());
    }
    if (chosen.as_list() == nullptr || rejected.as_list() == nullptr)
      fail_pair(
          fmt::format("'chosen' is a {} and 'rejected' a {}; two texts or two lists of messages "
                      "are wanted",
                      type_name(chosen), type_name(rejected)));
    if (same(chosen, rejected)) fail_pair("the chosen answer is the rejected one");
    return pair_of_lists(record, chosen.as_list()->items, rejected.as_list()->items);
  } catch (const Fault& fault) {
    fail_pair(fault.message);
  }
}

}  // namespace dstrain::chat
