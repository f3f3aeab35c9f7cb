#include "engine/import/key_rule.h"

#include <algorithm>
#include <array>
#include <map>

#include "engine/base/error.h"

namespace dstrain::importing {
namespace {

using Index = std::map<std::string_view, const KeyRule*, std::less<>>;

void add_rules(Index& index, std::span<const KeyRule> rows) {
  for (const KeyRule& row : rows) {
    const bool fresh = index.emplace(row.path, &row).second;
    DSTRAIN_CHECK(fresh, "two rules of one key");
  }
}

const Index& index_of(Table table) {
  static const std::array<Index, std::size(kTables)> all = [] {
    std::array<Index, std::size(kTables)> result;
    for (const Table one : kTables) {
      Index& index = result[static_cast<std::size_t>(one)];
      add_rules(index, rules(one));
      if (one == Table::deepspeed) add_rules(index, deepspeed_zero_rules());
    }
    return result;
  }();
  return all[static_cast<std::size_t>(table)];
}

std::string_view parent_of(std::string_view path) {
  const std::size_t dot = path.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : path.substr(0, dot);
}

}  // namespace

char letter(Fate fate) { return "HTNWE"[static_cast<std::size_t>(fate)]; }

std::string_view title(Table table) {
  constexpr std::string_view kTitles[] = {
      "ds_config.json", "TrainingArguments", "accelerate's file",
      "deepspeed",      "torchrun",          "accelerate launch",
      "#SBATCH"};
  return kTitles[static_cast<std::size_t>(table)];
}

std::string_view title(Kind kind) {
  constexpr std::string_view kTitles[] = {"true or false", "a whole number", "a number", "a text",
                                          "a list",        "an object",      "anything"};
  return kTitles[static_cast<std::size_t>(kind)];
}

std::span<const KeyRule> rules(Table table) {
  switch (table) {
    case Table::deepspeed:
      return deepspeed_rules();
    case Table::trainer:
      return trainer_rules();
    case Table::accelerate:
      return accelerate_rules();
    case Table::deepspeed_command:
      return deepspeed_command_rules();
    case Table::torchrun_command:
      return torchrun_command_rules();
    case Table::accelerate_command:
      return accelerate_command_rules();
    case Table::sbatch:
      return sbatch_rules();
  }
  return {};
}

const KeyRule* find_rule(Table table, std::string_view path) {
  const Index& index = index_of(table);
  if (const auto found = index.find(path); found != index.end()) return found->second;
  for (std::string_view around = path; !around.empty(); around = parent_of(around)) {
    if (const auto found = index.find(std::string(around) + ".*"); found != index.end())
      return found->second;
  }
  return nullptr;
}

bool is_section(Table table, std::string_view path) {
  const Index& index = index_of(table);
  const std::string prefix = std::string(path) + ".";
  const auto next = index.lower_bound(prefix);
  return next != index.end() && next->first.starts_with(prefix) && index.contains(path);
}

std::vector<std::string_view> names_under(Table table, std::string_view path) {
  std::vector<std::string_view> names;
  for (const auto& [known, rule] : index_of(table)) {
    std::string_view name = known;
    if (name.ends_with(".*")) name.remove_suffix(2);
    if (!name.empty() && parent_of(name) == path)
      names.push_back(path.empty() ? name : name.substr(path.size() + 1));
  }
  std::ranges::sort(names);
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

std::string_view switched_section(std::string_view path) {
  constexpr std::string_view kSwitched[] = {"fp16",
                                            "bf16",
                                            "bfloat16",
                                            "torch_autocast",
                                            "flops_profiler",
                                            "tensorboard",
                                            "wandb",
                                            "csv_monitor",
                                            "comet",
                                            "comms_logger",
                                            "amp",
                                            "hybrid_engine",
                                            "expert_parallel",
                                            "autotuning",
                                            "elasticity",
                                            "eigenvalue",
                                            "nebula",
                                            "data_efficiency",
                                            "curriculum_learning",
                                            "progressive_layer_drop"};
  const std::string_view top = path.substr(0, path.find('.'));
  return std::ranges::find(kSwitched, top) == std::end(kSwitched) ? std::string_view() : top;
}

}  // namespace dstrain::importing
