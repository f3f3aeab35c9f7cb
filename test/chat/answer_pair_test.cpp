#include "engine/chat/answer_pair.h"

#include <fmt/format.h>

#include "engine/base/error.h"
#include "engine/chat/json_reader.h"
#include "engine/chat/json_writer.h"
#include "test/support/catch.h"

namespace dstrain::chat {
namespace {

Value pair_record(const std::string& text) {
  return read_json_value(text, line_and_column(text, "p.json"));
}

/// Roles and contents, trained ones with a star; of texts prompt and completion.
std::string said(const Conversation& chat) {
  if (chat.is_plain()) return chat.prompt + "|" + chat.completion;
  std::string text;
  Budget budget(RenderLimits{});
  for (std::size_t i = 0; i < chat.messages.size(); ++i) {
    const Dict& dict = *chat.messages[i].value.as_dict();
    text += fmt::format("{}{}{}: {}", i > 0 ? ", " : "", chat.messages[i].trained ? "*" : "",
                        dict.find("role")->as_text()->bytes(),
                        json_dumps(*dict.find("content"), {}, budget).bytes());
  }
  return text;
}

std::string pair_of(const std::string& record) {
  const AnswerPair pair = read_pair(pair_record(record));
  return said(pair.chosen) + " / " + said(pair.rejected);
}

std::string pair_refusal(const std::string& record) {
  try {
    return "no refusal: " + pair_of(record);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::data);
    return error.what();
  }
}

const std::string kUser = R"({"role": "user", "content": "q"})";
std::string answer(const std::string& text) {
  return R"({"role": "assistant", "content": ")" + text + R"("})";
}

TEST_CASE("pairs are texts with a prompt, or with what both begin with", "[chat]") {
  CHECK(pair_of(R"({"prompt": "a", "chosen": "b", "rejected": "c"})") == "a|b / a|c");
  // An answer may begin as the prompt does.
  CHECK(pair_of(R"({"prompt": "a", "chosen": "ab", "rejected": "ac"})") == "a|ab / a|ac");
  // The space before the answers is theirs, as in TRL's extract_prompt.
  CHECK(pair_of(R"({"chosen": "H: Hi A: yes", "rejected": "H: Hi A: no"})") ==
        "H: Hi A:| yes / H: Hi A:| no");
  // Characters of two bytes that begin alike.
  CHECK(pair_of(R"({"chosen": "x\u00e9", "rejected": "x\u00e8"})") == "x|\u00e9 / x|\u00e8");
}

TEST_CASE("pairs are messages, whose prompt may stand beside them or in both", "[chat]") {
  const std::string expected = R"(user: "q", *assistant: "b" / user: "q", *assistant: "c")";
  const std::string b = answer("b"), c = answer("c");
  CHECK(pair_of(R"({"prompt": [)" + kUser + R"(], "chosen": [)" + b + R"(], "rejected": [)" + c +
                "]}") == expected);
  const std::string inside =
      R"("chosen": [)" + kUser + "," + b + R"(], "rejected": [)" + kUser + "," + c + "]}";
  CHECK(pair_of("{" + inside) == expected);
  CHECK(pair_of(R"({"prompt": "q", )" + inside) == expected);
  CHECK(pair_of(R"({"prompt": [)" + kUser + "], " + inside) == expected);
  // A turn that both share belongs to the prompt.
  CHECK(pair_of(R"({"chosen": [)" + kUser + "," + b + "," + kUser + "," + c +
                R"(], "rejected": [)" + kUser + "," + b + "," + kUser + "," + answer("d") + "]}") ==
        R"(user: "q", assistant: "b", user: "q", *assistant: "c" / )"
        R"(user: "q", assistant: "b", user: "q", *assistant: "d")");
}

TEST_CASE("what is no pair of answers to one prompt is refused", "[chat]") {
  using Catch::Contains;
  const std::string b = answer("b"), c = answer("c"), none = answer(" ");
  const auto lists = [](const std::string& chosen, const std::string& rejected) {
    return R"({"chosen": [)" + chosen + R"(], "rejected": [)" + rejected + "]}";
  };
  CHECK_THAT(pair_refusal(R"({"prompt": "a", "completion": "b"})"), Contains("is no pair"));
  CHECK_THAT(pair_refusal(R"({"prompt": "a", "chosen": "b", "rejected": "b"})"),
             Contains("the chosen answer is the rejected one"));
  CHECK_THAT(pair_refusal(R"({"prompt": "a", "chosen": "b", "rejected": " \n"})"),
             Contains("the rejected answer is empty"));
  CHECK_THAT(pair_refusal(R"({"chosen": "ab", "rejected": "abc"})"),
             Contains("the chosen answer is empty"));
  CHECK_THAT(pair_refusal(R"({"chosen": "xb", "rejected": "yb"})"),
             Contains("begin with different"));
  CHECK_THAT(pair_refusal(R"({"prompt": [], "chosen": "b", "rejected": "c"})"),
             Contains("'prompt' is a list, and 'chosen' a text"));
  CHECK_THAT(pair_refusal(R"({"chosen": "b", "rejected": []})"),
             Contains("two texts or two lists"));
  CHECK_THAT(pair_refusal(lists(kUser + "," + b, kUser + "," + b)),
             Contains("the chosen answer is the rejected one"));
  CHECK_THAT(pair_refusal(lists(kUser + "," + b, kUser + "," + none)),
             Contains("the rejected answer is empty"));
  CHECK_THAT(pair_refusal(lists(kUser + "," + b, kUser)), Contains("the rejected answer is empty"));
  const std::string other = R"({"role": "user", "content": "r"})";
  CHECK_THAT(pair_refusal(lists(kUser + "," + b, other + "," + c)),
             Contains("first messages differ"));
  const std::string system = R"({"role": "system", "content": "s"})";
  CHECK_THAT(pair_refusal(lists(system + "," + kUser + "," + b, system + "," + other + "," + c)),
             Contains("the prompts differ: message 2 of 'chosen'"));
  CHECK_THAT(pair_refusal(R"({"prompt": "r", "chosen": [)" + kUser + "," + b +
                          R"(], "rejected": [)" + kUser + "," + c + "]}"),
             Contains("'prompt' is none of the messages"));
  const std::string picture = R"({"role": "user", "content": [{"type": "image"}]})";
  CHECK_THAT(pair_refusal(lists(picture + "," + b, picture + "," + c)), Contains("images"));
  CHECK_THAT(
      pair_refusal(R"({"prompt": "a", "chosen": "b", "rejected": "c", "images": ["x.png"]})"),
      Contains("images"));
  CHECK_THAT(pair_refusal(R"({"prompt": [{"role": "user"}], "chosen": [)" + b +
                          R"(], "rejected": [)" + c + "]}"),
             Contains("message 1 (user) has no content"));
}

}  // namespace
}  // namespace dstrain::chat
