#pragma once

#include <CLI/CLI.hpp>
#include <limits>
#include <string>

namespace dstrain {

/// Check of an option that takes a number from `low` to `high`; every such option has it. CLI11's
/// own ranges let nan pass, which is neither below nor above anything.
template <class Number>
[[nodiscard]] CLI::Validator number_in(Number low, Number high) {
  const CLI::Range range(low, high);
  return CLI::Validator(
      [range](std::string& text) -> std::string {
        double value = 0;
        if (CLI::detail::lexical_cast(text, value) && value != value)
          return "'" + text + "' is not a number";
        return range(text);
      },
      range.get_description(), "number_in");
}

/// The same of a number above 0.
[[nodiscard]] inline CLI::Validator positive_number() {
  return number_in(std::numeric_limits<double>::min(), std::numeric_limits<double>::max());
}

}  // namespace dstrain
