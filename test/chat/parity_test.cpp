#include <algorithm>
#include <set>

#include "engine/base/error.h"
#include "test/chat/golden.h"
#include "test/support/catch.h"

namespace dstrain::chat {
namespace {

/// What is rendered, or the words of the refusal.
std::pair<std::string, bool> rendered(const ChatTemplate& chat, const ChatInput& input) {
  try {
    return {chat.render(input).bytes(), false};
  } catch (const Error& error) {
    return {error.what(), true};
  }
}

TEST_CASE("templates of TRL give the text that jinja2 gives, and refuse what it refuses",
          "[chat]") {
  REQUIRE(golden().cases.size() == 72);
  REQUIRE(golden().chats.size() == 12);
  std::size_t same = 0;
  for (const Golden::Case& one : golden().cases) {
    const auto chat = ChatTemplate::parse(one.text, one.name);
    REQUIRE(one.renders.size() == golden().chats.size());
    for (std::size_t i = 0; i < one.renders.size(); ++i) {
      CAPTURE(one.name, golden().chats[i].name);
      const auto [text, refused] = rendered(chat, golden().chats[i].input);
      INFO(text);
      CHECK(refused == one.renders[i].refused);
      if (!refused) CHECK(text == one.renders[i].text);
      same += refused == one.renders[i].refused && (refused || text == one.renders[i].text) ? 1 : 0;
    }
  }
  CHECK(same == 72 * 12);
}

TEST_CASE("characters inside generation are those that transformers' tracker finds", "[chat]") {
  std::size_t compared = 0;
  for (const Golden::Case& one : golden().cases) {
    const auto chat = ChatTemplate::parse(one.text, one.name);
    for (std::size_t i = 0; i < one.renders.size(); ++i) {
      if (one.renders[i].refused) continue;
      CAPTURE(one.name, golden().chats[i].name);
      const Text text = chat.render(golden().chats[i].input);
      std::string ours(text.size(), '.');
      std::size_t begin = 0;
      for (const Text::Run& run : text.runs()) {
        if (run.source.marked) std::fill(ours.begin() + begin, ours.begin() + run.end, 'x');
        begin = run.end;
      }
      std::string theirs(text.size(), '.');
      for (const auto& [from, to] : one.renders[i].marks)
        std::fill(theirs.begin() + from, theirs.begin() + to, 'x');
      CHECK(ours == theirs);
      compared += one.renders[i].marks.size();
    }
  }
  CHECK(compared > 300);
}

}  // namespace
}  // namespace dstrain::chat
