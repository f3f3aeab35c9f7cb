#include "engine/infer/answer_figures.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <string>
#include <vector>

namespace dstrain {
namespace {

using text::AnswerRule;

TextQuestion question_of(AnswerRule rule, std::vector<std::string> answers) {
  return {.prompt_tokens = {},
          .prompt = {},
          .response = {},
          .answers = std::move(answers),
          .rule = rule};
}

TEST_CASE("an answer has the figures of its rule, many their means", "[infer]") {
  const TextQuestion colour = question_of(AnswerRule::words, {"red", "the dark red"});
  const AnswerFigures half = judge_answer(colour, "A dark red car");
  CHECK(half.exact_match == 0);
  CHECK(half.f1 == Approx(0.8));
  CHECK(std::isnan(half.right_answers));
  AnswerMeans means;
  CHECK(describe_answers(means.means()) == "");
  means.add(half);
  means.add(judge_answer(colour, "Red."));
  CHECK(describe_answers(means.means()) == "exact match 50.00%, F1 90.00%");
  CHECK(compared_answers(colour) == colour.answers);

  const TextQuestion none = question_of(AnswerRule::words, {""});
  CHECK(judge_answer(none, " Unanswerable.").exact_match == 1);
  CHECK(judge_answer(none, "red").f1 == 0);

  const TextQuestion apples = question_of(AnswerRule::gsm, {"2 + 2 = 4\nThe answer is: 4"});
  CHECK(judge_answer(apples, "So ... The answer is: $4.00").right_answers == 1);
  CHECK(judge_answer(apples, "4").right_answers == 0);
  CHECK(std::isnan(judge_answer(apples, "4").f1));
  CHECK(compared_answers(apples) == std::vector<std::string>{"4"});
  const TextQuestion part = question_of(AnswerRule::math, {"The answer is: \\frac{1}{2}"});
  CHECK(judge_answer(part, "The answer is: 1/2.").right_answers == 1);
  CHECK(judge_answer(part, "The answer is: 0.50").right_answers == 0);
  AnswerMeans right;
  for (const char* answer : {"The answer is: 1/2", "The answer is: 2", "1/2"})
    right.add(judge_answer(part, answer));
  CHECK(describe_answers(right.means()) == "33.33% right");
  CHECK(right.count() == 3);
}

TEST_CASE("right answers that MetaMath's rule does not read are counted", "[infer]") {
  const auto gsm = [](const char* text) { return question_of(AnswerRule::gsm, {text}); };
  CHECK(unread_answers({gsm("The answer is: 1,234"), question_of(AnswerRule::words, {"x"}),
                        gsm("The answer is: 3, 4, 5")}) == "");
  CHECK(unread_answers({gsm("The answer is: 4"), gsm("The answer is: $1,234,567"), gsm("4")}) ==
        "2 of 3 right answers are not read whole by MetaMath's rule; first: $1,234,567 is read as "
        "1234");
  CHECK(unread_answers({gsm("The answer is: none")}) ==
        "1 of 1 right answers are not read whole by MetaMath's rule; first: none has no number");
  CHECK(unread_answers({question_of(AnswerRule::math, {"4"})}) ==
        "1 of 1 right answers are not read whole by MetaMath's rule; first: it has no \"The answer "
        "is: \"");
}

}  // namespace
}  // namespace dstrain
