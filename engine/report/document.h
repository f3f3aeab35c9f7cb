#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "engine/report/compare.h"

namespace dstrain::report {

/// Text of a table; a number has its place in the JSON ("runs.0.step_s") and its value there.
struct Cell {
  std::string text;
  std::string figure = {};
  double value = kUnknown;
  std::string whole = {};  ///< what the text is short for; shown at the pointer
};
struct Table {
  std::vector<std::string> header;
  std::vector<std::vector<Cell>> rows;
  std::optional<std::size_t> cut = {};  ///< column whose texts a terminal may cut off
};
struct Paragraph {
  std::string text;
};
struct List {
  std::vector<std::string> items;
};
/// A share of `of`, drawn as a bar: "compute  54 % ######".
struct Bars {
  std::string unit;
  std::vector<std::pair<std::string, double>> rows;  ///< name, share of 1
};
/// Only where pictures are shown; its numbers stand in a table, too.
struct Picture {
  std::string svg;
};
using Block = std::variant<Paragraph, List, Table, Bars, Picture>;

struct Section {
  std::string title;
  std::vector<Block> blocks;
  bool folded = false;  ///< closed at first where that can be
};

struct Document {
  std::string title;
  std::string lead;  ///< what one would say of it
  std::vector<Section> sections;
};

/// What is said, in which order; the same in every format.
[[nodiscard]] Document make_document(const Report& report, bool pictures);

/// `columns` of the terminal: a table that is wider is written as a block for each row.
[[nodiscard]] std::string document_text(const Document& document, std::size_t columns = 80);
[[nodiscard]] std::string document_markdown(const Document& document);
/// One file without any other: style and script inside, no network.
[[nodiscard]] std::string document_html(const Document& document);
/// All numbers of the report, without the curves.
[[nodiscard]] std::string report_json(const Report& report);

}  // namespace dstrain::report
