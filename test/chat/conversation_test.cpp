#include "engine/chat/conversation.h"

#include "engine/base/error.h"
#include "engine/chat/json_reader.h"
#include "engine/chat/json_writer.h"
#include "test/support/catch.h"

namespace dstrain::chat {
namespace {

Value record_of(std::string_view text) {
  return read_json_value(text, line_and_column(text, "r.json"));
}

std::string messages(std::string_view text) {
  const Value record = record_of(text);
  const Conversation chat = read_chat(record, chat_format(record));
  Budget budget(RenderLimits{});
  return json_dumps(messages_of(chat, chat.messages.size()), {}, budget).bytes();
}

std::string mistake(std::string_view text) {
  try {
    return "no mistake: " + messages(text);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::data);
    return error.what();
  }
}

TEST_CASE("ShareGPT's turns become messages", "[chat]") {
  CHECK(messages(R"({"conversations": [{"from": "human", "value": "a"},
      {"from": "function_call", "value": "{\"name\": \"f\", \"arguments\": {\"x\": 1}}"},
      {"from": "observation", "value": "2"}, {"from": "gpt", "value": "b"}], "system": "s"})") ==
        R"([{"role": "system", "content": "s"}, {"role": "user", "content": "a"}, )"
        R"({"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": )"
        R"({"name": "f", "arguments": {"x": 1}}}]}, {"role": "tool", "content": "2"}, )"
        R"({"role": "assistant", "content": "b"}])");
}

TEST_CASE("Alpaca's fields become messages", "[chat]") {
  CHECK(messages(R"({"instruction": "Add", "input": "1, 2", "output": "3", "system": "s",
      "history": [["q", "a"]]})") ==
        R"([{"role": "system", "content": "s"}, {"role": "user", "content": "q"}, )"
        R"({"role": "assistant", "content": "a"}, {"role": "user", "content": "Add\n1, 2"}, )"
        R"({"role": "assistant", "content": "3"}])");
  CHECK(messages(R"({"instruction": "Hi", "input": "", "output": "Ho"})") ==
        R"([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}])");
}

TEST_CASE("prompt and completion are two texts, or messages of which the completion is trained",
          "[chat]") {
  const Value texts = record_of(R"({"prompt": "a", "response": "b"})");
  const Conversation plain = read_chat(texts, chat_format(texts));
  CHECK(plain.is_plain());
  CHECK(plain.prompt + "|" + plain.completion == "a|b");
  const Value lists = record_of(R"({"prompt": [{"role": "user", "content": "a"},
      {"role": "assistant", "content": "b"}], "completion": [{"role": "assistant", "content": "c"}]})");
  const Conversation chat = read_chat(lists, chat_format(lists));
  REQUIRE(chat.messages.size() == 3);
  CHECK_FALSE(chat.messages[1].trained);
  CHECK(chat.messages[2].trained);
}

TEST_CASE("keys keep their order, arguments given as text are parsed, weights are taken out",
          "[chat]") {
  CHECK(messages(R"({"messages": [{"content": null, "role": "assistant", "weight": 0,
      "tool_calls": [{"function": {"arguments": "{\"z\": 1e2, \"a\": []}", "name": "f"}}]}]})") ==
        R"([{"content": null, "role": "assistant", "tool_calls": [{"function": )"
        R"({"arguments": {"z": 100.0, "a": []}, "name": "f"}}]}])");
}

TEST_CASE("each text of a message knows its message and field", "[chat]") {
  const Value record = record_of(R"({"messages": [{"role": "user", "content": "a"},
      {"role": "assistant", "content": "b", "reasoning_content": "c", "name": "n",
       "tool_calls": [{"name": "f", "arguments": {"k": "v"}}]}], "tools": "[{\"name\": \"f\"}]"})");
  const Conversation chat = read_chat(record, chat_format(record));
  const Dict& message = *chat.messages[1].value.as_dict();
  CHECK(message.find("role")->source().field == Field::role);
  CHECK(message.find("name")->source().field == Field::role);
  CHECK(message.find("content")->source() ==
        Source{.origin = Origin::message, .field = Field::content, .message = 1});
  CHECK(message.find("reasoning_content")->source().field == Field::thought);
  const Dict& call = *message.find("tool_calls")->as_list()->items[0].as_dict();
  CHECK(call.find("name")->source().field == Field::tool_name);
  const Dict& arguments = *call.find("arguments")->as_dict();
  CHECK(arguments.find("k")->source().field == Field::tool_calls);
  CHECK(arguments.entries()[0].key.source_at(0).message == 1);
  CHECK(chat.tools.as_list()->items[0].as_dict()->find("name")->source().origin == Origin::given);
}

TEST_CASE("what is wrong with a record is said with its message", "[chat]") {
  CHECK(
      mistake(R"({"text": "a", "x": 1})") ==
      "the record is no chat: it has 'text', 'x'; wanted are messages, conversations, instruction "
      "and output, or prompt and completion");
  CHECK(mistake("[1]") == "the record is no object");
  CHECK(mistake(R"({"prompt": "a", "chosen": "b", "rejected": "c"})") ==
        "'chosen' and 'rejected' are a pair of answers, which preference.loss trains");
  CHECK(mistake(R"({"messages": []})") == "the chat has no messages");
  CHECK(mistake(R"({"messages": "a"})") == "'messages' is no list");
  CHECK(mistake(R"({"messages": [{"content": "a"}]})") == "message 1 has no 'role'");
  CHECK(mistake(R"({"messages": [{"role": "critic", "content": "a"}]})") ==
        "message 1: the role 'critic' is unknown; there are system, developer, user, assistant and "
        "tool");
  CHECK(mistake(R"({"messages": [{"role": "user", "content": 5}]})") ==
        "message 1 (user): the content is of type int, not a text or a list of parts");
  CHECK(mistake(R"({"messages": [{"role": "user"}]})") == "message 1 (user) has no content");
  CHECK(mistake(R"({"messages": [{"role": "user", "content": [1]}]})") ==
        "message 1 (user): a part of the content is of type int");
  CHECK(mistake(R"({"messages": [{"role": "assistant", "content": "a", "weight": 2}]})") ==
        "message 1 (assistant): 'weight' is neither 0 nor 1");
  CHECK(mistake(R"({"messages": [{"role": "assistant", "tool_calls": [{"name": "f",
      "arguments": "{x"}]}]})")
            .starts_with("message 1 (assistant): arguments of a tool call, byte 2"));
  CHECK(mistake(R"({"conversations": [{"from": "alien", "value": "a"}]})") ==
        "message 1: 'alien' in 'from' is unknown; there are human, gpt, system, function_call and "
        "observation");
  CHECK(mistake(R"({"conversations": [{"from": "human", "value": 1}]})") ==
        "message 1: 'value' is a int, not a text");
  CHECK(mistake(R"({"instruction": "a", "output": "b", "history": [["q"]]})") ==
        "'history' holds pairs of two texts");
  CHECK(mistake(R"({"messages": [{"role": "user", "content": "a"}], "tools": [1]})") ==
        "'tools': a tool is no object");
  CHECK(
      mistake(R"({"messages": [{"role": "user", "content": "\ud800"}]})").starts_with("r.json:1:"));
  CHECK(mistake(R"({"messages": [{"role": "user", "content": 12345678901234567890123}]})") ==
        "r.json:1:1: a whole number beyond 64 bits");
}

}  // namespace
}  // namespace dstrain::chat
