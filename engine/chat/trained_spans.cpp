#include "engine/chat/trained_spans.h"

#include <algorithm>
#include <array>
#include <optional>
#include <span>

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
  auto run = std::ranges::upper_bound(text.runs(), at, {}, &Text::Run::end);
  for (std::size_t begin = at; run != text.runs().end(); begin = (run++)->end)
    if (run->source.origin == Origin::message) return begin;
  return text.size();
}

}  // namespace

struct ChatRenderer::Turns {
  const Text& text;
  std::vector<std::size_t> first_runs;  ///< of each message; the number of runs where it has none
  std::vector<std::size_t> ends;        ///< of its last character; npos where it has none
  /// How the prompt goes on behind nothing, and behind a message of each role: its content, or its
  /// role alone.
  std::array<std::array<std::optional<std::string>, 6>, 2> tails;
};

ChatRenderer::Turns ChatRenderer::turns_of(const Text& text, std::size_t messages) {
  Turns turns{.text = text,
              .first_runs = std::vector<std::size_t>(messages, text.runs().size()),
              .ends = std::vector<std::size_t>(messages, kNowhere),
              .tails = {}};
  for (std::size_t i = 0; i < text.runs().size(); ++i) {
    const auto& [end, source] = text.runs()[i];
    if (source.origin != Origin::message) continue;
    const auto message = static_cast<std::size_t>(source.message);
    turns.first_runs[message] = std::min(turns.first_runs[message], i);
    turns.ends[message] = end;
  }
  return turns;
}

ChatRenderer::ChatRenderer(ChatTemplate chat_template, std::vector<std::string> special_tokens,
                           std::vector<std::pair<std::string, Value>> variables, Day date,
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
  Turns parts = turns_of(out.text, chat.messages.size());
  for (std::size_t i = 0; i < chat.messages.size(); ++i)
    if (chat.messages[i].role == Role::assistant && wanted(static_cast<std::int32_t>(i)))
      add_turn(chat, i, parts, out.spans);
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

/// Where the prompt for message `index` ends in the chat; npos where that is behind `said`, or the
/// prompt is no beginning of the chat. Prompts differ behind messages of different roles, so one is
/// rendered for each role, and its end is looked up behind the others: a chat of many turns would
/// else take quadratic time.
std::size_t ChatRenderer::opening_end(const Conversation& chat, std::size_t index, std::size_t said,
                                      bool calls_first, Turns& turns) const {
  const std::string_view bytes = turns.text.bytes();
  const std::size_t before = index == 0 ? 0 : turns.ends[index - 1];
  // The message before may have printed no more than its role.
  const bool head =
      before != kNowhere && before > 0 && turns.text.source_at(before - 1).field == Field::role;
  const std::size_t role =
      index == 0 ? 0 : 1 + static_cast<std::size_t>(chat.messages[index - 1].role);
  std::optional<std::string>& tail = turns.tails[head ? 1 : 0][role];
  if (!calls_first && tail && before != kNowhere && before <= said) {
    const std::size_t end = before + tail->size();
    return bytes.substr(before).starts_with(*tail) && end <= said ? end : kNowhere;
  }
  try {
    const Text prompt = text_of_chat(chat, index, true);
    const auto differ = std::ranges::mismatch(prompt.bytes(), bytes);
    const auto same = static_cast<std::size_t>(differ.in1 - prompt.bytes().begin());
    const std::size_t end = index == 0 ? 0 : turns_of(prompt, index).ends[index - 1];
    if (end != kNowhere) tail = prompt.bytes().substr(end);
    if (same == prompt.size() && same <= said) return same;
    return calls_first && same <= said ? before_open_tag(bytes.substr(0, same)) : kNowhere;
  } catch (const Error&) {
    return kNowhere;  // some templates want a user's message, or more than one message
  }
}

void ChatRenderer::add_turn(const Conversation& chat, std::size_t index, Turns& turns,
                            std::vector<TrainedSpan>& spans) const {
  const Text& text = turns.text;
  const std::string_view bytes = text.bytes();
  Said said;
  bool calls_first = false;          // whose head (<tool_call>) the model has to say, too
  std::vector<std::uint16_t> names;  // of tools that were called so far
  const std::size_t first = turns.first_runs[index];
  std::size_t begin = first == 0 ? 0 : text.runs()[first - 1].end;
  for (const Text::Run& run : std::span(text.runs()).subspan(first)) {
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
  if (const std::size_t same = opening_end(chat, index, said.begin, calls_first, turns);
      same != kNowhere)
    said.begin = same;
  if (silent) said.end = said.begin;
  if (said.begin == kNowhere) return;
  TrainedSpan span{
      .begin = said.begin, .end = said.end, .message = static_cast<std::int32_t>(index)};
  const std::string_view follows = bytes.substr(said.end, next_message(text, said.end) - said.end);
  span.end += end_of_turn(follows, silent);
  span.stops = span.end > said.end;
  if (span.end > span.begin) spans.push_back(span);
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
