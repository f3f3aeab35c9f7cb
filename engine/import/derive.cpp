#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "engine/base/input_file.h"
#include "engine/import/import_state.h"
#include "engine/import/json_tree.h"
#include "engine/import/python_value.h"

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

/// A count of torchrun: digits. A variable of the shell counts nothing.
bool is_count(const std::string& text) { return python_whole(text).value_or(0) > 0; }
bool has_variable(const std::string& text) { return text.find('$') != std::string::npos; }

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

void take_torchrun(Import& import) {
  Import::Ranks& ranks = import.ranks;
  Given* nodes = import.find(Table::torchrun_command, "nnodes");
  Given* each = import.find(Table::torchrun_command, "nproc_per_node");
  if (nodes != nullptr && has_variable(nodes->node.text)) {
    import.outcome(nodes, Fate::no_effect, "no number: the allocation says how many nodes");
  } else if (nodes != nullptr) {
    const std::string& text = nodes->node.text;
    const std::size_t colon = std::min(text.find(':'), text.size());
    const std::string min = text.substr(0, colon);
    const std::string max = colon == text.size() ? min : text.substr(colon + 1);
    if (!is_count(min) || !is_count(max) || *python_whole(max) < *python_whole(min))
      return import.error(nodes, fmt::format("{} is no number of nodes", nodes->value),
                          "use N, or MIN:MAX");
    ranks.nodes = *python_whole(max);
    import.min_nodes = *python_whole(min) < ranks.nodes ? *python_whole(min) : 0;
  }
  if (each == nullptr) {  // torchrun starts one; in a batch script others may count
    if (import.torchrun && !import.has(Table::sbatch)) ranks.per_node = 1;
    return;
  }
  const std::string& text = each->node.text;
  if (has_variable(text)) return;
  if (is_count(text)) {
    ranks.per_node = *python_whole(text);
    return;
  }
  constexpr std::string_view kDevices[] = {"auto", "gpu", "cpu", "xpu"};
  if (std::ranges::find(kDevices, text) == std::end(kDevices))
    return import.error(each, fmt::format("{} is no number of ranks", each->value),
                        "use N, auto, gpu or cpu");
  import.outcome(each, Fate::no_effect, "as many as the hosts have: --ranks");
}

void launch_words(Import& import, bool slurm) {
  std::vector<std::string>& words = import.result.launch;
  const Import::Ranks& ranks = import.ranks;
  if (slurm) {
    slurm_words(import);
  } else if (ranks.total > 0) {
    words.insert(words.end(), {"--ranks", fmt::format("{}", ranks.total)});
    if (ranks.nodes > 1 && import.hosts.empty())
      import.result.notes.push_back(
          fmt::format("{} nodes: name them, --hosts n1:8,n2:8 or --hostfile FILE, or use --slurm",
                      ranks.nodes));
  }
}

/// Hosts of a hostfile beside --launcher slurm.
void slurm_hosts(Import& import) {
  const Import::Ranks& ranks = import.ranks;
  if (!import.first_slots)
    return import.error(import.find(Table::deepspeed_command, "launcher"),
                        "slurm beside slots of hosts, which DeepSpeed refuses",
                        "name whole hosts, or use --launcher pdsh");
  if (ranks.total != ranks.nodes * ranks.per_node)
    return import.error(import.find(Table::deepspeed_command, "hostfile"),
                        fmt::format("{} ranks on {} hosts; Slurm gives each node the same number",
                                    ranks.total, ranks.nodes),
                        "use hosts of equal slots, or --launcher pdsh");
  import.result.notes.emplace_back(
      "Slurm chooses the hosts; --sbatch=--nodelist=n1,n2 asks for those of the hostfile");
}

}  // namespace

