#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/printable.h"  // shown(), with which messages are written

namespace dstrain {

/// The candidate that a person most likely meant; empty when none is close.
[[nodiscard]] std::string_view nearest(std::string_view word,
                                       const std::vector<std::string_view>& candidates);

/// "a, b or c".
[[nodiscard]] std::string one_of(const std::vector<std::string_view>& words);

/// `${VAR}` and `${VAR:-default}` replaced by the environment, `$$` by `$`.
struct Expanded {
  std::string text;
  std::vector<std::string> variables;  ///< those that were read, each once
  std::string mistake;                 ///< what is wrong; empty when nothing is
  std::string hint;
};
[[nodiscard]] Expanded expand_variables(std::string_view text);

/// A number read from the exact text of a plain scalar, or why it is none.
template <class T>
struct Number {
  std::optional<T> value;
  std::string mistake;
  std::string hint;
};
/// Decimal whole number: no leading zero, sign only '-', no underscore, no exponent.
[[nodiscard]] Number<long> read_integer(const std::string& text);
/// YAML's numbers without leading zeros (".5", "0.", "+1"); NaN, infinities, overflow are refused.
[[nodiscard]] Number<double> read_real(const std::string& text);

}  // namespace dstrain
