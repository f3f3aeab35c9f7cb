#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace dstrain::trace {

/// A figure as rows of texts, for the terminal and for CSV.
struct Table {
  std::string name;                 ///< of its file: "breakdown"
  std::string title;                ///< "Time of the device"
  std::vector<std::string> header;  ///< with units
  std::vector<std::vector<std::string>> rows;
  std::size_t names = 1;  ///< the first columns are texts, at the left
};

/// Columns side by side, texts longer than 60 bytes cut.
[[nodiscard]] std::string text_of(const Table& table);
/// RFC 4180, texts uncut; one that a spreadsheet takes for a formula gets a "'" before it.
[[nodiscard]] std::string csv_of(const Table& table);

/// A field as RFC 4180 quotes it.
[[nodiscard]] std::string csv_quoted(std::string_view field);

/// "1,234.567": microseconds of nanoseconds, exact.
[[nodiscard]] std::string microseconds(std::int64_t ns);
/// "12.3 %"; "-" where `whole` is 0.
[[nodiscard]] std::string percent(double part, double whole);

}  // namespace dstrain::trace
