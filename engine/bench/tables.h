#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/bench/bench_results.h"
#include "engine/report/document.h"

namespace dstrain::bench {

/// A table of a bench with what it answers.
struct BenchTable {
  std::string file;  ///< "1-training": its name in JSON, and of its CSV
  std::string title;
  report::Table table = {};
  std::vector<std::string> sentences = {};  ///< from its figures
  /// "bloom on 8 ranks, stage 3: needs 8 GPUs"; nothing: the table does not say.
  std::optional<std::vector<std::string>> not_run = {};
};

struct BenchTables {
  std::vector<BenchTable> tables;
  std::vector<std::string> left_out;  ///< "Pinned memory: ...", with the reason
};

/// What a bench shows and writes.
struct BenchPages {
  std::string page;  ///< file of the document, "zero.md"
  report::Document document = {};
  std::vector<std::pair<std::string, std::string>> files = {};  ///< beside it: name, content
  std::string json_file = {};
  nlohmann::ordered_json json = {};
};

/// A section for each table, then lists that are not empty.
[[nodiscard]] report::Document tables_document(
    std::string title, std::string lead, const std::vector<BenchTable>& tables,
    std::vector<std::pair<std::string, std::vector<std::string>>> lists);
[[nodiscard]] nlohmann::ordered_json tables_json(const std::vector<BenchTable>& tables);
[[nodiscard]] std::string table_csv(const report::Table& table);

[[nodiscard]] report::Cell text_cell(std::string text);
/// "-" for what is not known.
[[nodiscard]] report::Cell number_cell(double value, int digits);
/// Four digits that count.
[[nodiscard]] report::Cell value_cell(double value);

/// (after - before) / before in per cent; kUnknown where one is.
[[nodiscard]] double change_percent(double before, double after);
/// (before - after) / before in per cent.
[[nodiscard]] double savings_percent(double before, double after);

/// A figure in a table.
struct Column {
  const char* title;
  report::FigureKey figure;
  int digits = -1;  ///< behind the point; -1: four digits that count
  double scale = 1;

  [[nodiscard]] report::Cell cell(const CaseResult& result) const;
};
/// A column of a table with a row for each case: a figure, or what else a result says.
struct CaseColumn {
  std::string title;
  std::function<report::Cell(const CaseResult&)> cell;

  CaseColumn(std::string name, std::function<report::Cell(const CaseResult&)> of)
      : title(std::move(name)), cell(std::move(of)) {}
  CaseColumn(const Column& column)  // NOLINT(google-explicit-constructor)
      : CaseColumn(column.title, [column](const CaseResult& r) { return column.cell(r); }) {}
};

using CaseList = std::vector<const CaseResult*>;
using CasePair = std::pair<const CaseResult*, const CaseResult*>;
/// Those that `wanted` says.
[[nodiscard]] CaseList cases_where(const std::vector<CaseResult>& results,
                                   const std::function<bool(const CaseResult&)>& wanted);
[[nodiscard]] report::Table case_table(const CaseList& rows,
                                       const std::vector<CaseColumn>& columns);

/// A value of a row of CSV and JSON under its key.
using Field = std::pair<const char*, nlohmann::ordered_json>;
using Fields = std::vector<Field>;
/// A figure there.
struct FieldColumn {
  const char* key;  ///< "gpu_mib.min" is a key of an object in JSON
  report::FigureKey figure;
  double scale = 1;
};
void add_fields(Fields& row, const report::Figures& figures, std::span<const FieldColumn> columns);
/// null: not known.
[[nodiscard]] nlohmann::ordered_json number_json(double value);
/// With "value" and "interval".
[[nodiscard]] nlohmann::ordered_json estimate_json(const report::Estimate& estimate);
[[nodiscard]] nlohmann::ordered_json fields_json(const Fields& row);
/// Its keys, then a line for each case.
[[nodiscard]] std::string cases_csv(const std::vector<CaseResult>& results,
                                    Fields (*fields)(const CaseResult&));

/// "NVIDIA H100, CPU"; "no device".
[[nodiscard]] std::string device_words(const std::vector<CaseResult>& results);
/// "9 of 11 cells ran, on NVIDIA H100."
[[nodiscard]] std::string ran_words(const std::vector<CaseResult>& results, const char* cases);

inline constexpr double kPerMib = 1.0 / (1 << 20);
inline constexpr double kPerGib = 1.0 / (1 << 30);

}  // namespace dstrain::bench
