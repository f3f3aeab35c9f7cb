#include "engine/chat/conversation.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "engine/chat/json_reader.h"
#include "engine/chat/json_writer.h"
#include "engine/chat/python.h"
#include "engine/chat/record_field.h"

namespace dstrain::chat {

namespace {

using Entries = std::vector<Dict::Entry>;

[[noreturn]] void fail_record(const std::string& message) { throw Error(ErrorKind::data, message); }

const std::string& text_field(const Value& record, std::string_view name,
                              const std::string& where) {
  const Value* found = field(record, name);
  if (found == nullptr) fail_record(fmt::format("{} has no '{}'", where, name));
  if (found->as_text() == nullptr)
    fail_record(fmt::format("{}: '{}' is a {}, not a text", where, name, type_name(*found)));
  return found->as_text()->bytes();
}

const std::vector<Value>& list_field(const Value& record, std::string_view name) {
  const Value* found = field(record, name);
  if (found == nullptr || found->as_list() == nullptr)
    fail_record(fmt::format("'{}' is no list", name));
  return found->as_list()->items;
}

Value parsed_json(const std::string& text, const std::string& where) {
  return read_json_value(text,
                         [&](std::size_t byte) { return fmt::format("{}, byte {}", where, byte); });
}

Dict::Entry entry(std::string key, Value value) { return {Text(std::move(key)), std::move(value)}; }
Dict::Entry entry(std::string key, const std::string& text) {
  return entry(std::move(key), Value::text(text));
}

Source source_of(std::size_t message, Field field, std::size_t call = 0) {
  return {.origin = Origin::message,
          .field = field,
          .call = static_cast<std::uint16_t>(std::min<std::size_t>(call, 65535)),
          .message = static_cast<std::int32_t>(message)};
}

Field field_of(std::string_view key) {
  // What names the speaker belongs to the head of a turn.
  if (key == "role" || key == "name") return Field::role;
  if (key == "content") return Field::content;
  if (key == "reasoning_content" || key == "reasoning" || key == "thinking") return Field::thought;
  return key == "tool_calls" ? Field::tool_calls : Field::other;
}

/// Replaces a value of a dict.
Value with_entry(const Value& dict, std::string_view key, const Value& value) {
  Entries entries = dict.as_dict()->entries();
  for (auto& [name, old] : entries)
    if (name.bytes() == key) old = value;
  return Value::dict(Dict(std::move(entries)), dict.source());
}

/// A tool call whose `arguments` are what `changed` makes of them.
template <typename Changed>
Value with_arguments(const Value& call, const Changed& changed) {
  if (const Value* function = field(call, "function"))
    return with_entry(call, "function", with_arguments(*function, changed));
  const Value* arguments = field(call, "arguments");
  return arguments == nullptr ? call : with_entry(call, "arguments", changed(*arguments));
}

Value marked_call(const Value& call, std::size_t message, std::size_t index,
                  const std::string& where) {
  if (call.as_dict() == nullptr) fail_record(fmt::format("{}: a tool call is no object", where));
  const Value& function = field(call, "function") == nullptr ? call : *field(call, "function");
  const std::string& name = text_field(function, "name", where + ": a tool call");
  const auto parsed = [&](const Value& arguments) {
    if (arguments.as_text() == nullptr) return arguments;
    return parsed_json(arguments.as_text()->bytes(), where + ": arguments of a tool call");
  };
  const Value sourced =
      with_source(with_arguments(call, parsed), source_of(message, Field::tool_calls));
  const Value named = Value::text(name, source_of(message, Field::tool_name, index));
  if (const Value* inner = field(sourced, "function"))
    return with_entry(sourced, "function", with_entry(*inner, "name", named));
  return with_entry(sourced, "name", named);
}

std::optional<Role> role_of(std::string_view name) {
  static constexpr std::pair<std::string_view, Role> kRoles[] = {{"system", Role::system},
                                                                 {"developer", Role::developer},
                                                                 {"user", Role::user},
                                                                 {"assistant", Role::assistant},
                                                                 {"tool", Role::tool}};
  for (const auto& [known, role] : kRoles)
    if (known == name) return role;
  return std::nullopt;
}

void check_content(const Value& message, Role role, const std::string& where) {
  const Value* content = field(message, "content");
  if (content == nullptr) {
    const bool calls =
        field(message, "tool_calls") != nullptr || field(message, "function_call") != nullptr;
    if (role != Role::assistant || !calls) fail_record(fmt::format("{} has no content", where));
    return;
  }
  if (content->as_text() != nullptr) return;
  if (content->as_list() == nullptr)
    fail_record(fmt::format("{}: the content is of type {}, not a text or a list of parts", where,
                            type_name(*content)));
  for (const Value& part : content->as_list()->items)
    if (part.as_text() == nullptr && part.as_dict() == nullptr)
      fail_record(fmt::format("{}: a part of the content is of type {}", where, type_name(part)));
}

bool is_trained(const Value& message, const std::string& where) {
  bool trained = true;
  if (const Value* weight = field(message, "weight")) {
    const auto number = any_number(*weight);
    if (!number || (*number != 0 && *number != 1))
      fail_record(fmt::format("{}: 'weight' is neither 0 nor 1", where));
    trained = *number != 0;
  }
  if (const Value* train = field(message, "train")) {
    if (train->as_bool() == nullptr)
      fail_record(fmt::format("{}: 'train' is neither true nor false", where));
    trained = trained && *train->as_bool();
  }
  return trained;
}

void add_message(Conversation& chat, const Value& message) {
  const std::size_t index = chat.messages.size();
  const std::string where = fmt::format("message {}", index + 1);
  if (message.as_dict() == nullptr) fail_record(fmt::format("{} is no object", where));
  const std::string& name = text_field(message, "role", where);
  const auto role = role_of(name);
  if (!role)
    fail_record(
        fmt::format("{}: the role '{}' is unknown; there are system, developer, user, "
                    "assistant and tool",
                    where, shown(name)));
  const std::string named = fmt::format("{} ({})", where, name);
  check_content(message, *role, named);
  Entries entries;
  for (const auto& [key, value] : message.as_dict()->entries()) {
    if (key.bytes() == "weight" || key.bytes() == "train") continue;
    Value sourced = with_source(value, source_of(index, field_of(key.bytes())));
    if (key.bytes() == "tool_calls" && !value.is_none()) {
      List calls;
      for (const Value& call : list_field(message, "tool_calls"))
        calls.items.push_back(marked_call(call, index, calls.items.size(), named));
      sourced = Value::list(std::move(calls), source_of(index, Field::tool_calls));
    }
    entries.push_back({Text(key.bytes(), source_of(index, Field::other)), std::move(sourced)});
  }
  chat.messages.push_back(
      {.role = *role,
       .trained = is_trained(message, named),
       .value = Value::dict(Dict(std::move(entries)), source_of(index, Field::other))});
}

void add_text(Conversation& chat, std::string role, const std::string& content) {
  add_message(chat, Value::dict(Dict({entry("role", std::move(role)), entry("content", content)})));
}

void add_tools(Conversation& chat, const Value& record) {
  const Value* tools = field(record, "tools");
  if (tools == nullptr) return;
  const Value given =
      tools->as_text() == nullptr ? *tools : parsed_json(tools->as_text()->bytes(), "tools");
  if (given.is_none()) return;
  if (given.as_list() == nullptr) fail_record("'tools' is no list");
  for (const Value& tool : given.as_list()->items)
    if (tool.as_dict() == nullptr) fail_record("'tools': a tool is no object");
  chat.tools = with_source(given, {.origin = Origin::given});
}

void add_sharegpt(Conversation& chat, const Value& turn) {
  const std::string where = fmt::format("message {}", chat.messages.size() + 1);
  const std::string& from = text_field(turn, "from", where);
  const std::string& value = text_field(turn, "value", where);
  const auto is = [&from](std::initializer_list<std::string_view> names) {
    return std::ranges::find(names, from) != names.end();
  };
  if (is({"function_call"})) {
    const Value call = parsed_json(value, where + " (function_call)");
    const Value calls = Value::list(
        {.items = {Value::dict(Dict({entry("type", "function"), entry("function", call)}))}});
    return add_message(chat, Value::dict(Dict({entry("role", "assistant"), entry("content", ""),
                                               entry("tool_calls", calls)})));
  }
  if (is({"human", "user"})) return add_text(chat, "user", value);
  if (is({"gpt", "assistant", "chatgpt", "bard"})) return add_text(chat, "assistant", value);
  if (is({"observation", "tool"})) return add_text(chat, "tool", value);
  if (is({"system"})) return add_text(chat, "system", value);
  fail_record(
      fmt::format("{}: '{}' in 'from' is unknown; there are human, gpt, system, "
                  "function_call and observation",
                  where, shown(from)));
}

void add_alpaca(Conversation& chat, const Value& record) {
  if (field(record, "system") != nullptr && !text_field(record, "system", "the record").empty())
    add_text(chat, "system", text_field(record, "system", "the record"));
  if (field(record, "history") != nullptr) {
    for (const Value& pair : list_field(record, "history")) {
      const List* two = pair.as_list();
      if (two == nullptr || two->items.size() != 2 || two->items[0].as_text() == nullptr ||
          two->items[1].as_text() == nullptr)
        fail_record("'history' holds pairs of two texts");
      add_text(chat, "user", two->items[0].as_text()->bytes());
      add_text(chat, "assistant", two->items[1].as_text()->bytes());
    }
  }
  std::string question = text_field(record, "instruction", "the record");
  if (field(record, "input") != nullptr) {
    const std::string& input = text_field(record, "input", "the record");
    if (!input.empty()) question += "\n" + input;
  }
  add_text(chat, "user", question);
  add_text(chat, "assistant", text_field(record, "output", "the record"));
}

void add_completion(Conversation& chat, const Value& record) {
  const std::string_view answer =
      field(record, "completion") != nullptr ? "completion" : "response";
  if (field(record, "prompt")->as_text() != nullptr) {
    chat.prompt = text_field(record, "prompt", "the record");
    chat.completion = text_field(record, answer, "the record");
    return;
  }
  for (const Value& message : list_field(record, "prompt")) add_message(chat, message);
  for (Message& message : chat.messages) message.trained = false;
  for (const Value& message : list_field(record, answer)) add_message(chat, message);
}

}  // namespace

ChatFormat chat_format(const Value& record) {
  if (record.as_dict() == nullptr) fail_record("the record is no object");
  const auto has = [&record](std::string_view name) { return field(record, name) != nullptr; };
  if (has("messages")) return ChatFormat::messages;
  if (has("conversations")) return ChatFormat::sharegpt;
  if (has("instruction") && has("output")) return ChatFormat::alpaca;
  if (has("prompt") && (has("completion") || has("response"))) return ChatFormat::completion;
  if (has("chosen") && has("rejected"))
    fail_record("'chosen' and 'rejected' are a pair of answers, which preference.loss trains");
  std::string names;
  for (const auto& one : record.as_dict()->entries())
    names += fmt::format("{}'{}'", names.empty() ? "" : ", ", shown(one.key.bytes()));
  fail_record(
      fmt::format("the record is no chat: it has {}; wanted are messages, conversations, "
                  "instruction and output, or prompt and completion",
                  names.empty() ? "no fields" : shown(names, 300)));
}

Conversation read_chat(const Value& record, ChatFormat format) {
  Conversation chat;
  try {
    add_tools(chat, record);
    if (format == ChatFormat::completion) {
      add_completion(chat, record);
      return chat;
    }
    if (format == ChatFormat::messages) {
      for (const Value& message : list_field(record, "messages")) add_message(chat, message);
    } else if (format == ChatFormat::sharegpt) {
      if (field(record, "system") != nullptr && !text_field(record, "system", "the record").empty())
        add_text(chat, "system", text_field(record, "system", "the record"));
      for (const Value& turn : list_field(record, "conversations")) add_sharegpt(chat, turn);
    } else {
      add_alpaca(chat, record);
    }
  } catch (const Fault& fault) {
    fail_record(fault.message);
  }
  if (chat.messages.empty()) fail_record("the chat has no messages");
  return chat;
}

Conversation beginning_of(const Conversation& chat, std::size_t count) {
  Conversation part;
  part.messages.assign(chat.messages.begin(),
                       chat.messages.begin() + static_cast<std::ptrdiff_t>(count));
  part.tools = chat.tools;
  return part;
}

Conversation without_messages(const Conversation& chat, std::size_t first, std::size_t gone) {
  Conversation part;
  part.tools = chat.tools;
  for (std::size_t i = 0; i < chat.messages.size(); ++i) {
    if (i >= first && i < first + gone) continue;
    add_message(part, chat.messages[i].value);
    part.messages.back().trained = chat.messages[i].trained;
  }
  return part;
}

Value messages_of(const Conversation& chat, std::size_t count) {
  List list;
  for (std::size_t i = 0; i < count; ++i) list.items.push_back(chat.messages[i].value);
  return Value::list(std::move(list));
}

bool has_tool_calls(const Conversation& chat) {
  return std::ranges::any_of(chat.messages, [](const Message& message) {
    return field(message.value, "tool_calls") != nullptr;
  });
}

Conversation with_text_arguments(const Conversation& chat) {
  Conversation changed = chat;
  for (Message& message : changed.messages) {
    const Value* calls = field(message.value, "tool_calls");
    if (calls == nullptr) continue;
    const auto as_text = [](const Value& arguments) {
      if (arguments.as_text() != nullptr) return arguments;
      Budget budget(RenderLimits{});
      return Value::text(json_dumps(arguments, {}, budget));
    };
    List list;
    for (const Value& call : calls->as_list()->items)
      list.items.push_back(with_arguments(call, as_text));
    message.value =
        with_entry(message.value, "tool_calls", Value::list(std::move(list), calls->source()));
  }
  return changed;
}

}  // namespace dstrain::chat
