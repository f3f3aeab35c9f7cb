#include "engine/chat/trained_spans.h"

#include <algorithm>

#include "engine/base/error.h"
#include "engine/chat/json_reader.h"

namespace dstrain::chat {

namespace {

constexpr std::size_t kNowhere = std::string::npos;

/// Characters of a message's turn: its own, without the role and name in its head.
bool says(const Source& source, std::size_t message) {
  return source.origin == Origin::message && source.field != Field::role &&
         source.message == static_cast<std::int32_t>(message);
}

bool is_other_message(const Source& source, std::size_t message) {
  return source.origin == Origin::message && source.message != static_cast<std::int32_t>(message);
}

Conversation plain_chat(bool parts, std::size_t turns) {
  Conversation chat;
  List messages;
  for (std::size_t i = 0; i < turns; ++i) {
    const Value text = Value::text(i % 2 == 0 ? std::string("question") : std::string("answer"));
    const Value part =
        Value::dict(Dict({{Text("type"), Value::text(std::string("text"))}, {Text("text"), text}}));
    const Value content = parts ? Value::list({.items = {part}}) : text;
    const Value role = Value::text(std::string(i % 2 == 0 ? "user" : "assistant"));
    messages.items.push_back(Value::dict(Dict({{Text("role"), role}, {Text("content"), content}})));
  }
  const Value list = Value::list(std::move(messages));
  return read_chat(Value::dict(Dict({{Text("messages"), list}})), ChatFormat::messages);
}

/// Where the first and the last character of a message's turn stand.
struct Said {
  std::size_t begin = kNowhere;
  std::size_t end = 0;
};

Said plainly_said(const Text& text, std::size_t message) {
  Said said;
  std::size_t begin = 0;
  for (const Text::Run& run : text.runs()) {
    if (says(run.source, message)) {
      said.begin = std::min(said.begin, begin);
      said.end = run.end;
    }
    begin = run.end;
  }
  return said;
}

/// End of the text without a tag that is cut off: "a<to" ends behind "a".
std::size_t before_open_tag(std::string_view text) {
  const std::size_t open = text.rfind('<');
  const bool cut = open != kNowhere && text.find('>', open) == kNowhere;
  return cut ? open : text.size();
}

/// Whose turn a mark begins behind message `seen`: an answer that is empty prints nothing.
std::int32_t next_assistant(const Conversation& chat, std::int32_t seen,
                            const std::vector<TrainedSpan>& before) {
  const std::int32_t marked = before.empty() ? -1 : before.back().message;
  const auto count = static_cast<std::int32_t>(chat.messages.size());
  for (std::int32_t i = std::max({seen, marked + 1, 0}); i < count; ++i)
    if (chat.messages[static_cast<std::size_t>(i)].role == Role::assistant) return i;
  return count - 1;
}

/// The first character behind `at` that a message gave.
std::size_t next_message(const Text& text, std::size_t at) {
  std::size_t begin = 0;
  for (const Text::Run& run : text.runs()) {
    if (begin >= at && run.source.origin == Origin::message) return begin;
    begin = run.end;
  }
  return text.size();
}

}  // namespace

ChatRenderer::ChatRenderer(ChatTemplate chat_template, std::vector<std::string> special_tokens,
                           std::vector<std::pair<std::string, Value>> variables, Date date,
                           const RenderLimits& limits)
    : template_(std::move(chat_template)),
      special_tokens_(std::move(special_tokens)),
      variables_(std::move(variables)),
      date_(date),
      limits_(limits) {
  std::erase(special_tokens_, "");
  // Where two begin alike the longer one is meant.
  std::ranges::sort(special_tokens_, std::greater{}, &std::string::size);
  learn_end();
  learn_call();
}

void ChatRenderer::learn_call() {
  constexpr std::string_view kChat =
      R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "",
      "tool_calls": [{"type": "function", "id": "call00001",
       "function": {"name": "f", "arguments": {"x": 1}}}]}]})";
  const Value record = read_json_value(kChat, line_and_column(kChat, "chat"));
  const Conversation chat = read_chat(record, ChatFormat::messages);
  for (const Conversation& one : {chat, with_text_arguments(chat)}) {
    try {
      const Text text = text_of_chat(one, 2, false);
      const auto names = std::ranges::count_if(
          text.runs(), [](const Text::Run& run) { return run.source.field == Field::tool_name; });
      names_in_call_ = std::max<std::ptrdiff_t>(names, 1);
      return;
    } catch (const Error&) {
      continue;  // a template without tool calls, or with arguments of the other form
    }
  }
}

