#include "engine/infer/answer_score.h"

#include <utf8proc.h>

#include <algorithm>
#include <map>
#include <vector>

#include "engine/chat/characters.h"
#include "engine/chat/value.h"

namespace dstrain {
namespace {

bool is_letter_or_number(char32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return true;
    default:
      return false;
  }
}

bool is_letter(char32_t c) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LL ||
         category == UTF8PROC_CATEGORY_LT;
}

/// str.lower of Python.
std::u32string lower(std::string_view text) {
  constexpr char32_t kSigma = U'\u03a3', kFinalSigma = U'\u03c2', kSmallSigma = U'\u03c3';
  constexpr char32_t kDottedI = U'\u0130', kDotAbove = U'\u0307';
  std::u32string characters;
  for (std::size_t at = 0; at < text.size();) characters += chat::next_character(text, at);
  std::u32string result;
  for (std::size_t i = 0; i < characters.size(); ++i) {
    const char32_t c = characters[i];
    if (c == kDottedI) {
      result += U'i';
      result += kDotAbove;
    } else if (c == kSigma) {
      const bool behind = i > 0 && is_letter(characters[i - 1]);
      const bool before = i + 1 < characters.size() && is_letter(characters[i + 1]);
      result += behind && !before ? kFinalSigma : kSmallSigma;
    } else {
      result += static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c)));
    }
  }
  return result;
}

bool is_mark(char32_t c) {
  return c < 0x80 && std::string_view("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
                             .find(static_cast<char>(c)) != std::string_view::npos;
}

bool is_article(std::u32string_view word) { return word == U"a" || word == U"an" || word == U"the"; }

std::vector<std::string> words_of(std::string_view answer) {
  std::u32string text = lower(answer);
  std::erase_if(text, is_mark);
  // Articles go where no letter or number touches them, even inside of what blanks separate.
  std::u32string kept;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = at;
    while (end < text.size() && is_letter_or_number(text[end])) ++end;
    if (end == at) {
      kept += text[at++];
      continue;
    }
    const std::u32string_view word = std::u32string_view(text).substr(at, end - at);
    if (is_article(word))
      kept += U' ';
    else
      kept += word;
    at = end;
  }
  std::vector<std::string> words(1);
  for (const char32_t c : kept) {
    if (!chat::is_space(c))
      chat::append_utf8(words.back(), c);
    else if (!words.back().empty())
      words.emplace_back();
  }
  if (words.back().empty()) words.pop_back();
  return words;
}

double f1_of(const std::vector<std::string>& answer, const std::vector<std::string>& right) {
  if (answer.empty() || right.empty()) return answer.empty() == right.empty() ? 1 : 0;
  std::map<std::string, int> counts;
  for (const std::string& word : right) ++counts[word];
  int same = 0;
  for (const std::string& word : answer)
    if (auto found = counts.find(word); found != counts.end() && found->second-- > 0) ++same;
  if (same == 0) return 0;
  const double precision = same / static_cast<double>(answer.size());
  const double recall = same / static_cast<double>(right.size());
  return 2 * precision * recall / (precision + recall);
}

}  // namespace

std::string normalised_answer(std::string_view answer) {
  std::string text;
  for (const std::string& word : words_of(answer)) text += (text.empty() ? "" : " ") + word;
  return text;
}

AnswerScore score_answer(std::string_view answer, std::span<const std::string> right) {
  const std::vector<std::string> words = words_of(answer);
  std::vector<std::vector<std::string>> all;
  for (const std::string& one : right) all.push_back(words_of(one));
  const bool answerable = std::ranges::any_of(all, [](const auto& one) { return !one.empty(); });
  AnswerScore best;
  for (const std::vector<std::string>& wanted : all) {
    if (answerable && wanted.empty()) continue;  // marks alone are no answer beside others
    best.exact = std::max(best.exact, words == wanted ? 1.0 : 0.0);
    best.f1 = std::max(best.f1, f1_of(words, wanted));
  }
  return best;
}

}  // namespace dstrain