Given* one_of_both(Import& import, std::string_view path, std::string_view other) {
  Given* ours = import.find(Table::deepspeed, path);
  const std::string_view flat = other.substr(other.rfind('.') + 1);
  Given* theirs = import.find(Table::accelerate_command, flat);
  if (theirs == nullptr) theirs = import.find(Table::accelerate, other);
  if (theirs != nullptr && theirs->node.text == "none" && ours != nullptr) theirs = nullptr;
  if (theirs != nullptr && theirs->node.text == "auto") theirs = nullptr;
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

bool trainer_defaults(const Import& import) {
  // Names that scripts without Trainer have, too.
  constexpr std::string_view kCommon[] = {"adam_beta1",
                                          "adam_beta2",
                                          "adam_epsilon",
                                          "bf16",
                                          "data_seed",
                                          "dataloader_num_workers",
                                          "debug",
                                          "deepspeed",
                                          "do_eval",
                                          "do_predict",
                                          "do_train",
                                          "eval_steps",
                                          "fp16",
                                          "fp16_opt_level",
                                          "gradient_accumulation_steps",
                                          "learning_rate",
                                          "gradient_checkpointing",
                                          "label_smoothing_factor",
                                          "local_rank",
                                          "log_level",
                                          "logging_dir",
                                          "logging_steps",
                                          "max_grad_norm",
                                          "max_steps",
                                          "mixed_precision",
                                          "no_cuda",
                                          "optim",
                                          "output_dir",
                                          "project",
                                          "push_to_hub",
                                          "report_to",
                                          "resume_from_checkpoint",
                                          "run_name",
                                          "save_steps",
                                          "seed",
                                          "tf32",
                                          "torch_compile",
                                          "use_cpu",
                                          "warmup_ratio",
                                          "warmup_steps",
                                          "weight_decay"};
  if (!import.options().trainer.empty() || import.script.empty()) return true;
  return std::ranges::any_of(import.keys(), [&](const Given& given) {
    return given.table == Table::trainer &&
           std::ranges::find(kCommon, given.path) == std::end(kCommon);
  });
}

void set_trainer_default(Import& import, std::string_view key, std::string value) {
  if (trainer_defaults(import)) import.set(key, std::move(value), std::string("Trainer's default"));
}

bool uses_deepspeed(Import& import) {
  return !import.options().deepspeed.empty() || import.has(Table::deepspeed) ||
         accelerate_mode(import) == Accelerate::deepspeed;
}

void derive_ranks(Import& import) {
  Import::Ranks& ranks = import.ranks;
  take_accelerate_ranks(import);
  take_deepspeed_ranks(import);
  take_torchrun(import);
  take_sbatch_ranks(import);
  for (const long count : {ranks.nodes, ranks.per_node, ranks.total}) {
    if (count >= 0 && count <= kMaxRanks) continue;
    import.error(key_of_ranks(import, count),
                 fmt::format("{} nodes of {} ranks", std::max(1L, ranks.nodes), ranks.per_node),
                 fmt::format("use 1 to {} ranks", kMaxRanks));
    ranks = {};
  }
  if (ranks.total == 0 && ranks.per_node > 0)  // hosts of a hostfile were counted one by one
    ranks.total = std::max(1L, ranks.nodes) * ranks.per_node;
  if (import.options().ranks > 0) {
    ranks.total = import.options().ranks;
    if (ranks.total % std::max(1L, ranks.nodes) == 0)
      ranks.per_node = ranks.total / std::max(1L, ranks.nodes);
  }
}

void derive_launch(Import& import) {
  const Import::Ranks& ranks = import.ranks;
  using enum Table;
  std::vector<std::string>& words = import.result.launch;
  const std::optional<std::string> launcher = import.word(deepspeed_command, "launcher");
  const bool slurm = import.has(sbatch) || launcher == "slurm";
  if (!slurm)
    words.insert(words.end(), import.hosts.begin(), import.hosts.end());
  else if (!import.hosts.empty())
    slurm_hosts(import);
  if (import.flag(deepspeed_command, "elastic_training").value_or(false)) {
    import.result.launch.insert(import.result.launch.end(), {"--max-restarts", "3"});
    const long min = import.whole(deepspeed_command, "min_elastic_nodes").value_or(0);
    if (min > 0 && ranks.per_node > 0 && min <= kMaxRanks)
      import.result.launch.insert(import.result.launch.end(),
                                  {"--min-ranks", fmt::format("{}", min * ranks.per_node)});
  }
  if (import.min_nodes > 0 && ranks.per_node > 0 && import.min_nodes <= kMaxRanks)
    words.insert(words.end(),
                 {"--min-ranks", fmt::format("{}", import.min_nodes * ranks.per_node)});
  launch_words(import, slurm);
}

namespace {

/// Micro-batch, accumulation and global batch, as DeepSpeedConfig completes them.
struct Batch {
  long micro = 0, steps = 0, global = 0;
};

Given* accumulation(Import& import) {
  Given* given = one_of_both(import, "gradient_accumulation_steps",
                             "deepspeed_config.gradient_accumulation_steps");
  if (given == nullptr) given = import.find(Table::trainer, "gradient_accumulation_steps");
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
  if (trainer && micro == nullptr && global == nullptr && trainer_defaults(import)) batch.micro = 8;
  for (Given* given : {global, micro, steps}) {
    if (given == nullptr || (whole_of(given) >= 1 && whole_of(given) <= 1 << 24)) continue;
    import.error(given, fmt::format("{} is no size of a batch", given->value), "use 1 to 16777216");
    return;
  }
  if (batch.micro == 0 && batch.global == 0) {  // `recipe check` says what is missing
    if (steps != nullptr && !import.chosen("batch.global"))
      import.outcome(steps, Fate::no_effect, "without a micro-batch it says no batch");
    return;
  }
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
  else if (!import.has(Table::deepspeed) && accelerate_mode(import) == Accelerate::deepspeed)
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