Text ChatRenderer::text_of_chat(const Conversation& chat, std::size_t count, bool prompt) const {
  return template_.render({.messages = messages_of(chat, count),
                           .tools = chat.tools,
                           .documents = Value::none(),
                           .add_generation_prompt = prompt,
                           .variables = variables_,
                           .date = date_},
                          limits_);
}

ChatRenderer::Found ChatRenderer::first_special(std::string_view text) const {
  Found first{kNowhere, kNowhere};
  for (const std::string& token : special_tokens_) {
    const std::size_t at = text.find(token);
    if (at < first.begin) first = {at, at + token.size()};
  }
  return first;
}

ChatRenderer::Found ChatRenderer::last_special(std::string_view text) const {
  Found last{kNowhere, kNowhere};
  for (std::size_t at = 0;;) {
    const Found next = first_special(text.substr(at));
    if (next.begin == kNowhere) return last;
    last = {at + next.begin, at + next.end};
    at += next.end;
  }
}

void ChatRenderer::learn_end() {
  for (const bool parts : {false, true}) {
    try {
      const Conversation chat = plain_chat(parts, 4);
      const Text text = text_of_chat(chat, 4, false);
      const std::string_view bytes = text.bytes();
      const std::size_t inner = plainly_said(text, 1).end;
      const std::size_t last = plainly_said(text, 3).end;
      if (inner == 0 || last == 0) continue;  // it prints no texts, only parts
      const std::string_view within = bytes.substr(inner, next_message(text, inner) - inner);
      const std::string_view final = bytes.substr(last);
      const auto differ = std::ranges::mismatch(within, final);
      const std::string_view common(within.begin(), differ.in1);
      if (const Found found = last_special(common); found.begin != kNowhere) {
        end_ = common.substr(0, found.end);
        stop_tokens_ = {end_.substr(found.begin)};
      } else {
        for (const std::string_view follows : {within, final})
          if (const Found stop = first_special(follows); stop.begin != kNowhere)
            stop_tokens_.emplace_back(follows.substr(stop.begin, stop.end - stop.begin));
      }
      const std::string before = text_of_chat(chat, 1, false).bytes();
      const std::string with_prompt = text_of_chat(chat, 1, true).bytes();
      if (!with_prompt.starts_with(before)) return;
      opening_ = with_prompt.substr(before.size());
      const Found head = first_special(opening_);
      if (head.begin != kNowhere) head_ = opening_.substr(head.begin, head.end - head.begin);
      opening_ = head.begin == kNowhere ? "" : opening_.substr(head.begin);
      return;
    } catch (const Error&) {
      continue;  // a template for contents of parts refuses texts, and the other way round
    }
  }
}

Text ChatRenderer::prompt(const Conversation& chat) const {
  try {
    return text_of_chat(chat, chat.messages.size(), true);
  } catch (const Error&) {
    if (!has_tool_calls(chat)) throw;
  }
  return text_of_chat(with_text_arguments(chat), chat.messages.size(), true);
}

RenderedChat ChatRenderer::render(const Conversation& chat, TrainedTurns turns) const {
  if (!has_tool_calls(chat)) return rendered(chat, turns);
  std::string refusal;
  try {
    return rendered(chat, turns);
  } catch (const Error& error) {
    refusal = error.what();
  }
  try {
    return rendered(with_text_arguments(chat), turns);
  } catch (const Error&) {
    throw Error(ErrorKind::data, refusal);
  }
}

RenderedChat ChatRenderer::rendered(const Conversation& chat, TrainedTurns turns) const {
  RenderedChat out;
  out.text = text_of_chat(chat, chat.messages.size(), false);
  const auto last = std::ranges::find(chat.messages.rbegin(), chat.messages.rend(), Role::assistant,
                                      &Message::role);
  const auto last_turn = static_cast<std::int32_t>(chat.messages.rend() - last) - 1;
  const auto wanted = [&](std::int32_t message) {
    return chat.messages[static_cast<std::size_t>(message)].trained &&
           (turns == TrainedTurns::all || message == last_turn);
  };
  if (template_.has_marks()) {
    out.spans = marked_spans(out.text, chat);
    std::erase_if(out.spans, [&](const TrainedSpan& span) { return !wanted(span.message); });
    return out;
  }
  for (std::size_t i = 0; i < chat.messages.size(); ++i)
    if (chat.messages[i].role == Role::assistant && wanted(static_cast<std::int32_t>(i)))
      add_turn(chat, i, out);
  return out;
}

