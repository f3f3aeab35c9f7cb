#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

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

/// A figure in a table.
struct Column {
  const char* title;
  report::FigureKey figure;
  int digits = -1;  ///< behind the point; -1: four digits that count
  double scale = 1;

  [[nodiscard]] report::Cell cell(const report::Figures& figures) const;
};

/// A value of a row of CSV and JSON under its key.
using Field = std::pair<const char*, nlohmann::ordered_json>;
/// A figure there.
struct FieldColumn {
  const char* key;  ///< "gpu_mib.min" is a key of an object in JSON
  report::FigureKey figure;
  double scale = 1;
};
void add_fields(std::vector<Field>& row, const report::Figures& figures,
                std::span<const FieldColumn> columns);
/// null: not known.
[[nodiscard]] nlohmann::ordered_json number_json(double value);
/// With "value" and "interval".
[[nodiscard]] nlohmann::ordered_json estimate_json(const report::Estimate& estimate);
[[nodiscard]] nlohmann::ordered_json fields_json(const std::vector<Field>& row);
/// The keys of `header`, then a line for each row.
[[nodiscard]] std::string fields_csv(const std::vector<Field>& header,
                                     const std::vector<std::vector<Field>>& rows);

/// "NVIDIA H100, CPU" of results; "no device".
[[nodiscard]] std::string device_words(const std::set<std::string>& devices);

inline constexpr double kPerMib = 1.0 / (1 << 20);
inline constexpr double kPerGib = 1.0 / (1 << 30);

}  // namespace dstrain::bench
