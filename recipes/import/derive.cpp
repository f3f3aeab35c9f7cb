#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "engine/base/input_file.h"
#include "recipes/import/import_state.h"
#include "recipes/import/json_tree.h"

namespace dstrain::importing {
namespace {

constexpr long kMaxRanks = 1 << 20;

/// The first of some keys that is given.
Given* first_given(Import& import, std::initializer_list<std::pair<Table, std::string_view>> keys) {
  for (const auto& [table, path] : keys) {
    if (Given* given = import.find(table, path)) return given;
  }
  return nullptr;
}

long whole_of(const Given* given) {
  return given == nullptr ? 0 : std::atol(given->node.text.c_str());
}

/// The key that says `count` nodes or ranks, or what cannot be either, for the place of a message;
/// else the first that says one of them.
const Given* key_of_ranks(Import& import, long count) {
  const Given* first = nullptr;
  for (const Table table : kTables) {
    for (const char* key : {"num_nodes", "num_machines", "nnodes", "nodes", "num_gpus",
                            "num_accelerators", "num_processes", "nproc_per_node", "gpus_per_node",
                            "ntasks_per_node", "gpus", "gres", "ntasks"}) {
      const Given* given = import.find(table, key);
      if (given == nullptr) continue;
      const long said = whole_of(given);
      if (said == count || said < 0 || said > kMaxRanks) return given;
      if (first == nullptr) first = given;
    }
  }
  return first;
}

/// N of "gpu:N" and "gpu:TYPE:N", "N" and "TYPE:N"; 0: none of these.
long gpus_of(const std::string& text, bool with_prefix) {
  if (with_prefix && !text.starts_with("gpu")) return 0;
  const std::size_t colon = text.rfind(':');
  const std::string number = colon == std::string::npos ? text : text.substr(colon + 1);
  const bool digits = !number.empty() && number.size() < 7 &&
                      std::ranges::all_of(number, [](char c) { return c >= '0' && c <= '9'; });
  if (digits) return std::atol(number.c_str());
  return with_prefix && text == "gpu" ? 1 : 0;
}

/// "2" or "1:4" of torchrun.
std::pair<long, long> node_range(const std::string& text) {
  const std::size_t colon = text.find(':');
  const long first = std::atol(text.c_str());
  return {first, colon == std::string::npos ? first : std::atol(text.c_str() + colon + 1)};
}

void take_torchrun(Import& import) {
  Import::Ranks& ranks = import.ranks;
  if (Given* nodes = import.find(Table::torchrun_command, "nnodes")) {
    const auto [least, most] = node_range(nodes->node.text);
    ranks.nodes = most;
    if (least < 1 || most < least)
      import.outcome(nodes, Fate::no_effect, "no number: the allocation says how many nodes");
  }
  if (const Given* each = import.find(Table::torchrun_command, "nproc_per_node"))
    ranks.per_node = std::atol(each->node.text.c_str());
}

void take_sbatch(Import& import) {
  Import::Ranks& ranks = import.ranks;
  if (const Given* nodes = import.find(Table::sbatch, "nodes")) ranks.nodes = whole_of(nodes);
  const long nodes = std::max(1L, ranks.nodes);
  const Given* gres = import.find(Table::sbatch, "gres");
  if (const Given* each = import.find(Table::sbatch, "gpus_per_node")) {
    ranks.per_node = gpus_of(each->node.text, false);
  } else if (gres != nullptr && gpus_of(gres->node.text, true) > 0) {
    ranks.per_node = gpus_of(gres->node.text, true);
  } else if (const Given* all = import.find(Table::sbatch, "gpus")) {
    ranks.per_node = gpus_of(all->node.text, false) / nodes;
  } else if (const Given* tasks = import.find(Table::sbatch, "ntasks_per_node")) {
    if (ranks.per_node == 0) ranks.per_node = whole_of(tasks);
  } else if (const Given* tasks_of_all = import.find(Table::sbatch, "ntasks")) {
    if (ranks.per_node == 0) ranks.per_node = whole_of(tasks_of_all) / nodes;
  }
}

void launch_words(Import& import, bool slurm) {
  std::vector<std::string>& words = import.result.launch;
  const Import::Ranks& ranks = import.ranks;
  const bool gpus = import.has(Table::sbatch, "gpus_per_node") ||
                    import.has(Table::sbatch, "gres") || import.has(Table::sbatch, "gpus");
  if (slurm) {
    words.insert(words.begin(), "--slurm");
    if (ranks.nodes > 0) words.insert(words.end(), {"--nodes", fmt::format("{}", ranks.nodes)});
    if (ranks.per_node > 0)
      words.insert(words.end(), {gpus ? "--gpus-per-node" : "--ranks-per-node",
                                 fmt::format("{}", ranks.per_node)});
  } else if (ranks.total > 0) {
    words.insert(words.end(), {"--ranks", fmt::format("{}", ranks.total)});
    const bool hosts = std::ranges::find(words, "--hostfile") != words.end();
    if (ranks.nodes > 1 && !hosts)
      import.result.notes.push_back(
          fmt::format("{} nodes: name them, --hosts n1:8,n2:8 or --hostfile FILE, or use --slurm",
                      ranks.nodes));
  }
}

}  // namespace

Given* one_of_both(Import& import, std::string_view path, std::string_view other) {
  Given* ours = import.find(Table::deepspeed, path);
  const std::string_view flat = other.substr(other.rfind('.') + 1);
  Given* theirs = import.find(Table::accelerate_command, flat);
  if (theirs == nullptr) theirs = import.find(Table::accelerate, other);
  if (theirs != nullptr && theirs->node.text == "none" && ours != nullptr) theirs = nullptr;
  if (ours == nullptr) return theirs;
  if (theirs != nullptr && ours->node.text != theirs->node.text &&
      import.number(ours->table, ours->path) != import.number(theirs->table, theirs->path)) {
    import.error(theirs,
                 fmt::format("{} here, but {} in {}", theirs->value, ours->value, ours->origin()),
                 "give it in ds_config.json alone");
  }
  return ours;
}

bool uses_trainer(const Import& import) {
  return !import.options().trainer.empty() || import.has(Table::trainer);
}

bool uses_deepspeed(const Import& import) {
  return !import.options().deepspeed.empty() || import.has(Table::deepspeed) ||
         import.has(Table::accelerate, "deepspeed_config") ||
         import.has(Table::accelerate_command, "use_deepspeed") ||
         import.has(Table::accelerate_command, "zero_stage");
}

void derive_ranks(Import& import) {
  Import::Ranks& ranks = import.ranks;
  using enum Table;
  if (const Given* nodes = first_given(import, {{deepspeed_command, "num_nodes"},
                                                {accelerate_command, "num_machines"},
                                                {accelerate, "num_machines"}}))
    ranks.nodes = whole_of(nodes);
  if (const Given* each = first_given(
          import, {{deepspeed_command, "num_gpus"}, {deepspeed_command, "num_accelerators"}}))
    ranks.per_node = whole_of(each);
  if (const Given* all = first_given(
          import, {{accelerate_command, "num_processes"}, {accelerate, "num_processes"}}))
    ranks.per_node = whole_of(all) / std::max(1L, ranks.nodes);
  take_torchrun(import);
  take_sbatch(import);
  for (const long count : {ranks.nodes, ranks.per_node}) {
    if (count >= 0 && count <= kMaxRanks) continue;
    import.error(key_of_ranks(import, count),
                 fmt::format("{} nodes of {} ranks", std::max(1L, ranks.nodes), ranks.per_node),
                 fmt::format("use 1 to {} ranks", kMaxRanks));
    ranks = {};
  }
  if (ranks.per_node > 0) ranks.total = std::max(1L, ranks.nodes) * ranks.per_node;
  if (import.options().ranks > 0) {
    ranks.total = import.options().ranks;
    if (ranks.total % std::max(1L, ranks.nodes) == 0)
      ranks.per_node = ranks.total / std::max(1L, ranks.nodes);
  }
}

void derive_launch(Import& import) {
  const Import::Ranks& ranks = import.ranks;
  using enum Table;
  if (import.flag(deepspeed_command, "elastic_training").value_or(false)) {
    import.result.launch.insert(import.result.launch.end(), {"--max-restarts", "3"});
    const long least = import.whole(deepspeed_command, "min_elastic_nodes").value_or(0);
    if (least > 0 && ranks.per_node > 0 && least <= kMaxRanks)
      import.result.launch.insert(import.result.launch.end(),
                                  {"--min-ranks", fmt::format("{}", least * ranks.per_node)});
  }
  const std::optional<std::string> launcher = import.word(deepspeed_command, "launcher");
  launch_words(import, import.has(sbatch) || launcher == "slurm");
}

namespace {

/// Micro-batch, accumulation and global batch, as DeepSpeedConfig completes them.
struct Batch {
  long micro = 0, steps = 0, global = 0;
};

Given* accumulation(Import& import) {
  Given* given = one_of_both(import, "gradient_accumulation_steps",
                             "deepspeed_config.gradient_accumulation_steps");
  if (given == nullptr)
    given = first_given(import, {{Table::trainer, "gradient_accumulation_steps"},
                                 {Table::accelerate, "gradient_accumulation_steps"}});
  return given != nullptr && whole_of(given) > 0 ? given : nullptr;
}

/// Ranks that see different samples; 0: unknown.
long data_ranks(Import& import) {
  const long total = import.ranks.total;
  const long tensor =
      std::max(1L, import.whole(Table::deepspeed, "tensor_parallel.autotp_size").value_or(1));
  const long sequence =
      std::max(1L, import.whole(Table::deepspeed, "sequence_parallel_size").value_or(1));
  if (total == 0 || tensor > kMaxRanks || sequence > kMaxRanks) return 0;
  if (total % (tensor * sequence) == 0) return total / (tensor * sequence);
  import.error(nullptr,
               fmt::format("{} ranks are no multiple of {} tensor x {} sequence ranks", total,
                           tensor, sequence),
               "give another number with --ranks");
  return 0;
}

void need_ranks(Import& import, const Given* given) {
  import.error(given, "the number of ranks is said nowhere, and the batch depends on it",
               "give it with --ranks N");
}

}  // namespace

void derive_batch(Import& import) {
  Given* global = import.find(Table::deepspeed, "train_batch_size");
  Given* micro = first_given(import, {{Table::deepspeed, "train_micro_batch_size_per_gpu"},
                                      {Table::trainer, "per_device_train_batch_size"}});
  Given* steps = accumulation(import);
  const bool trainer = uses_trainer(import);
  const long ranks = data_ranks(import);
  Batch batch = {.micro = whole_of(micro), .steps = whole_of(steps), .global = whole_of(global)};
  if (trainer && micro == nullptr && global == nullptr) batch.micro = 8;  // Trainer's default
  for (Given* given : {global, micro, steps}) {
    if (given == nullptr || (whole_of(given) >= 1 && whole_of(given) <= 1 << 24)) continue;
    import.error(given, fmt::format("{} is no size of a batch", given->value), "use 1 to 16777216");
    return;
  }
  if (batch.micro == 0 && batch.global == 0) return;  // `recipe check` says what is missing
  if (batch.micro == 0 || (batch.global == 0 && ranks == 0)) {
    if (ranks == 0) return need_ranks(import, batch.micro == 0 ? global : micro);
  }
  if (batch.micro == 0) batch.micro = batch.global / (ranks * std::max(1L, batch.steps));
  if (batch.steps == 0 && batch.global > 0 && ranks > 0 && batch.micro > 0)
    batch.steps = batch.global / (batch.micro * ranks);
  if (batch.steps == 0) batch.steps = 1;
  const double product = static_cast<double>(batch.micro) * static_cast<double>(batch.steps) *
                         static_cast<double>(ranks);
  if (batch.global == 0) batch.global = product < 1e15 ? static_cast<long>(product) : 0;
  if (ranks > 0 && static_cast<double>(batch.global) != product) {
    import.error(
        global != nullptr ? global : micro,
        fmt::format("train_batch_size {} is not micro-batch {} x accumulation {} x {} data ranks",
                    batch.global, batch.micro, batch.steps, ranks),
        "correct one of them, or give the right number with --ranks");
    return;
  }
  if (global != nullptr)
    import.set("batch.global", fmt::format("{}", batch.global), global);
  else
    import.set(
        "batch.global", fmt::format("{}", batch.global),
        fmt::format("{} x accumulation {} x {} data ranks", batch.micro, batch.steps, ranks));
  if (micro != nullptr)
    import.set("batch.micro", fmt::format("{}", batch.micro), micro);
  else
    import.set("batch.micro", fmt::format("{}", batch.micro),
               global == nullptr ? "Trainer's default"
                                 : fmt::format("{} over {} ranks", batch.global, ranks));
  if (steps != nullptr && steps->became.empty())
    steps->became = fmt::format("batch.global: {}", batch.global);
}

namespace {

/// What a router's key must be equal to in the model's config.json.
constexpr std::pair<std::string_view, std::string_view> kRouterKeys[] = {
    {"expert_parallel.top_k", "num_experts_per_tok"},
    {"expert_parallel.route_norm", "norm_topk_prob"}};

void check_router(Import& import) {
  const std::string& model = import.options().model;
  for (const auto& [path, name] : kRouterKeys) {
    Given* given = import.find(Table::deepspeed, path);
    if (given == nullptr || given->node.text == "auto") continue;
    if (model.empty() || path_kind(model, ErrorKind::usage) != PathKind::folder) {
      import.outcome(
          given, Fate::same,
          fmt::format("must be {} of the model's config.json: --model FOLDER compares", name));
      continue;
    }
    const std::string file = model + "/config.json";
    const Node config = read_json_tree(import.options().open(file), file);
    const auto entry = std::ranges::find(config.entries, name, &Entry::key);
    if (entry == config.entries.end() || entry->value.text == given->node.text) {
      import.outcome(given, Fate::same, fmt::format("as {} of {}", name, file));
    } else {
      import.error(
          given,
          fmt::format("{} here, but {} {} in {}", given->value, name, entry->value.text, file),
          "take it out: the model says it");
    }
  }
}

}  // namespace

void derive_parallel(Import& import) {
  const auto degree = [&](std::string_view path, std::string_view key) {
    Given* given = import.find(Table::deepspeed, path);
    if (given != nullptr && whole_of(given) > 1) import.set(key, given->node.text, given);
  };
  degree("tensor_parallel.autotp_size", "parallel.tensor");
  degree("sequence_parallel_size", "parallel.sequence");
  if (import.flag(Table::deepspeed, "expert_parallel.enabled").value_or(false)) {
    degree("expert_parallel.autoep_size", "parallel.expert");
    check_router(import);
  }
  if (Given* stage = one_of_both(import, "zero_optimization.stage", "deepspeed_config.zero_stage"))
    import.set("parallel.zero.stage", stage->node.text, stage);
  else if (!import.has(Table::deepspeed) && import.has(Table::accelerate, "deepspeed_config"))
    import.set("parallel.zero.stage", "2", std::string("accelerate's default"));
  const bool stage_3 = import.settings().contains("parallel.zero.stage") &&
                       import.settings().at("parallel.zero.stage").value == "3";
  for (const char* name : {"stage3_prefetch_bucket_size", "prefetch_bucket_size"}) {
    Given* ahead = import.find(Table::deepspeed, fmt::format("zero_optimization.{}", name));
    if (ahead == nullptr) continue;
    if (stage_3 && import.number(ahead->table, ahead->path) == 0.0)
      import.set("parallel.zero.prefetch", "0", ahead);
    else
      import.outcome(ahead, Fate::no_effect, "parallel.zero.prefetch is ours, in groups");
  }
  const auto only_stage_3 = [&](Given* given, const char* key, const char* value) {
    if (given == nullptr) return;
    if (!stage_3)
      return import.outcome(given, Fate::no_effect, "counts only at stage 3, there, too");
    import.set(key, value == nullptr ? given->node.text : value, given);
  };
  Given* second = import.find(Table::deepspeed, "zero_optimization.zero_hpz_partition_size");
  if (whole_of(second) > 1) only_stage_3(second, "parallel.zero.second_shard", nullptr);
  if (import.flag(Table::deepspeed, "zero_optimization.zero_quantized_weights").value_or(false))
    only_stage_3(import.find(Table::deepspeed, "zero_optimization.zero_quantized_weights"),
                 "precision.gather", "int8");
  Given* shard = import.find(Table::deepspeed, "zero_optimization.mics_shard_size");
  if (whole_of(shard) > 0) only_stage_3(shard, "parallel.zero.shard", nullptr);
  for (const auto& [table, key] :
       {std::pair(Table::trainer, "use_cpu"), std::pair(Table::trainer, "no_cuda"),
        std::pair(Table::accelerate, "use_cpu"), std::pair(Table::accelerate_command, "cpu")}) {
    if (import.flag(table, key).value_or(false))
      import.set("parallel.backend", "gloo", import.find(table, key));
  }
}

}  // namespace dstrain::importing
