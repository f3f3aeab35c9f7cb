#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/import/key_rule.h"
#include "engine/recipe/load.h"
#include "engine/recipe/tree.h"

namespace dstrain::importing {

/// One key that a file or a command line gave, and what became of it.
struct Given {
  Table table = Table::deepspeed;
  std::string path = {};   ///< "optimizer.params.lr"
  std::string file = {};   ///< as named, or "--command"
  Place place = {};        ///< of the key; line 0 on a command line
  Node node = {};          ///< its value, "auto" resolved
  std::string value = {};  ///< as it was written
  const KeyRule* rule = nullptr;
  Fate fate = Fate::no_effect;
  std::string became = {};  ///< "optimizer.lr: 1e-5"
  std::string why = {};
  bool counts = true;  ///< false: null, of a section that is off, or refused

  /// "ds_config.json:7" or "--command".
  [[nodiscard]] std::string origin() const;
};

/// What an "auto" of ds_config.json became.
struct AutoValue {
  std::string path;
  std::string value;  ///< JSON
  std::string from;   ///< "learning_rate (args.json:3)", "the default of learning_rate"
};

struct ImportOptions {
  // Files; empty: none.
  std::string deepspeed = {};
  std::string trainer = {};
  std::string accelerate = {};
  std::string sbatch = {};
  std::string command = {};                ///< a command line
  std::string model = {};                  ///< folder of a model, or name of one
  int ranks = 0;                           ///< 0: what the files say
  std::vector<std::string> settings = {};  ///< "path.to.key=value" of the recipe
  std::vector<std::string> accepted = {};  ///< keys that may change numbers
  /// Text of a file; throws Error. Also for files that others name.
  std::function<std::string(const std::string& path)> open = {};
};

struct Imported {
  std::string recipe;  ///< YAML
  std::vector<std::string> sources;
  std::vector<Given> keys;  ///< in reading order
  std::vector<AutoValue> autos;
  std::vector<Diagnostic> unsaid;    ///< what the recipe lacks, as `recipe check` says it
  std::vector<Diagnostic> warnings;  ///< of the recipe
  std::vector<std::string> notes;    ///< sentences
  std::vector<std::string> launch;   ///< words after `dstrain launch RECIPE`
  std::vector<std::string> unread;   ///< arguments of scripts and lines of batch scripts
};

/// Makes a recipe of another program's settings. RecipeError lists every key that is unknown, of a
/// wrong type, contradicted or without counterpart, each with its place.
[[nodiscard]] Imported import_settings(const ImportOptions& options);

/// What became of every key, in Markdown; `recipe` is the path that the recipe is written to.
[[nodiscard]] std::string report_markdown(const Imported& imported, const std::string& recipe);
/// The same, and the recipe, for programs.
[[nodiscard]] std::string report_json(const Imported& imported);
/// "dstrain launch RECIPE --ranks 8".
[[nodiscard]] std::string launch_line(const Imported& imported, const std::string& recipe);

}  // namespace dstrain::importing
