#include "engine/infer/answer_figures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "engine/infer/answer_score.h"
#include "engine/infer/math_answer.h"

namespace dstrain {
namespace {

using text::AnswerRule;

bool is_right(AnswerRule rule, std::string_view right, std::string_view answer) {
  if (rule == AnswerRule::gsm) {
    const auto wanted = gsm_answer(right), found = gsm_answer(answer);
    return wanted && found && *wanted == *found;
  }
  const auto wanted = math_answer(right), found = math_answer(answer);
  return wanted && found && are_equal_math(*found, *wanted);
}

/// In the first number of `text`, of which the rule reads one.
std::ptrdiff_t num_commas(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_of("0123456789"), text.size()));
  text = text.substr(0, text.find_first_not_of("0123456789,"));
  while (text.ends_with(',')) text.remove_suffix(1);
  return std::ranges::count(text, ',');
}

/// What the rule does not read, or not whole, of a record's response; empty: nothing.
std::string unread_part(AnswerRule rule, const std::string& response) {
  const std::optional<std::string> part = math_answer(response);
  if (!part) return "it has no \"The answer is: \"";
  if (rule == AnswerRule::math) return "";
  const std::optional<double> number = gsm_answer(response);
  if (!number) return fmt::format("{} has no number", *part);
  return num_commas(*part) < 2 ? "" : fmt::format("{} is read as {:.0f}", *part, *number);
}

}  // namespace

AnswerFigures judge_answer(const TextQuestion& question, std::string_view answer) {
  const std::vector<std::string>& right = question.answers;
  AnswerFigures figures;
  if (question.rule != AnswerRule::words) {
    figures.right_answers = is_right(question.rule, right.front(), answer) ? 1 : 0;
    return figures;
  }
  const bool none = right.front().empty() && normalised_answer(answer) == "unanswerable";
  const AnswerScore score = score_answer(none ? "" : answer, right);
  figures.exact_match = score.exact;
  figures.f1 = score.f1;
  return figures;
}

std::vector<std::string> compared_answers(const TextQuestion& question) {
  if (question.rule == AnswerRule::words) return question.answers;
  return {math_answer(question.answers.front()).value_or("")};
}

std::string unread_answers(const std::vector<TextQuestion>& questions) {
  std::string first;
  int count = 0;
  for (const TextQuestion& question : questions) {
    if (question.rule == AnswerRule::words) continue;
    std::string unread = unread_part(question.rule, question.answers.front());
    if (unread.empty()) continue;
    if (count++ == 0) first = std::move(unread);
  }
  if (count == 0) return "";
  return fmt::format("{} of {} right answers are not read whole by MetaMath's rule; first: {}",
                     count, questions.size(), first);
}

void AnswerMeans::add(const AnswerFigures& figures) {
  sums_.exact_match += figures.exact_match;
  sums_.f1 += figures.f1;
  sums_.right_answers += figures.right_answers;
  ++count_;
}

AnswerFigures AnswerMeans::means() const {
  const auto count = static_cast<double>(count_);  // of none: 0 / 0 is nan
  return {.exact_match = sums_.exact_match / count,
          .f1 = sums_.f1 / count,
          .right_answers = sums_.right_answers / count};
}

std::string describe_answers(const AnswerFigures& figures) {
  if (!std::isnan(figures.right_answers))
    return fmt::format("{:.2f}% right", 100 * figures.right_answers);
  if (std::isnan(figures.f1)) return "";
  return fmt::format("exact match {:.2f}%, F1 {:.2f}%", 100 * figures.exact_match,
                     100 * figures.f1);
}

}  // namespace dstrain
