#include <fmt/format.h>
#include <openssl/evp.h>

#include <array>
#include <cmath>

#include "engine/base/error.h"
#include "engine/report/document.h"
#include "engine/report/page.h"
#include "engine/report/svg.h"
#include "engine/report/words.h"

namespace dstrain::report {
namespace {

/// "sha256-..." as a Content-Security-Policy names what may run.
std::string source_hash(std::string_view text) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest = {};
  unsigned length = 0;
  DSTRAIN_CHECK(
      EVP_Digest(text.data(), text.size(), digest.data(), &length, EVP_sha256(), nullptr) == 1,
      "SHA-256 is always there");
  std::array<unsigned char, 2 * EVP_MAX_MD_SIZE> base64 = {};
  const int written = EVP_EncodeBlock(base64.data(), digest.data(), static_cast<int>(length));
  return "sha256-" + std::string(base64.begin(), base64.begin() + written);
}

struct HtmlBlock {
  std::string operator()(const Paragraph& p) const {
    return "<p>" + escape_html(p.text) + "</p>\n";
  }
  std::string operator()(const List& list) const {
    std::string out = "<ul>\n";
    for (const std::string& item : list.items) out += "<li>" + escape_html(item) + "</li>\n";
    return out + "</ul>\n";
  }
  std::string operator()(const Table& table) const {
    std::vector<bool> numbers(table.header.size());
    for (const auto& row : table.rows) {
      for (std::size_t i = 0; i < row.size(); ++i)
        numbers[i] = numbers[i] || !row[i].figure.empty();
    }
    std::string out = "<div class=\"wide\"><table><thead><tr>";
    for (std::size_t i = 0; i < table.header.size(); ++i)
      out += fmt::format("<th scope=\"col\"{}>{}</th>", numbers[i] ? " class=\"n\"" : "",
                         escape_html(table.header[i]));
    out += "</tr></thead><tbody>\n";
    for (const auto& row : table.rows) {
      out += "<tr>";
      for (std::size_t i = 0; i < row.size(); ++i) {
        out += numbers[i] ? "<td class=\"n\"" : "<td";
        if (!row[i].figure.empty() && std::isfinite(row[i].value))
          out += fmt::format(" data-figure=\"{}\" data-value=\"{}\"", escape_html(row[i].figure),
                             row[i].value);
        if (!row[i].whole.empty() && row[i].whole != row[i].text)
          out += fmt::format(" title=\"{}\"", escape_html(row[i].whole));
        out += ">" + escape_html(row[i].text) + "</td>";
      }
      out += "</tr>\n";
    }
    return out + "</tbody></table></div>\n";
  }
  std::string operator()(const Bars& bars) const {
    Table table = {.header = {"part", bars.unit}, .rows = {}};
    for (const auto& [name, share] : bars.rows)
      table.rows.push_back({{name}, {share_words(share)}});
    return (*this)(table);
  }
  std::string operator()(const Picture& picture) const {
    const std::size_t begin = picture.svg.find("<title>") + 7;
    const std::size_t end = picture.svg.find("</title>");
    return "<figure><figcaption>" + picture.svg.substr(begin, end - begin) + "</figcaption>" +
           picture.svg + "</figure>\n";
  }
};

}  // namespace

std::string document_html(const Document& document) {
  std::string out = fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src '{}'; "
      "script-src '{}'; base-uri 'none'; form-action 'none'\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<title>{}</title>\n<style>{}</style></head>\n<body><main>\n<h1>{}</h1>\n<p "
      "class=\"lead\">{}</p>\n",
      source_hash(page_style()), source_hash(page_script()), escape_html(document.title),
      page_style(), escape_html(document.title), escape_html(document.lead));
  for (const Section& section : document.sections) {
    const std::string title = "<h2>" + escape_html(section.title) + "</h2>";
    out += section.folded ? "<section><details><summary>" + title + "</summary>\n"
                          : "<section>" + title + "\n";
    for (const Block& block : section.blocks) out += std::visit(HtmlBlock{}, block);
    out += section.folded ? "</details></section>\n" : "</section>\n";
  }
  return out +
         fmt::format(
             "<footer>Charts: Tab reaches them; arrows move along a line; on a timeline + and - "
             "zoom, "
             "arrows move, 0 shows all. A key of a legend hides its part.</footer>\n"
             "</main><div id=\"tip\" role=\"status\"></div>\n<script>{}</script></body></html>\n",
             page_script());
}

}  // namespace dstrain::report
