#include "engine/chat/trained_spans.h"

#include <fmt/format.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <set>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "test/chat/golden.h"
#include "test/support/catch.h"

namespace dstrain::chat {
namespace {

/// What a tokenizer would list as special: here by their looks in the text of the template.
std::vector<std::string> special_tokens(const std::string& text) {
  static const std::set<std::string> kPlain = {"<start_of_turn>", "<end_of_turn>", "<bos>",
                                               "<end_of_utterance>"};
  std::set<std::string> found = {"<s>", "</s>"};
  for (std::size_t at = 0; (at = text.find('<', at)) != std::string::npos; ++at) {
    const std::size_t end = text.find_first_of(" \n'\"{}<>\\", at + 1);
    if (end == std::string::npos || text[end] != '>') continue;
    const std::string token = text.substr(at, end + 1 - at);
    const bool bars =
        token.find('|') != std::string::npos || token.find("\xef\xbd\x9c") != std::string::npos;
    if (bars || kPlain.contains(token)) found.insert(token);
  }
  return {found.begin(), found.end()};
}

ChatRenderer renderer_of(const Golden::Case& one) {
  return {ChatTemplate::parse(one.text, one.name), special_tokens(one.text),
          golden().chats[0].input.variables};
}

Conversation conversation_of(const Golden::Chat& chat) {
  std::vector<Dict::Entry> entries = {{Text("messages"), chat.input.messages}};
  if (!chat.input.tools.is_none()) entries.push_back({Text("tools"), chat.input.tools});
  return read_chat(Value::dict(Dict(std::move(entries))), ChatFormat::messages);
}

const Golden::Chat& chat_named(std::string_view name) {
  for (const Golden::Chat& chat : golden().chats)
    if (chat.name == name) return chat;
  throw std::runtime_error("no such chat");
}

std::string one_line(std::string text) {
  std::string line;
  for (const char c : text) line += c == '\n' ? std::string("\\n") : std::string(1, c);
  return line;
}

std::string spans_of(const Golden::Case& one) {
  const ChatRenderer renderer = renderer_of(one);
  std::string out = fmt::format(
      "{}{}\n", one.name, ChatTemplate::parse(one.text, one.name).has_marks() ? " (marks)" : "");
  for (const std::string& stop : renderer.stop_tokens()) out += fmt::format("  stop {}\n", stop);
  for (const std::string_view name : {"turns", "tool", "thoughts", "empty"}) {
    try {
      const RenderedChat chat =
          renderer.render(conversation_of(chat_named(name)), TrainedTurns::all);
      for (const TrainedSpan& span : chat.spans) {
        const std::string text = chat.text.bytes().substr(span.begin, span.end - span.begin);
        out += fmt::format("  {} {} [[{}]]{}\n", name, span.message, one_line(text),
                           span.stops ? "" : " no stop");
      }
    } catch (const Error& error) {
      out += fmt::format("  {} refused: {}\n", name, one_line(error.what()));
    }
  }
  return out;
}

TEST_CASE("what is trained of chats with the templates of TRL", "[chat]") {
  std::string all;
  for (const Golden::Case& one : golden().cases) all += spans_of(one);
  const std::string path = "test/golden/chat/trained.txt";
  if (std::getenv("DSTRAIN_UPDATE_GOLDEN") != nullptr) std::ofstream(path) << all;
  CHECK(all == read_file(path));
}

/// The template that a marked copy was made from; null where the chats have other text.
const Golden::Case* original_of(const Golden::Case& copy) {
  constexpr std::string_view kEnding = "_training";
  if (!copy.name.ends_with(kEnding)) return nullptr;
  const std::string name = copy.name.substr(0, copy.name.size() - kEnding.size());
  for (const Golden::Case& one : golden().cases)
    if (one.name == name) return &one;
  return nullptr;
}

TEST_CASE("marked copies mark what the rule trains, and besides only text of the template",
          "[chat]") {
  std::size_t turns = 0, equal = 0, copies = 0;
  for (const Golden::Case& copy : golden().cases) {
    const Golden::Case* original = original_of(copy);
    if (original == nullptr) continue;
    ++copies;
    const ChatRenderer by_marks = renderer_of(copy);
    const ChatRenderer by_rule = renderer_of(*original);
    for (std::size_t i = 0; i < golden().chats.size(); ++i) {
      const Golden::Chat& chat = golden().chats[i];
      if (copy.renders[i].refused || original->renders[i].refused || chat.name == "roles") continue;
      // After an answer of a tool this template gives no prompt, but opens a turn in the chat.
      if (original->name == "diffusion_gemma" && !chat.input.tools.is_none()) continue;
      CAPTURE(copy.name, chat.name);
      const RenderedChat marks = by_marks.render(conversation_of(chat), TrainedTurns::all);
      const RenderedChat rule = by_rule.render(conversation_of(chat), TrainedTurns::all);
      if (marks.text.bytes() != rule.text.bytes()) continue;
      std::map<std::int32_t, TrainedSpan> marked;
      for (const TrainedSpan& span : marks.spans) marked[span.message] = span;
      for (const TrainedSpan& span : rule.spans) {
        CAPTURE(span.message, rule.text.bytes().substr(span.begin, span.end - span.begin));
        REQUIRE(marked.contains(span.message));
        const TrainedSpan& mark = marked[span.message];
        CHECK(mark.begin <= span.begin);
        CHECK((mark.end >= span.end || !mark.stops));
        for (std::size_t at = mark.begin; at < mark.end; ++at)
          if (at < span.begin || at >= span.end)
            CHECK(rule.text.source_at(at).origin == Origin::written);
        ++turns;
        equal += span == mark ? 1 : 0;
      }
    }
  }
  CHECK(copies == 31);
  INFO(equal << " of " << turns << " turns are equal");
  CHECK(turns == 300);
  CHECK(equal == 35);  // the others mark a line end or the head of the turn, too
}

RenderedChat rendered(std::string_view name, std::string_view record, TrainedTurns turns) {
  for (const Golden::Case& one : golden().cases)
    if (one.name == name)
      return renderer_of(one).render(
          read_chat(read_json_value(record, line_and_column(record, "r")), ChatFormat::messages),
          turns);
  throw std::runtime_error("no such template");
}

std::string trained(std::string_view name, std::string_view record,
                    TrainedTurns turns = TrainedTurns::all) {
  const RenderedChat chat = rendered(name, record, turns);
  std::string out;
  for (const TrainedSpan& span : chat.spans)
    out += "[" + chat.text.bytes().substr(span.begin, span.end - span.begin) + "]";
  return out;
}

TEST_CASE("turns are left out by weight and train, and all but the last by the loss", "[chat]") {
  constexpr std::string_view kChat =
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", WORD},
      {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}]})";
  const auto with = [&](std::string_view word) {
    std::string text(kChat);
    return text.replace(text.find("WORD"), 4, word);
  };
  for (const std::string_view name : {"qwen2_5", "llama3", "gemma3"}) {
    CAPTURE(name);
    const std::string stop = name == "qwen2_5"  ? "<|im_end|>"
                             : name == "llama3" ? "<|eot_id|>"
                                                : "<end_of_turn>";
    CHECK(trained(name, with(R"("weight": 1)")) == "[b" + stop + "][d" + stop + "]");
    CHECK(trained(name, with(R"("weight": 0)")) == "[d" + stop + "]");
    CHECK(trained(name, with(R"("train": false)")) == "[d" + stop + "]");
    CHECK(trained(name, with(R"("train": true)"), TrainedTurns::last) == "[d" + stop + "]");
  }
  CHECK(trained("qwen2_5_training", with(R"("weight": 0)")) == "[\nd<|im_end|>\n]");
}

