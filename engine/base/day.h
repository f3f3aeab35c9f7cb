#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace dstrain {

struct Day {
  int year = 2024;
  int month = 7;
  int day = 26;
};

/// "26 Jul 2024" or "2024-07-26"; nothing for other texts and days that no calendar has.
[[nodiscard]] std::optional<Day> parse_day(std::string_view text);
/// "26 Jul 2024", two digits for the day.
[[nodiscard]] std::string format_day(const Day& day);
/// "2024-07-26", of now in UTC.
[[nodiscard]] std::string today();

}  // namespace dstrain
