#include "engine/trace/tables.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/printable.h"

namespace dstrain::trace {
namespace {

/// Characters, not bytes, so that names in UTF-8 keep the columns straight.
std::size_t width(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

std::string csv_field(const std::string& text) {
  std::string field = text;
  if (!field.empty() && std::string_view("=+@\t").find(field.front()) != std::string_view::npos)
    field.insert(0, "'");
  return csv_quoted(field);
}

}  // namespace

std::string csv_quoted(std::string_view field) {
  if (field.find_first_of(",\"\n\r") == std::string_view::npos) return std::string(field);
  std::string quoted = "\"";
  for (const char c : field) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

std::string microseconds(std::int64_t ns) {
  const std::int64_t whole = ns / 1000;
  const std::int64_t rest = ns % 1000;
  return fmt::format("{}{}.{:03}", ns < 0 ? "-" : "", whole < 0 ? -whole : whole,
                     rest < 0 ? -rest : rest);
}

std::string percent(double part, double whole) {
  return whole > 0 ? fmt::format("{:.1f}", 100 * part / whole) : "-";
}

std::string text_of(const Table& table) {
  std::vector<std::vector<std::string>> lines = {table.header};
  for (const auto& row : table.rows) {
    lines.emplace_back();
    for (const std::string& cell : row) lines.back().push_back(shown(cell));
  }
  std::vector<std::size_t> widths(table.header.size(), 0);
  for (const auto& line : lines)
    for (std::size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], width(line[i]));
  std::string text = table.title + "\n";
  for (const auto& line : lines) {
    std::string out = " ";
    for (std::size_t i = 0; i < line.size(); ++i) {
      const std::string space(widths[i] - width(line[i]), ' ');
      out += i < table.names ? fmt::format(" {}{} ", line[i], space)
                             : fmt::format(" {}{} ", space, line[i]);
    }
    out.erase(out.find_last_not_of(' ') + 1);
    text += out + "\n";
  }
  return text;
}

std::string csv_of(const Table& table) {
  std::string text;
  const auto add = [&](const std::vector<std::string>& row) {
    for (std::size_t i = 0; i < row.size(); ++i)
      text += fmt::format("{}{}", i == 0 ? "" : ",", csv_field(row[i]));
    text += "\r\n";
  };
  add(table.header);
  for (const auto& row : table.rows) add(row);
  return text;
}

}  // namespace dstrain::trace
