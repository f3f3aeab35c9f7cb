#include "engine/base/day.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <ctime>

namespace dstrain {
namespace {

constexpr std::array<std::string_view, 12> kMonths = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                                      "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};

/// Digits alone, at most four; -1 for anything else.
int number_of(std::string_view text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole && text.size() <= 4 && number >= 0 ? number : -1;
}

}  // namespace

std::optional<Day> parse_day(std::string_view text) {
  const char between = text.find('-') != std::string_view::npos ? '-' : ' ';
  const std::size_t first = text.find(between);
  const std::size_t second =
      first == std::string_view::npos ? first : text.find(between, first + 1);
  if (second == std::string_view::npos) return std::nullopt;
  const std::string_view a = text.substr(0, first), b = text.substr(first + 1, second - first - 1),
                         c = text.substr(second + 1);
  Day day;
  if (between == '-') {
    day = {.year = number_of(a), .month = number_of(b), .day = number_of(c)};
  } else {
    const auto month = std::ranges::find(kMonths, b);
    if (month == kMonths.end()) return std::nullopt;
    day = {.year = number_of(c),
           .month = static_cast<int>(month - kMonths.begin()) + 1,
           .day = number_of(a)};
  }
  const std::chrono::year_month_day known{std::chrono::year(day.year),
                                          std::chrono::month(static_cast<unsigned>(day.month)),
                                          std::chrono::day(static_cast<unsigned>(day.day))};
  if (day.year < 1000 || day.month < 1 || day.day < 1 || !known.ok()) return std::nullopt;
  return day;
}

std::string format_day(const Day& day) {
  return fmt::format("{:02} {} {}", day.day, kMonths.at(static_cast<std::size_t>(day.month - 1)),
                     day.year);
}

std::string today() { return fmt::format("{:%Y-%m-%d}", fmt::gmtime(std::time(nullptr))); }

}  // namespace dstrain
