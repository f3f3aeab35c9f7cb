#include "engine/bench/tables.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

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

double change_percent(double before, double after) { return (after - before) / before * 100; }
double savings_percent(double before, double after) { return (before - after) / before * 100; }

Cell Column::cell(const CaseResult& result) const {
  const double value = result.value(figure) * scale;
  return digits < 0 ? value_cell(value) : number_cell(value, digits);
}

CaseList cases_where(const std::vector<CaseResult>& results,
                     const std::function<bool(const CaseResult&)>& wanted) {
  CaseList list;
  for (const CaseResult& result : results) {
    if (wanted(result)) list.push_back(&result);
  }
  return list;
}

report::Table case_table(const CaseList& rows, const std::vector<CaseColumn>& columns) {
  report::Table table;
  for (const CaseColumn& column : columns) table.header.push_back(column.title);
  for (const CaseResult* row : rows) {
    table.rows.emplace_back();
    for (const CaseColumn& column : columns) table.rows.back().push_back(column.cell(*row));
  }
  return table;
}

Json number_json(double value) { return std::isfinite(value) ? Json(value) : Json(); }

Json estimate_json(const report::Estimate& estimate) {
  Json json = {{"value", number_json(estimate.value)}, {"interval", nullptr}};
  if (estimate.interval) json["interval"] = {estimate.interval->low, estimate.interval->high};
  return json;
}

void add_fields(Fields& row, const report::Figures& figures, std::span<const FieldColumn> columns) {
  for (const FieldColumn& column : columns)
    row.emplace_back(column.key, number_json(figures.value(column.figure) * column.scale));
}

Json fields_json(const Fields& row) {
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

std::string cases_csv(const std::vector<CaseResult>& results, Fields (*fields)(const CaseResult&)) {
  report::Table table;
  for (const auto& [key, value] : fields({})) table.header.emplace_back(key);
  for (const CaseResult& result : results) {
    std::vector<Cell>& row = table.rows.emplace_back();
    for (const auto& [key, value] : fields(result)) {
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

std::string device_words(const std::vector<CaseResult>& results) {
  std::set<std::string> devices;
  for (const CaseResult& result : results) {
    if (!result.device.empty()) devices.insert(result.device);
  }
  return devices.empty() ? "no device" : fmt::format("{}", fmt::join(devices, ", "));
}

std::string ran_words(const std::vector<CaseResult>& results, const char* cases) {
  return fmt::format("{} of {} {} ran, on {}.", std::ranges::count_if(results, &CaseResult::ran),
                     results.size(), cases, device_words(results));
}

}  // namespace dstrain::bench