std::vector<TrainedSpan> ChatRenderer::marked_spans(const Text& text,
                                                    const Conversation& chat) const {
  std::vector<TrainedSpan> spans;
  std::size_t begin = 0;
  std::int32_t seen = -1;  // the newest message so far
  for (const Text::Run& run : text.runs()) {
    if (run.source.origin == Origin::message) seen = std::max(seen, run.source.message);
    if (run.source.marked) {
      if (spans.empty() || spans.back().end != begin) {
        const std::int32_t message = next_assistant(chat, seen, spans);
        spans.push_back({.begin = begin, .end = begin, .message = message});
      }
      TrainedSpan& span = spans.back();
      span.end = run.end;
      if (says(run.source, static_cast<std::size_t>(seen))) span.message = seen;
    }
    begin = run.end;
  }
  for (TrainedSpan& span : spans) {
    const std::string_view said =
        std::string_view(text.bytes()).substr(span.begin, span.end - span.begin);
    span.stops = last_special(said).begin != kNowhere;
  }
  return spans;
}

/// Whether another turn begins in the text between two characters of a message, as where an answer
/// of a tool names the tool. Thoughts and answer may each open the assistant's turn.
bool ChatRenderer::leaves_turn(std::string_view gap, std::string_view behind) const {
  const std::size_t at = head_.empty() ? kNowhere : gap.find(head_);
  return at != kNowhere && !behind.substr(at).starts_with(opening_);
}

void ChatRenderer::add_turn(const Conversation& chat, std::size_t index, RenderedChat& out) const {
  const Text& text = out.text;
  const std::string_view bytes = text.bytes();
  Said said;
  bool calls_first = false;          // whose head (<tool_call>) the model has to say, too
  std::vector<std::uint16_t> names;  // of tools that were called so far
  std::size_t begin = 0;
  for (const Text::Run& run : text.runs()) {
    const std::size_t at = std::exchange(begin, run.end);
    if (said.begin != kNowhere && is_other_message(run.source, index)) break;
    if (!says(run.source, index)) continue;
    if (said.begin != kNowhere &&
        leaves_turn(bytes.substr(said.end, at - said.end), bytes.substr(said.end)))
      break;
    if (run.source.field == Field::tool_name) {
      if (std::ranges::count(names, run.source.call) == names_in_call_) break;
      names.push_back(run.source.call);
    }
    if (said.begin == kNowhere)
      calls_first = run.source.field == Field::tool_calls || run.source.field == Field::tool_name;
    said.begin = std::min(said.begin, at);
    said.end = run.end;
  }
  const bool silent = said.begin == kNowhere;
  try {
    const std::string prompt = text_of_chat(chat, index, true).bytes();
    const auto differ = std::ranges::mismatch(prompt, bytes);
    const auto same = static_cast<std::size_t>(differ.in1 - prompt.begin());
    if (same == prompt.size() && same <= said.begin) {
      said.begin = same;
    } else if (calls_first && same <= said.begin) {
      said.begin = before_open_tag(bytes.substr(0, same));
    }
    if (silent) said.end = said.begin;
  } catch (const Error&) {
    // Some templates want a user's message at the end, or more than one message.
  }
  if (said.begin == kNowhere) return;
  TrainedSpan span{
      .begin = said.begin, .end = said.end, .message = static_cast<std::int32_t>(index)};
  const std::string_view follows = bytes.substr(said.end, next_message(text, said.end) - said.end);
  span.end += end_of_turn(follows, silent);
  span.stops = span.end > said.end;
  if (span.end > span.begin) out.spans.push_back(span);
}

/// Bytes up to the end of the turn's special tokens; 0 where none follows.
std::size_t ChatRenderer::end_of_turn(std::string_view follows, bool silent) const {
  const std::size_t end = end_.empty() ? kNowhere : follows.find(end_);
  if (end != kNowhere) return end + end_.size();
  // Behind an empty answer the first special token may belong to its head.
  std::size_t stop = silent ? kNowhere : first_special(follows).end;
  for (std::size_t i = 0; silent && i < stop_tokens_.size(); ++i)
    if (const std::size_t at = follows.find(stop_tokens_[i]); at != kNowhere)
      stop = std::min(stop, at + stop_tokens_[i].size());
  return stop == kNowhere ? 0 : stop;
}

}  // namespace dstrain::chat