TEST_CASE("a chat without its first turns is as one that was read so", "[chat]") {
  const auto record = [](std::string_view turns) {
    return fmt::format(R"({{"messages": [{{"role": "system", "content": "s"}}{}]}})", turns);
  };
  constexpr std::string_view kFirst =
      R"(, {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"})";
  constexpr std::string_view kRest =
      R"(, {"role": "user", "content": "c"}, {"role": "assistant", "content": "d", "weight": 0},
      {"role": "user", "content": "e"}, {"role": "assistant", "content": "f"})";
  const auto read = [](const std::string& text) {
    return read_chat(read_json_value(text, line_and_column(text, "r")), ChatFormat::messages);
  };
  const Conversation whole = read(record(std::string(kFirst) + std::string(kRest)));
  const Conversation rest = read(record(kRest));
  for (const Golden::Case& one : golden().cases) {
    if (one.name != "qwen2_5" && one.name != "llama3") continue;
    const ChatRenderer renderer = renderer_of(one);
    const RenderedChat found = renderer.render(without_messages(whole, 1, 2), TrainedTurns::all);
    const RenderedChat wanted = renderer.render(rest, TrainedTurns::all);
    CHECK(found.text.bytes() == wanted.text.bytes());
    CHECK(found.spans == wanted.spans);
    CHECK(found.spans.size() == 1);
    CHECK(renderer.render(beginning_of(whole, 3), TrainedTurns::last).spans.size() == 1);
  }
}

TEST_CASE("a chat of 4,000 messages takes no quadratic time", "[chat]") {
  std::string record = R"({"messages": [)";
  for (int i = 0; i < 4000; ++i)
    record += fmt::format(R"({}{{"role": "{}", "content": "text {}"}})", i == 0 ? "" : ", ",
                          i % 2 == 0 ? "user" : "assistant", i);
  CHECK(rendered("llama3_1", record + "]}", TrainedTurns::all).spans.size() == 2000);
}

TEST_CASE("special tokens in the text of a user or of an answer end no turn", "[chat]") {
  CHECK(trained("qwen2_5", R"({"messages": [{"role": "user", "content": "<|im_end|>x"},
      {"role": "assistant", "content": "y<|im_end|>\n<|im_start|>user\nz"}]})") ==
        "[y<|im_end|>\n<|im_start|>user\nz<|im_end|>]");
}

TEST_CASE("arguments of a tool call are tried as text where a template adds them to text",
          "[chat]") {
  constexpr std::string_view kCall = R"({"messages": [{"role": "user", "content": "a"},
      {"role": "assistant", "content": "", "tool_calls": [{"type": "function",
       "function": {"name": "f", "arguments": "{\"x\": 1.50}"}}]}]})";
  CHECK(trained("deepseekv3", kCall).find("{\"x\": 1.5}") != std::string::npos);
  CHECK(trained("qwen2_5", kCall).find("{\"x\": 1.5}") != std::string::npos);
}

}  // namespace
}  // namespace dstrain::chat
