#pragma once

#include <span>
#include <string>
#include <string_view>

namespace dstrain {

/// How well an answer agrees with the right ones: the rules of SQuAD's official script (v1.1 and
/// v2.0), as shares. Rajpurkar et al. 2016, arXiv:1606.05250, section 6.1.
struct AnswerScore {
  double exact = 0;  ///< 1 where it is one of them once both are normalised
  double f1 = 0;     ///< of words as a multiset, with the right answer that gives the most
};
/// `right` holds one answer at least; an empty one means that there is none.
[[nodiscard]] AnswerScore score_answer(std::string_view answer, std::span<const std::string> right);

/// Lower case, without the 32 marks of ASCII, the words a, an, the, and more than single blanks.
[[nodiscard]] std::string normalised_answer(std::string_view answer);

}  // namespace dstrain
