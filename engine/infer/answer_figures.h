#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "engine/data/text_dataset.h"

namespace dstrain {

/// What an answer is worth, or many in the mean: shares from 0 to 1; nan: the rule has no such
/// figure.
struct AnswerFigures {
  double exact_match = std::numeric_limits<double>::quiet_NaN();
  double f1 = std::numeric_limits<double>::quiet_NaN();
  double right_answers = std::numeric_limits<double>::quiet_NaN();
};

/// By the question's rule. Where SQuAD has no answer a model says so by the word `unanswerable`.
[[nodiscard]] AnswerFigures judge_answer(const TextQuestion& question, std::string_view answer);

/// The part of the right answers that the rule compares, for people.
[[nodiscard]] std::vector<std::string> compared_answers(const TextQuestion& question);

/// How many right answers MetaMath's rules do not read, or not whole, and the first of them; empty:
/// none.
[[nodiscard]] std::string unread_answers(const std::vector<TextQuestion>& questions);

class AnswerMeans {
 public:
  void add(const AnswerFigures& figures);
  [[nodiscard]] std::int64_t count() const { return count_; }
  /// All nan where no answer was added.
  [[nodiscard]] AnswerFigures means() const;

 private:
  AnswerFigures sums_{.exact_match = 0, .f1 = 0, .right_answers = 0};
  std::int64_t count_ = 0;
};

/// "exact match 62.50%, F1 70.12%", "37.50% right"; empty where no figure is known.
[[nodiscard]] std::string describe_answers(const AnswerFigures& figures);

}  // namespace dstrain
