#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace dstrain::importing {

/// What becomes of a key of another program.
enum class Fate : std::uint8_t {
  same,        ///< H: the same meaning under another name
  translated,  ///< T: other keys, the same numbers
  no_effect,   ///< N: changes no result; dstrain decides it itself or has no use for it
  changes,     ///< W: numbers would change; refused unless --accept names it
  refused      ///< E: no counterpart
};
[[nodiscard]] char letter(Fate fate);

/// Files and command lines whose keys are known.
enum class Table : std::uint8_t {
  deepspeed,           ///< ds_config.json
  trainer,             ///< TrainingArguments, as JSON or as arguments of a script
  accelerate,          ///< accelerate's YAML file
  deepspeed_command,   ///< options of `deepspeed`
  torchrun_command,    ///< options of `torchrun`
  accelerate_command,  ///< options of `accelerate launch`
  sbatch               ///< #SBATCH lines
};
inline constexpr Table kTables[] = {Table::deepspeed,
                                    Table::trainer,
                                    Table::accelerate,
                                    Table::deepspeed_command,
                                    Table::torchrun_command,
                                    Table::accelerate_command,
                                    Table::sbatch};
/// "ds_config.json", "TrainingArguments", ...
[[nodiscard]] std::string_view title(Table table);

/// Kind of a value. An option of a command line is a `flag` where it takes no value.
enum class Kind : std::uint8_t { flag, whole, number, text, list, object, any };
[[nodiscard]] std::string_view title(Kind kind);

struct Given;
class Import;

/// One key of another program: what it becomes and why. The importer, its report and the reference
/// page are made from these rows alone.
struct KeyRule {
  std::string_view path;  ///< "zero_optimization.stage"; "x.*" is x and all keys below it
  Kind kind = Kind::any;
  Fate fate = Fate::no_effect;
  std::string_view target = {};  ///< key of a recipe, or option of `dstrain launch`
  std::string_view reason = {};
  /// Values for which `fate` holds, separated by '|'; empty: all. For others `otherwise` does.
  std::string_view only = {};
  Fate otherwise = Fate::refused;
  /// Takes the value over. Null where it is read together with others (derive.h), or not at all.
  void (*apply)(Given&, Import&) = nullptr;
};

[[nodiscard]] std::span<const KeyRule> rules(Table table);
/// The rule of a key: its own, else that of the innermost "x.*" around it. Null for unknown keys.
[[nodiscard]] const KeyRule* find_rule(Table table, std::string_view path);
/// Whether rules exist for keys below `path`.
[[nodiscard]] bool is_section(Table table, std::string_view path);
/// Names known directly under the section `path` ("" for the top).
[[nodiscard]] std::vector<std::string_view> names_under(Table table, std::string_view path);
/// The section of ds_config.json around `path` that counts only with "enabled": true; empty: none.
[[nodiscard]] std::string_view switched_section(std::string_view path);

/// Ways of `KeyRule::apply`.
void copy_value(Given& given, Import& import);      ///< the value as it is becomes `target`
void copy_option(Given& given, Import& import);     ///< likewise, an option of the launch
void pass_to_sbatch(Given& given, Import& import);  ///< --sbatch=--NAME=VALUE

// Rows by table.
[[nodiscard]] std::span<const KeyRule> deepspeed_rules();
[[nodiscard]] std::span<const KeyRule> deepspeed_zero_rules();
[[nodiscard]] std::span<const KeyRule> trainer_rules();
[[nodiscard]] std::span<const KeyRule> accelerate_rules();
[[nodiscard]] std::span<const KeyRule> deepspeed_command_rules();
[[nodiscard]] std::span<const KeyRule> torchrun_command_rules();
[[nodiscard]] std::span<const KeyRule> accelerate_command_rules();
[[nodiscard]] std::span<const KeyRule> sbatch_rules();

/// The page of all tables, in Markdown.
[[nodiscard]] std::string keys_markdown();

}  // namespace dstrain::importing
