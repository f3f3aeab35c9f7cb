#include <fmt/format.h>

#include "engine/base/printable.h"
#include "engine/report/document.h"
#include "engine/report/words.h"

namespace dstrain::report {
namespace {

/// On one line, with what Markdown or HTML would read as more than text written out.
std::string plain_markdown(std::string_view text) {
  std::string out;
  for (const char c : shown(text, 4000)) {
    if (c == '<')
      out += "&lt;";
    else if (c == '&')
      out += "&amp;";
    else if (std::string_view("\\`*_[]|").find(c) != std::string_view::npos)
      out += {'\\', c};
    else
      out += c;
  }
  return out;
}

std::string markdown_row(const std::vector<std::string>& cells) {
  std::string out = "|";
  for (const std::string& cell : cells) out += cell.empty() ? " |" : " " + cell + " |";
  return out + "\n";
}

struct MarkdownBlock {
  std::string operator()(const Paragraph& p) const { return plain_markdown(p.text) + "\n"; }
  std::string operator()(const List& list) const {
    std::string out;
    for (const std::string& item : list.items) out += "- " + plain_markdown(item) + "\n";
    return out;
  }
  std::string operator()(const Table& table) const {
    std::vector<std::string> header;
    for (const std::string& title : table.header) header.push_back(plain_markdown(title));
    std::string out =
        markdown_row(header) + markdown_row(std::vector<std::string>(header.size(), "---"));
    for (const auto& cells : table.rows) {
      std::vector<std::string> row;
      for (const Cell& cell : cells) row.push_back(plain_markdown(cell.text));
      out += markdown_row(row);
    }
    return out;
  }
  std::string operator()(const Bars& bars) const {
    std::string out =
        markdown_row({"part", plain_markdown(bars.unit)}) + markdown_row({"---", "---"});
    for (const auto& [name, share] : bars.rows)
      out += markdown_row({plain_markdown(name), share_words(share)});
    return out;
  }
  std::string operator()(const Picture&) const { return {}; }
};

}  // namespace

std::string document_markdown(const Document& document) {
  std::string out =
      "# " + plain_markdown(document.title) + "\n\n" + plain_markdown(document.lead) + "\n";
  for (const Section& section : document.sections) {
    out += "\n## " + plain_markdown(section.title) + "\n";
    for (const Block& block : section.blocks) out += "\n" + std::visit(MarkdownBlock{}, block);
  }
  return out;
}

}  // namespace dstrain::report
