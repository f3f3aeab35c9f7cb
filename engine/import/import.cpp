#include "engine/import/import.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <tuple>

#include "engine/base/error.h"
#include "engine/base/input_file.h"
#include "engine/import/import_state.h"
#include "engine/import/json_tree.h"
#include "engine/import/secrets.h"
#include "engine/recipe/text.h"

namespace dstrain::importing {
namespace {

/// Whether two paths name one file.
bool is_same_file(const std::string& a, const std::string& b) {
  namespace fs = std::filesystem;
  std::error_code absent;
  return fs::path(a).lexically_normal() == fs::path(b).lexically_normal() ||
         fs::equivalent(a, b, absent);
}

/// Takes a file that a key names; another one than before is reported.
void name_file(Import& import, std::string& file, const Given* given, std::string_view what) {
  if (given == nullptr || given->node.kind != Node::Kind::scalar) return;
  if (!file.empty() && !is_same_file(file, given->node.text)) {
    import.error(given, fmt::format("{} here, but {} is {}", given->value, what, shown(file)),
                 "name one file");
    return;
  }
  if (file.empty()) file = given->node.text;
}

/// ds_config.json of a script's arguments: a path, or the object itself.
void take_configs(Import& import, std::string& file) {
  constexpr const char* kCommand = "--command";
  for (const std::string& config : import.configs) {
    if (config.starts_with('{')) {
      take_object(import, Table::deepspeed, kCommand, read_json_tree(config, kCommand));
      continue;
    }
    const Given given = {.path = "deepspeed",
                         .file = kCommand,
                         .node = {Node::Kind::scalar, Place{}, config},
                         .value = shown(config)};
    name_file(import, file, &given, "ds_config.json");
  }
}

void read_sources(Import& import) {
  const ImportOptions& options = import.options();
  std::string deepspeed = options.deepspeed, accelerate = options.accelerate;
  const std::string found = command_of_script(import);
  const std::string& command = found.empty() ? options.command : found;
  if (!command.empty()) {
    read_command(import, command);
    place_command(import);
    take_configs(import, deepspeed);
    name_file(import, accelerate, import.find(Table::accelerate_command, "config_file"),
              "--accelerate");
    name_file(import, deepspeed, import.find(Table::accelerate_command, "deepspeed_config_file"),
              "ds_config.json");
  }
  if (!options.trainer.empty()) read_trainer(import, options.trainer);
  if (!accelerate.empty()) read_accelerate(import, accelerate);
  if (Given* inside = import.find(Table::trainer, "deepspeed");
      inside != nullptr && inside->node.kind == Node::Kind::map) {
    const Given copy = *inside;
    take_object(import, Table::deepspeed, copy.file, copy.node);
    import.outcome(inside, Fate::translated, "its keys are those of ds_config.json");
  }
  name_file(import, deepspeed, import.find(Table::trainer, "deepspeed"), "ds_config.json");
  settle_accelerate(import);
  name_file(import, deepspeed,
            import.find(Table::accelerate, "deepspeed_config.deepspeed_config_file"),
            "ds_config.json");
  if (!deepspeed.empty()) read_deepspeed(import, deepspeed);
  if (!options.sbatch.empty()) read_sbatch(import, options.sbatch);
}

/// Keys of sections that are switched off do not count, whatever they say.
void leave_out_what_is_off(Import& import) {
  const std::set<std::string_view> absent_is_on = {"compression_training", "comms_logger"};
  for (Given& given : import.keys()) {
    if (given.table != Table::deepspeed || !given.counts) continue;
    const std::string_view section = switched_section(given.path);
    if (section.empty() || absent_is_on.contains(section)) continue;
    bool on = false;
    if (given.path == section) {  // taken whole
      const auto& entries = given.node.entries;
      const auto enabled = std::ranges::find(entries, "enabled", &Entry::key);
      on = enabled != entries.end() &&
           (enabled->value.text == "true" || enabled->value.text == "True");
    } else {
      const Given* enabled = import.find(Table::deepspeed, fmt::format("{}.enabled", section));
      on = enabled != nullptr && enabled->node.text == "true";
      if (enabled == &given) continue;
    }
    if (on) continue;
    given.counts = false;
    import.outcome(&given, Fate::no_effect,
                   given.path == section ? "off" : fmt::format("{} is off", section));
  }
}

std::string with_reason(std::string text, const KeyRule& rule) {
  if (!rule.reason.empty()) text += fmt::format(": {}", rule.reason);
  return text;
}

/// The fate of a key by its value: an error where there is no counterpart or numbers would change.
void judge(Import& import, Given& given, std::set<std::string>& accepted) {
  const KeyRule& rule = *given.rule;
  if (!value_is_listed(given)) given.fate = rule.otherwise;
  const bool bad = given.fate == Fate::changes || given.fate == Fate::refused;
  const bool off = given.node.kind == Node::Kind::scalar && given.node.text == "false";
  if (bad && off) return import.outcome(&given, Fate::no_effect, "false: off");
  if (given.fate == Fate::changes) {
    const bool named =
        std::ranges::find(import.options().accepted, given.path) != import.options().accepted.end();
    if (named) {
      accepted.insert(given.path);
      given.why += given.why.empty() ? "accepted" : "; accepted";
    } else {
      import.error(&given,
                   with_reason(fmt::format("{} would give other numbers here", given.value), rule),
                   fmt::format("take it out, or accept that: --accept {}", given.path));
    }
  } else if (given.fate == Fate::refused) {
    given.counts = false;
    if (rule.only.empty()) {
      import.error(&given, with_reason(fmt::format("{} has no counterpart", given.value), rule),
                   "take it out");
    } else {
      const std::string wanted = wanted_values(rule);
      import.error(&given,
                   with_reason(fmt::format("{}, but only {} is taken", given.value, wanted), rule),
                   fmt::format("use {}, or take it out", wanted));
    }
  }
}

void judge_all(Import& import) {
  std::set<std::string> accepted;
  for (Given& given : import.keys()) {
    if (!given.counts) continue;
    judge(import, given, accepted);
    if (given.counts && given.rule->apply != nullptr) given.rule->apply(given, import);
  }
  for (const std::string& path : import.options().accepted) {
    if (accepted.contains(path)) continue;
    std::vector<std::string_view> paths;
    for (const Given& given : import.keys()) paths.push_back(given.path);
    const std::string_view near = nearest(path, paths);
    import.error({.file = "--accept",
                  .path = shown(path, 200),
                  .message = "no such key changes numbers",
                  .hint = near.empty() || near == path ? "take it out"
                                                       : fmt::format("did you mean '{}'?", near)});
  }
}

/// Leaves of a tree as values of the recipe.
void take_settings(Import& import, const Node& node, const std::string& path) {
  if (node.kind == Node::Kind::map) {
    for (const Entry& entry : node.entries)
      take_settings(import, entry.value, path.empty() ? entry.key : path + "." + entry.key);
    return;
  }
  const auto text = [](const Node& one) { return one.quoted ? yaml_text(one.text) : one.text; };
  std::string value = text(node);
  if (node.kind == Node::Kind::list) {
    std::vector<std::string> items;
    for (const Node& item : node.items) items.push_back(text(item));
    value = fmt::format("[{}]", fmt::join(items, ", "));
  }
  const bool plain = node.kind == Node::Kind::list || node.quoted || read_real(value).value ||
                     value == "true" || value == "false";
  import.set(path, plain ? value : yaml_text(value), std::string("--set"));
}

void apply_choices(Import& import) {
  const ImportOptions& options = import.options();
  if (!options.model.empty()) {
    const bool folder = path_kind(options.model, ErrorKind::usage) == PathKind::folder;
    import.set(folder ? "model.weights" : "model.name", yaml_text(options.model),
               std::string("--model"));
  }
  Diagnostics diagnostics("--set", options.settings);
  Node root(Node::Kind::map, Place{.line = 1, .column = 1});
  for (std::size_t i = 0; i < options.settings.size(); ++i)
    apply_override(root, options.settings[i], static_cast<int>(i), diagnostics);
  if (diagnostics.num_errors() > 0) {
    for (Diagnostic& one : diagnostics.take(Severity::error)) import.error(std::move(one));
    return;
  }
  take_settings(import, root, "");
}

/// Nothing that is shown or copied holds a secret.
void hide_secrets(Import& import) {
  for (std::string& line : import.result.unread) line = without_secrets(line);
  for (std::string& note : strike_secrets(import.result.launch))
    import.result.notes.push_back(std::move(note));
}

/// Whether the recipe's reader only misses what no file of this kind says.
bool is_missing(const Diagnostic& one) { return one.message.starts_with("missing"); }

void check_recipe(Import& import, const std::string& text) {
  const auto place = [&](Diagnostic one) {
    const auto setting = import.settings().find(one.path);
    one.file = "the recipe made of these files";
    one.line = one.column = 0;
    if (setting == import.settings().end()) return one;
    const Given* given = setting->second.given;
    if (given == nullptr) {
      one.file = shown(setting->second.origin, 100);
      return one;
    }
    one.file = given->file;
    one.line = given->place.line;
    one.column = given->place.column;
    one.message = fmt::format("{} (as {})", one.message, one.path);
    one.path = given->path;
    return one;
  };
  std::vector<Diagnostic> problems;
  try {
    import.result.warnings = parse_recipe(text.empty() ? "{}" : text, "recipe").warnings;
  } catch (const RecipeError& error) {
    problems = error.diagnostics();
  }
  for (const Diagnostic& one : problems) {
    const bool needed = is_missing(one) && !import.settings().contains(one.path);
    if (needed)
      import.result.unsaid.push_back({.path = one.path, .message = one.message, .hint = one.hint});
    else
      import.error(place(one));
  }
  for (Diagnostic& one : import.result.warnings) one = place(std::move(one));
  const auto smoothing = import.settings().find("optimizer.label_smoothing");
  for (const Diagnostic& one : import.result.warnings) {
    if (smoothing == import.settings().end() || one.path != "label_smoothing_factor") continue;
    import.error(one);
  }
}

void refuse_unknown_settings(Import& import) {
  const auto known = recipe_keys();
  const std::vector<std::string_view> names(known.begin(), known.end());
  for (const auto& [path, setting] : import.settings()) {
    if (known.contains(path)) continue;
    const std::string_view near = nearest(path, names);
    import.error({.file = shown(setting.origin, 100),
                  .path = shown(path, 200),
                  .message = "no such option",
                  .hint = near.empty() ? "recipes/REFERENCE.md lists the keys of a recipe"
                                       : fmt::format("did you mean '{}'?", near)});
  }
}

std::string heading(const Import& import) {
  std::string text =
      fmt::format("# Made by dstrain recipe import-deepspeed from {}.\n",
                  shown(fmt::format("{}", fmt::join(import.result.sources, ", ")), 300));
  const std::string of_script = import.script + " ";
  for (const std::string& line : import.result.unread) {
    if (!import.script.empty() && line.starts_with(of_script))
      text += fmt::format("# Not read: {}\n", shown(line, 300));
  }
  if (import.result.unsaid.empty()) return text;
  std::vector<std::string> paths;
  for (const Diagnostic& one : import.result.unsaid) paths.push_back(one.path);
  return text +
         fmt::format("# Still to be said, since such files do not: {}.\n", fmt::join(paths, ", "));
}

/// What Trainer's defaults would have said, where nothing shows that the script is Trainer's.
void note_script(Import& import) {
  if (trainer_defaults(import) || uses_deepspeed(import) || import.result.unread.empty()) return;
  import.result.notes.push_back(fmt::format(
      "the arguments of {} show no Trainer, so none of its defaults is taken: write what "
      "the arguments that were not read say into the recipe",
      shown(import.script)));
}

std::string open_file(const std::string& path) {
  throw Error(ErrorKind::internal, "no way to open " + path);
}

}  // namespace

Imported import_settings(const ImportOptions& given_options) {
  ImportOptions options = given_options;
  if (!options.open) options.open = open_file;
  Import import(options);
  read_sources(import);
  derive_ranks(import);
  resolve_auto(import);
  leave_out_what_is_off(import);
  derive_tf32(import);
  judge_all(import);
  derive_launch(import);
  derive_parallel(import);
  derive_batch(import);
  derive_memory(import);
  derive_precision(import);
  derive_optimizer(import);
  derive_schedule(import);
  derive_run(import);
  derive_metrics(import);
  note_script(import);
  hide_secrets(import);
  apply_choices(import);
  const std::string text = recipe_text(import);
  refuse_unknown_settings(import);
  if (import.errors().empty()) check_recipe(import, text);
  if (!import.errors().empty()) {
    std::ranges::stable_sort(import.errors(), {}, [](const Diagnostic& one) {
      return std::tuple(one.file, one.line, one.column);
    });
    throw RecipeError(std::move(import.errors()));
  }
  import.result.recipe = heading(import) + text;
  import.result.keys.assign(import.keys().begin(), import.keys().end());
  return std::move(import.result);
}

}  // namespace dstrain::importing
