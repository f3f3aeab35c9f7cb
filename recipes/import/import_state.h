#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "recipes/import/import.h"
#include "recipes/import/script_command.h"

namespace dstrain::importing {

/// A value of the recipe in the making.
struct Setting {
  std::string value;   ///< YAML
  std::string origin;  ///< "ds_config.json:7 optimizer.params.lr"
  const Given* given = nullptr;
};

/// What a batch script asks Slurm for; 0 and empty: not said.
struct BatchRequest {
  long nodes = 0;
  long tasks = 0;          ///< of a node
  long total_tasks = 0;    ///< as --ntasks says
  long gpus = 0;           ///< of a node
  std::string gpu_type = {};
  long cpus_per_task = 0;
  std::string other_gres = {};  ///< --gres without GPUs
};

/// All that an import knows: the keys given, the recipe in the making, the mistakes.
class Import {
 public:
  explicit Import(const ImportOptions& options);

  [[nodiscard]] const ImportOptions& options() const { return options_; }

  /// Looks up the rule, checks the type and takes the key in. Reports unknown keys.
  void take(Given given);
  [[nodiscard]] std::deque<Given>& keys() { return keys_; }
  /// Null where the key is not given or does not count.
  [[nodiscard]] Given* find(Table table, std::string_view path);
  /// Whether any key of the table, or of its section `path`, counts.
  [[nodiscard]] bool has(Table table, std::string_view path = {}) const;

  [[nodiscard]] std::optional<double> number(Table table, std::string_view path);
  [[nodiscard]] std::optional<long> whole(Table table, std::string_view path);
  [[nodiscard]] std::optional<bool> flag(Table table, std::string_view path);
  /// In lower case.
  [[nodiscard]] std::optional<std::string> word(Table table, std::string_view path);

  /// Gives the recipe a value; the key that it came from, where there is one, says so in its
  /// report.
  void set(std::string_view key, std::string value, Given* from);
  void set(std::string_view key, std::string value, std::string origin);
  [[nodiscard]] const std::map<std::string, Setting, std::less<>>& settings() const {
    return settings_;
  }
  /// The value that --set gives a key of the recipe.
  [[nodiscard]] std::optional<std::string> chosen(std::string_view key) const;

  /// Changes what became of a key.
  void outcome(Given* given, Fate fate, std::string why);
  void error(const Given* given, std::string message, std::string hint);
  void error(Diagnostic diagnostic) { errors_.push_back(std::move(diagnostic)); }
  [[nodiscard]] std::vector<Diagnostic>& errors() { return errors_; }

  /// Ranks of the job as far as the files say; 0: unknown.
  struct Ranks {
    long total = 0, nodes = 0, per_node = 0;
  };
  Ranks ranks;
  BatchRequest batch;
  ScriptCommand inside;  ///< the launcher's command in the batch script, where it was read
  Imported result;

 private:
  /// Reports a value of another kind; numbers and flags become plain ones.
  bool check_kind(Given& given);

  const ImportOptions& options_;
  std::deque<Given> keys_;
  std::map<std::string, Given*> by_path_;
  std::map<std::string, Setting, std::less<>> settings_;
  std::vector<Diagnostic> errors_;
};

/// Whether the rule's `only` lists the value, and those values as text.
[[nodiscard]] bool value_is_listed(const Given& given);
[[nodiscard]] std::string wanted_values(const KeyRule& rule);

/// Whether a name is that of a key or password, whose value is never shown nor copied.
[[nodiscard]] bool names_secret(std::string_view name);

// Sources (sources.cpp, command_line.cpp): each takes all keys of a file or line into the import.
void read_deepspeed(Import& import, const std::string& path);
/// The keys of an object inside another file.
void take_object(Import& import, Table table, const std::string& file, const Node& map);
void read_trainer(Import& import, const std::string& path);
void read_accelerate(Import& import, const std::string& path);
void read_sbatch(Import& import, const std::string& path);
/// The launcher's command in the batch script; empty where there is none or --command is given.
[[nodiscard]] std::string command_of_script(Import& import);
/// Gives what read_command took of it the script's name and line.
void place_command(Import& import);
/// Returns the ds_config.json that the script is given; empty: none.
[[nodiscard]] std::string read_command(Import& import, const std::string& command);

/// Replaces "auto" as HfTrainerDeepSpeedConfig of Transformers does, and reports values of
/// ds_config.json that differ from those of the trainer's file.
void resolve_auto(Import& import);

// Keys that are read together become values of the recipe (derive*.cpp).
void derive_ranks(Import& import);
/// Nodes, tasks and GPUs of the #SBATCH lines; ranks of the launcher's command come before theirs.
void take_sbatch_ranks(Import& import);
/// --slurm and its options.
void slurm_words(Import& import);
void derive_launch(Import& import);  ///< --ranks, --nodes, ...
void derive_parallel(Import& import);
void derive_batch(Import& import);
void derive_precision(Import& import);
void derive_optimizer(Import& import);
void derive_schedule(Import& import);
void derive_memory(Import& import);
void derive_run(Import& import);
void derive_metrics(Import& import);

/// The value of `path` in ds_config.json or, where it is not there, of `other`, a key of
/// accelerate's file or command line. Two different values are reported.
[[nodiscard]] Given* one_of_both(Import& import, std::string_view path, std::string_view other);
/// Whether the training is Trainer's, with all its defaults.
[[nodiscard]] bool uses_trainer(const Import& import);
/// Whether DeepSpeed runs the training.
[[nodiscard]] bool uses_deepspeed(const Import& import);

/// The recipe as text, each value with where it came from.
[[nodiscard]] std::string recipe_text(const Import& import);
/// Paths of all keys that a recipe can have.
[[nodiscard]] std::set<std::string, std::less<>> recipe_keys();
/// `text` as YAML that the recipe's reader takes as it is.
[[nodiscard]] std::string yaml_text(const std::string& text);

}  // namespace dstrain::importing
