#include <fmt/format.h>

#include <string>
#include <utility>

#include "engine/import/key_rule.h"

namespace dstrain::importing {
namespace {

std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '|' || c == '*' || c == '_') result += '\\';
    result += c;
  }
  return result;
}

std::string values(std::string_view only) {
  std::string result;
  for (const char c : only) result += c == '|' ? std::string(", ") : std::string(1, c);
  return result;
}

/// The row behind its key. No bars at the ends and no empty cells: Markdown needs neither.
std::string cells_of(const KeyRule& row) {
  std::string text = fmt::format(" | {}", letter(row.fate));
  if (!row.only.empty())
    text += fmt::format("; not {}: {}", values(row.only), letter(row.otherwise));
  if (!row.target.empty()) text += fmt::format(" | `{}`", row.target);
  if (!row.reason.empty())
    text += fmt::format("{} | {}", row.target.empty() ? " |" : "", escaped(row.reason));
  return text;
}

/// Keys after each other that have the same cells share a row.
std::string table_text(std::string_view heading, std::span<const KeyRule> rows) {
  std::string text = fmt::format(
      "\n## {}\n\nkey | class | becomes | why\n--- | --- | --- | ---\n", heading);
  std::string keys, cells;
  const auto end_row = [&] {
    if (!keys.empty()) text += keys + cells + "\n";
    keys.clear();
  };
  for (const KeyRule& row : rows) {
    std::string next = cells_of(row);
    if (next != cells) end_row();
    keys += fmt::format("{}`{}`", keys.empty() ? "" : ", ", row.path);
    cells = std::move(next);
  }
  end_row();
  return text;
}

}  // namespace

std::string keys_markdown() {
  std::string text =
      "# Keys of DeepSpeed, Transformers, accelerate, torchrun and Slurm, and what they become\n\n"
      "Made by `dstrain recipe import-deepspeed --keys` from the table that the importer itself "
      "uses; do not edit.\n"
      "How to import: FROM_DEEPSPEED.md. Keys of a recipe: REFERENCE.md. Options: `dstrain launch "
      "--help`.\n\n"
      "Class: H the same meaning; T translated, the same numbers; N no effect on results; W "
      "numbers change, refused unless\n"
      "`--accept KEY` names it; E refused. `x.*` is x and all below it. A section with "
      "`\"enabled\": false` is N. A key that\n"
      "is not here is refused.\n";
  for (const Table table : kTables) {
    text += table_text(title(table), rules(table));
    if (table == Table::deepspeed)
      text += table_text("ds_config.json: zero_optimization", deepspeed_zero_rules());
  }
  return text;
}

}  // namespace dstrain::importing
