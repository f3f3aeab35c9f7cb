#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/base/printable.h"
#include "engine/report/document.h"
#include "engine/report/words.h"

namespace dstrain::report {
namespace {

/// Columns of a terminal that UTF-8 text takes, near enough: its characters.
std::size_t width_of(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

std::string wrapped(std::string_view text, std::string_view first, std::string_view rest,
                    std::size_t columns) {
  std::string out(first);
  std::size_t used = width_of(first);
  const std::size_t indent = used;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(' ', begin), text.size());
    const std::string_view word = text.substr(begin, end - begin);
    begin = end + 1;
    if (used > indent && used + 1 + width_of(word) > columns) {
      out += "\n" + std::string(rest);
      used = width_of(rest);
    } else if (used > indent) {
      out += ' ';
      ++used;
    }
    out += word;
    used += width_of(word);
  }
  return out + "\n";
}

std::string terminal_table(const Table& table, std::size_t columns) {
  std::vector<std::vector<std::string>> rows = {{}};
  for (const std::string& title : table.header) rows[0].push_back(shown(title, 60));
  for (const auto& cells : table.rows) {
    rows.emplace_back();
    for (const Cell& cell : cells) rows.back().push_back(shown(cell.text, 60));
  }
  std::vector<std::size_t> widths(table.header.size());
  std::size_t total = 0;
  for (std::size_t column = 0; column < widths.size(); ++column) {
    for (const auto& row : rows) widths[column] = std::max(widths[column], width_of(row[column]));
    total += widths[column] + 2;
  }
  if (table.cut && total > columns + 2) {
    constexpr std::size_t kMin = 20;
    std::size_t& width = widths[*table.cut];
    const std::size_t min = std::min(width, kMin);
    const std::size_t cut = width - std::min(width - min, total - columns - 2);
    for (auto& row : rows) {
      std::string& text = row[*table.cut];
      if (width_of(text) > cut) text = shown(text, cut - 3);  // and "..."
    }
    total -= width - cut;
    width = cut;
  }
  std::string out;
  if (total > columns + 2) {  // too wide: a block for each row
    for (std::size_t row = 1; row < rows.size(); ++row) {
      out += "  " + rows[row][0] + "\n";
      for (std::size_t column = 1; column < widths.size(); ++column)
        out +=
            wrapped(rows[row][column], fmt::format("    {}: ", rows[0][column]), "      ", columns);
    }
    return out;
  }
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t column = 0; column < widths.size(); ++column)
      line += row[column] + std::string(widths[column] - width_of(row[column]) + 2, ' ');
    while (line.ends_with(' ')) line.pop_back();
    out += line + "\n";
  }
  return out;
}

struct TextBlock {
  std::size_t columns;

  std::string operator()(const Paragraph& p) const {
    return wrapped(shown(p.text, 4000), "", "", columns);
  }
  std::string operator()(const List& list) const {
    std::string out;
    for (const std::string& item : list.items)
      out += wrapped(shown(item, 4000), "- ", "  ", columns);
    return out;
  }
  std::string operator()(const Table& table) const { return terminal_table(table, columns); }
  std::string operator()(const Bars& bars) const {
    std::string out;
    for (const auto& [name, share] : bars.rows) {
      const double drawn = std::isfinite(share) ? std::clamp(share, 0.0, 1.0) : 0;
      const auto marks = static_cast<std::size_t>(std::lround(drawn * 48));
      std::string line = fmt::format("{:<16} {:>6}  {}", shown(name, 16), share_words(share),
                                     std::string(marks, '#'));
      while (line.ends_with(' ')) line.pop_back();
      out += line + "\n";
    }
    return out;
  }
  std::string operator()(const Picture&) const { return {}; }
};

}  // namespace

std::string document_text(const Document& document, std::size_t columns) {
  std::string out = wrapped(shown(document.lead, 4000), "", "", columns);
  for (const Section& section : document.sections) {
    const std::string title = shown(section.title, 76);
    out += "\n" + title + "\n" + std::string(width_of(title), '-') + "\n";
    for (std::size_t i = 0; i < section.blocks.size(); ++i)
      out += (i > 0 ? "\n" : "") + std::visit(TextBlock{columns}, section.blocks[i]);
  }
  return out;
}

}  // namespace dstrain::report
