#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "engine/chat/answer_pair.h"
#include "engine/chat/json_reader.h"
#include "engine/chat/trained_spans.h"

namespace {

using namespace dstrain;
using namespace dstrain::chat;

constexpr std::string_view kRecord =
    R"({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "<e>"},
    {"role": "assistant", "content": "a", "tool_calls": [{"id": "1", "type": "function",
     "function": {"name": "f", "arguments": {"x": [1, 2.5, null, true]}}}]},
    {"role": "tool", "name": "f", "tool_call_id": "1", "content": "r"},
    {"role": "assistant", "content": [{"type": "text", "text": "b"}]}],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]})";

constexpr RenderLimits kLimits{
    .steps = 20'000, .text = 1 << 16, .work = 1 << 22, .calls = 100, .depth = 500};

/// Runs cover the text, and their borders are borders of characters.
void check(const Text& text) {
  std::size_t begin = 0;
  for (const Text::Run& run : text.runs()) {
    if (run.end <= begin) std::abort();
    const std::string part = text.bytes().substr(begin, run.end - begin);
    if (first_invalid_utf8(part) != std::string::npos) std::abort();
    begin = run.end;
  }
  if (begin != text.size()) std::abort();
}

}  // namespace

/// A template, a byte 0, and maybe a record of a chat: refused with Error{data}, or rendered.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::size_t end = input.find('\0');
  const std::string_view record = end == std::string_view::npos ? kRecord : input.substr(end + 1);
  try {
    const Value value = read_json_value(record, line_and_column(record, "record"));
    const Conversation chat =
        is_pair(value) ? read_pair(value).chosen : read_chat(value, chat_format(value));
    const ChatRenderer renderer(ChatTemplate::parse(input.substr(0, end), "template"),
                                {"<e>", "<s>"}, {{"eos_token", Value::text(std::string("<e>"))}},
                                {}, kLimits);
    const RenderedChat rendered = renderer.render(chat, TrainedTurns::all);
    check(rendered.text);
    for (const TrainedSpan& span : rendered.spans)
      if (span.begin >= span.end || span.end > rendered.text.size()) std::abort();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::data) std::abort();
  }
  return 0;
}
