#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/base/json.h"
#include "engine/import/import.h"
#include "engine/recipe/text.h"

namespace dstrain::importing {
namespace {

/// A cell of a table: bars would end it.
std::string cell(const std::string& text) {
  std::string result;
  for (const char c : shown(text, 300)) {
    if (c == '|') result += '\\';
    result += c;
  }
  return result;
}

std::string keys_of(const Imported& imported, Table table) {
  std::string rows;
  for (const Given& given : imported.keys) {
    if (given.table != table) continue;
    rows +=
        fmt::format("| {} | `{}: {}` | {} | {} | {} |\n", cell(given.origin()), cell(given.path),
                    cell(given.value), letter(given.fate),
                    given.became.empty() ? "" : "`" + cell(given.became) + "`", cell(given.why));
  }
  if (rows.empty()) return {};
  return fmt::format(
      "\n## {}\n\n| where | key | class | became | why |\n| --- | --- | --- | --- | --- |\n{}",
      title(table), rows);
}

std::string bullets(std::string_view heading, const std::vector<std::string>& lines) {
  if (lines.empty()) return {};
  std::string text = fmt::format("\n## {}\n\n", heading);
  for (const std::string& line : lines) text += fmt::format("- {}\n", shown(line, 400));
  return text;
}

std::vector<std::string> sentences(const std::vector<Diagnostic>& all) {
  std::vector<std::string> lines;
  for (const Diagnostic& one : all) {
    lines.push_back(
        fmt::format("`{}`: {}{}", one.path, one.message, one.hint.empty() ? "" : "; " + one.hint));
  }
  return lines;
}

/// A word of a command line as a shell reads it.
std::string shell_word(const std::string& word) {
  const bool plain = !word.empty() && std::ranges::all_of(word, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("_-./:=,@%+").find(c) != std::string_view::npos;
  });
  if (plain) return word;
  const auto control = [](char c) { return static_cast<unsigned char>(c) < ' ' || c == '\x7f'; };
  if (std::ranges::any_of(word, control)) {  // on one line, whatever it holds
    std::string result = "$'";
    for (const char c : word) {
      if (control(c))
        result += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
      else
        result += c == '\'' || c == '\\' ? std::string{'\\', c} : std::string(1, c);
    }
    return result + "'";
  }
  std::string result = "'";
  for (const char c : word) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return result + "'";
}

}  // namespace

std::string launch_line(const Imported& imported, const std::string& recipe) {
  std::string line = "dstrain launch " + shell_word(recipe);
  for (const std::string& word : imported.launch) line += " " + shell_word(word);
  return line;
}

std::string report_markdown(const Imported& imported, const std::string& recipe) {
  std::string text = fmt::format(
      "# What became of {}\n\n"
      "Class: H the same meaning, T translated, N no effect on results here, W other numbers "
      "(accepted).\n"
      "The recipe names the key behind each of its values.\n",
      cell(fmt::format("{}", fmt::join(imported.sources, ", "))));
  std::vector<std::string> needed = sentences(imported.unsaid);
  text += bullets("Still to be said, since such files do not", needed);
  text += bullets("Notes", imported.notes);
  text += bullets("Warnings of the recipe", sentences(imported.warnings));
  text += fmt::format("\n## Start\n\n    {}\n", launch_line(imported, recipe));
  if (!imported.autos.empty()) {
    text += "\n## What \"auto\" became\n\n| key | value | from |\n| --- | --- | --- |\n";
    for (const AutoValue& one : imported.autos)
      text +=
          fmt::format("| `{}` | `{}` | {} |\n", cell(one.path), cell(one.value), cell(one.from));
  }
  for (const Table table : kTables) text += keys_of(imported, table);
  text += bullets("Not read: other arguments of the script, other lines of the batch script",
                  imported.unread);
  return text;
}

std::string report_json(const Imported& imported) {
  using Json = nlohmann::ordered_json;
  Json json;
  json["recipe"] = imported.recipe;
  json["sources"] = imported.sources;
  json["keys"] = Json::array();
  for (const Given& given : imported.keys) {
    json["keys"].push_back({{"table", title(given.table)},
                            {"file", given.file},
                            {"line", given.place.line},
                            {"path", given.path},
                            {"value", given.value},
                            {"class", std::string(1, letter(given.fate))},
                            {"became", given.became},
                            {"why", given.why}});
  }
  json["auto"] = Json::array();
  for (const AutoValue& one : imported.autos)
    json["auto"].push_back({{"path", one.path}, {"value", one.value}, {"from", one.from}});
  json["unsaid"] = Json::array();
  for (const Diagnostic& one : imported.unsaid) json["unsaid"].push_back(one.path);
  json["warnings"] = sentences(imported.warnings);
  json["notes"] = imported.notes;
  json["launch"] = imported.launch;
  json["unread"] = imported.unread;
  return json_text(json, 2) + "\n";
}

}  // namespace dstrain::importing
