#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "engine/import/import.h"
#include "engine/import/script_command.h"

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
  long tasks = 0;        ///< of a node
  long total_tasks = 0;  ///< as --ntasks says
  long gpus = 0;         ///< of a node
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
  [[nodiscard]] const std::deque<Given>& keys() const { return keys_; }
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
    long total = 0, nodes = 0;
    long per_node = 0;  ///< the least of a host
  };
  Ranks ranks;
  BatchRequest batch;
  ScriptCommand inside;  ///< the launcher's command in the batch script, where it was read
  Imported result;

  // What a command line says beside its keys.
  std::string script;                          ///< that the launcher starts; empty: none
  std::vector<std::string> configs;            ///< each --deepspeed and --deepspeed_config of it
  bool torchrun = false;                       ///< the launcher is torchrun
  std::optional<std::string> visible_devices;  ///< CUDA_VISIBLE_DEVICES before `deepspeed`
  long min_nodes = 0;                          ///< of an elastic job; 0: not elastic
  std::vector<std::string> hosts;              ///< options of the launch that name hosts
  bool first_slots = true;                     ///< each of those hosts gives its slots 0, 1, ...

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
void read_command(Import& import, const std::string& command);

/// Replaces "auto" as HfTrainerDeepSpeedConfig of Transformers does, and reports values of
/// ds_config.json, or of accelerate in its place, that differ from those of the trainer.
void resolve_auto(Import& import);

/// How accelerate starts the ranks, by the flags of its command line, else by its file.
enum class Accelerate : std::uint8_t { none, one_process, ranks, deepspeed, fsdp };
[[nodiscard]] Accelerate accelerate_mode(Import& import);
/// Keys of accelerate that do not count in its mode, or that it refuses together.
void settle_accelerate(Import& import);
/// Reports values of its DeepSpeed section that differ from TrainingArguments, as Transformers
/// does.
void match_accelerate(Import& import);
/// Ranks, and hosts where it starts them by `deepspeed`.
void take_accelerate_ranks(Import& import);

/// Hosts and ranks as the launcher of DeepSpeed finds them: its hostfile, --include or --exclude,
/// --num_nodes and --num_gpus. They become words of `Import::hosts`.
void take_deepspeed_ranks(Import& import);
/// The same for `deepspeed --hostfile ... [--include ...|--exclude ...|--num_gpus N]` of
/// accelerate.
void take_deepspeed_hosts(Import& import, Given* hostfile, Given* include, Given* exclude,
                          long num_gpus);

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
void derive_tf32(Import& import);  ///< before keys are judged: without effect beside 16 bits
void derive_optimizer(Import& import);
void derive_schedule(Import& import);
void derive_memory(Import& import);
void derive_run(Import& import);
void derive_metrics(Import& import);

/// The value of `path` in ds_config.json or, where it is not there, of `other`, a key of
/// accelerate's file or command line. Two different values are reported.
[[nodiscard]] Given* one_of_both(Import& import, std::string_view path, std::string_view other);
/// Whether any key of TrainingArguments is given.
[[nodiscard]] bool uses_trainer(const Import& import);
/// Whether the training is Trainer's, so that what is not said has Trainer's default. A script
/// whose arguments have only names that any script may have shows no Trainer.
[[nodiscard]] bool trainer_defaults(const Import& import);
/// Sets a default of Trainer where the training is Trainer's.
void set_trainer_default(Import& import, std::string_view key, std::string value);
/// Whether DeepSpeed runs the training.
[[nodiscard]] bool uses_deepspeed(Import& import);

/// The recipe as text, each value with where it came from.
[[nodiscard]] std::string recipe_text(const Import& import);
/// Paths of all keys that a recipe can have.
[[nodiscard]] std::set<std::string, std::less<>> recipe_keys();
/// `text` as YAML that the recipe's reader takes as it is.
[[nodiscard]] std::string yaml_text(const std::string& text);

}  // namespace dstrain::importing
