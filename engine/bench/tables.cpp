#include "engine/bench/tables.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>

#include "engine/report/words.h"

namespace dstrain::bench {

using Json = nlohmann::ordered_json;
using report::Cell;

report::Document tables_document(
    std::string title, std::string lead, const std::vector<BenchTable>& tables,
    std::vector<std::pair<std::string, std::vector<std::string>>> lists) {
  report::Document document{.title = std::move(title), .lead = std::move(lead), .sections = {}};
  for (const BenchTable& table : tables) {
    report::Section section{.title = table.title, .blocks = {table.table}};
    if (!table.sentences.empty()) section.blocks.emplace_back(report::List{table.sentences});
    if (table.not_run && !table.not_run->empty()) {
      section.blocks.emplace_back(report::Paragraph{"Cells without figures:"});
      section.blocks.emplace_back(report::List{*table.not_run});
    }
    document.sections.push_back(std::move(section));
  }
  for (auto& [name, items] : lists) {
    if (!items.empty())
      document.sections.push_back({.title = name, .blocks = {report::List{std::move(items)}}});
  }
  return document;
}

Json tables_json(const std::vector<BenchTable>& tables) {
  Json all = Json::array();
  for (const BenchTable& table : tables) {
    Json lines = Json::array();
    for (const auto& row : table.table.rows) {
      Json line = Json::array();
      for (const Cell& cell : row)
        line.push_back(std::isfinite(cell.value) ? Json(cell.value) : Json(cell.text));
      lines.push_back(std::move(line));
    }
    all.push_back({{"name", table.file},
                   {"title", table.title},
                   {"header", table.table.header},
                   {"rows", std::move(lines)},
                   {"sentences", table.sentences}});
    if (table.not_run) all.back()["not_run"] = *table.not_run;
  }
  return all;
}

std::string table_csv(const report::Table& table) {
  std::string out;
  const auto append = [&out](const std::string& text, bool last) {
    const bool quote = text.find_first_of(",\"\n") != std::string::npos;
    std::string escaped;
    for (const char c : text) escaped += c == '"' ? "\"\"" : std::string(1, c);
    out += (quote ? "\"" + escaped + "\"" : escaped) + (last ? "\n" : ",");
  };
  for (std::size_t i = 0; i < table.header.size(); ++i)
    append(table.header[i], i + 1 == table.header.size());
  for (const auto& row : table.rows) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      append(std::isfinite(row[i].value) ? fmt::format("{:.10g}", row[i].value) : row[i].text,
             i + 1 == row.size());
    }
  }
  return out;
}

Cell text_cell(std::string text) { return {.text = std::move(text)}; }

Cell number_cell(double value, int digits) {
  return {.text = std::isfinite(value) ? fmt::format("{:.{}f}", value, digits) : "-",
          .figure = {},
          .value = value};
}

Cell value_cell(double value) {
  return {.text = report::number_words(value), .figure = {}, .value = value};
}

Cell Column::cell(const report::Figures& figures) const {
  const double value = figures.value(figure) * scale;
  return digits < 0 ? value_cell(value) : number_cell(value, digits);
}

Json number_json(double value) { return std::isfinite(value) ? Json(value) : Json(); }

Json estimate_json(const report::Estimate& estimate) {
  Json json = {{"value", number_json(estimate.value)}, {"interval", nullptr}};
  if (estimate.interval) json["interval"] = {estimate.interval->low, estimate.interval->high};
  return json;
}

void add_fields(std::vector<Field>& row, const report::Figures& figures,
                std::span<const FieldColumn> columns) {
  for (const FieldColumn& column : columns)
    row.emplace_back(column.key, number_json(figures.value(column.figure) * column.scale));
}

Json fields_json(const std::vector<Field>& row) {
  Json json;
  for (const auto& [name, value] : row) {
    const std::string key = name;
    const std::size_t dot = key.find('.');
    if (dot == std::string::npos)
      json[key] = value;
    else
      json[key.substr(0, dot)][key.substr(dot + 1)] = value;
  }
  return json;
}

std::string fields_csv(const std::vector<Field>& header,
                       const std::vector<std::vector<Field>>& rows) {
  report::Table table;
  for (const auto& [key, value] : header) table.header.emplace_back(key);
  for (const std::vector<Field>& fields : rows) {
    std::vector<Cell>& row = table.rows.emplace_back();
    for (const auto& [key, value] : fields) {
      if (value.is_number())
        row.push_back({.text = "", .figure = {}, .value = value.get<double>()});
      else if (value.is_boolean())
        row.push_back(text_cell(value.get<bool>() ? "true" : "false"));
      else
        row.push_back(text_cell(value.is_string() ? value.get<std::string>() : ""));
    }
  }
  return table_csv(table);
}

std::string device_words(const std::set<std::string>& devices) {
  return devices.empty() ? "no device" : fmt::format("{}", fmt::join(devices, ", "));
}

}  // namespace dstrain::bench
