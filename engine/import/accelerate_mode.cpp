#include <fmt/format.h>

#include <algorithm>

#include "engine/import/import_state.h"
#include "engine/recipe/text.h"

namespace dstrain::importing {
namespace {

constexpr Table kAccelerate = Table::accelerate;
constexpr Table kLaunch = Table::accelerate_command;

/// The key of the command line, else that of the file.
Given* command_or_file(Import& import, std::string_view command, std::string_view file) {
  Given* given = import.find(kLaunch, command);
  return given != nullptr ? given : import.find(kAccelerate, file);
}

bool used(const Import& import) { return import.has(kAccelerate) || import.has(kLaunch); }

/// Keys of accelerate's DeepSpeed section that it refuses beside a ds_config.json.
constexpr std::string_view kOfConfig[] = {
    "gradient_accumulation_steps", "gradient_clipping",     "zero_stage",
    "offload_optimizer_device",    "offload_param_device",  "offload_param_nvme_path",
    "offload_optimizer_nvme_path", "zero3_save_16bit_model"};

void refuse_beside_config(Import& import) {
  const Given* config = import.find(kAccelerate, "deepspeed_config.deepspeed_config_file");
  if (config == nullptr) config = import.find(kLaunch, "deepspeed_config_file");
  if (config == nullptr) config = import.find(Table::trainer, "deepspeed");
  if (config == nullptr && import.configs.empty()) return;
  const std::string beside = config == nullptr ? "--deepspeed" : config->path;
  const auto refuse = [&](const Given* given) {
    if (given == nullptr) return;
    import.error(given, fmt::format("beside {}, which accelerate refuses", beside),
                 "give it in ds_config.json alone");
  };
  for (const std::string_view name : kOfConfig)
    refuse(import.find(kAccelerate, fmt::format("deepspeed_config.{}", name)));
  if (import.find(kLaunch, "mixed_precision") == nullptr)
    refuse(import.find(kAccelerate, "mixed_precision"));
}

void leave_out(Import& import, Table table, auto&& belongs, const char* why) {
  for (Given& given : import.keys()) {
    if (given.table != table || !given.counts || !belongs(std::string_view(given.path))) continue;
    given.counts = false;
    import.outcome(&given, Fate::no_effect, why);
  }
}

}  // namespace

Accelerate accelerate_mode(Import& import) {
  if (!used(import)) return Accelerate::none;
  const auto on = [&](const char* flag) { return import.flag(kLaunch, flag).value_or(false); };
  if (on("cpu")) return Accelerate::one_process;
  if (on("use_deepspeed")) return Accelerate::deepspeed;
  if (on("use_fsdp")) return Accelerate::fsdp;
  if (on("multi_gpu")) return Accelerate::ranks;
  const std::string type = import.word(kAccelerate, "distributed_type").value_or("");
  if (type == "deepspeed") return Accelerate::deepspeed;
  if (type == "fsdp") return Accelerate::fsdp;
  // Without a file, accelerate starts one process a GPU where there are several.
  return type == "no" ? Accelerate::one_process : Accelerate::ranks;
}

void settle_accelerate(Import& import) {
  const Accelerate mode = accelerate_mode(import);
  if (mode == Accelerate::none) return;
  if (import.has(kAccelerate) && import.find(kAccelerate, "distributed_type") == nullptr) {
    import.error({.file = shown(import.options().accelerate.empty() ? "accelerate's file"
                                                                    : import.options().accelerate,
                                200),
                  .path = "distributed_type",
                  .message = "missing; accelerate reads no file without it",
                  .hint = "NO, MULTI_GPU, MULTI_CPU, DEEPSPEED or FSDP"});
  }
  int modes = 0;
  for (const char* flag : {"multi_gpu", "cpu", "use_deepspeed", "use_fsdp"})
    modes += import.flag(kLaunch, flag).value_or(false) ? 1 : 0;
  if (modes > 1)
    import.error({.file = "--command",
                  .message = "more than one of --cpu, --multi_gpu, --use_deepspeed, --use_fsdp, "
                             "which accelerate refuses",
                  .hint = "give one of them"});
  if (mode == Accelerate::deepspeed) {
    refuse_beside_config(import);
  } else {
    leave_out(
        import, kAccelerate,
        [](std::string_view path) { return path.starts_with("deepspeed_config"); },
        "counts only where accelerate uses DeepSpeed");
    leave_out(
        import, kLaunch,
        [](std::string_view path) {
          return std::ranges::find(kOfConfig, path) != std::end(kOfConfig) ||
                 path.starts_with("deepspeed_");
        },
        "counts only with --use_deepspeed");
  }
  if (mode != Accelerate::fsdp) {
    leave_out(
        import, kAccelerate, [](std::string_view path) { return path.starts_with("fsdp_config"); },
        "counts only where accelerate uses FSDP");
    leave_out(
        import, kLaunch, [](std::string_view path) { return path.starts_with("fsdp_"); },
        "counts only with --use_fsdp");
  }
}

void match_accelerate(Import& import) {
  const bool compares = uses_trainer(import) && trainer_defaults(import);
  if (!compares || accelerate_mode(import) != Accelerate::deepspeed) return;
  const auto differs = [&](const Given* given, const std::string& value, std::string_view name) {
    import.error(given, fmt::format("{} here, but {} by {} of Trainer", given->value, value, name),
                 "give both the same value, as Transformers asks for");
  };
  const auto is_on = [&](const char* name) {
    return import.flag(Table::trainer, name).value_or(false);
  };
  if (const Given* mixed = command_or_file(import, "mixed_precision", "mixed_precision")) {
    const std::string format = import.word(mixed->table, mixed->path).value_or("no");
    if (format != "no" && !is_on("bf16") && !is_on("fp16") &&
        !is_on((format + "_full_eval").c_str()))
      differs(mixed, "fp32", "bf16 and fp16");
  }
  if (import.has(Table::deepspeed)) return;  // beside it, these were refused or count for nothing
  const auto match = [&](const char* name, const char* trainers, double otherwise,
                         bool zero_is_off) {
    const Given* given = command_or_file(import, name, fmt::format("deepspeed_config.{}", name));
    if (given == nullptr || given->node.text == "auto") return;
    const std::optional<double> value = import.number(given->table, given->path);
    const double wanted = import.number(Table::trainer, trainers).value_or(otherwise);
    if (value != wanted && !(zero_is_off && value == 0.0))
      differs(given, fmt::format("{}", wanted), trainers);
  };
  match("gradient_accumulation_steps", "gradient_accumulation_steps", 1, false);
  match("gradient_clipping", "max_grad_norm", 1, true);
}

void take_accelerate_ranks(Import& import) {
  const Accelerate mode = accelerate_mode(import);
  if (mode == Accelerate::none) return;
  Import::Ranks& ranks = import.ranks;
  const Given* machines = command_or_file(import, "num_machines", "num_machines");
  Given* all = command_or_file(import, "num_processes", "num_processes");
  const auto count = [](const Given* given, long otherwise) {
    return given == nullptr ? otherwise : std::atol(given->node.text.c_str());
  };
  for (const Given* given : {machines, static_cast<const Given*>(all)}) {
    if (given != nullptr && count(given, 1) < 1)
      return import.error(given, fmt::format("{} is no number of them", given->value),
                          "use 1 or more");
  }
  ranks.nodes = count(machines, 1);
  ranks.per_node = count(all, 0) / ranks.nodes;
  if (all == nullptr) return;
  if (ranks.per_node == 0)
    return import.error(all, fmt::format("{} ranks on {} machines", all->value, ranks.nodes),
                        "use one rank a machine or more");
  if (mode == Accelerate::one_process && ranks.per_node > 1 &&
      command_or_file(import, "mpirun_hostfile", "mpirun_config.mpirun_hostfile") == nullptr) {
    return import.error(
        all,
        fmt::format("{}, but accelerate starts one process by distributed_type NO or --cpu",
                    all->value),
        "use num_processes 1, or --multi_gpu");
  }
  if (mode != Accelerate::deepspeed) return;
  Given* hostfile =
      command_or_file(import, "deepspeed_hostfile", "deepspeed_config.deepspeed_hostfile");
  Given* include = command_or_file(import, "deepspeed_inclusion_filter",
                                   "deepspeed_config.deepspeed_inclusion_filter");
  Given* exclude = command_or_file(import, "deepspeed_exclusion_filter",
                                   "deepspeed_config.deepspeed_exclusion_filter");
  const Given* launcher = command_or_file(import, "deepspeed_multinode_launcher",
                                          "deepspeed_config.deepspeed_multinode_launcher");
  const bool by_deepspeed =
      ranks.nodes > 1 && (launcher == nullptr || launcher->node.text != "standard");
  if (!by_deepspeed) {
    for (Given* given : {hostfile, include, exclude})
      import.outcome(given, Fate::no_effect, "counts only with num_machines above 1");
    return;
  }
  if (hostfile == nullptr) return;
  if (exclude != nullptr) {  // as accelerate writes the line
    import.outcome(include, Fate::no_effect, "the exclusion filter takes its place");
    include = nullptr;
  }
  const bool filter = include != nullptr || exclude != nullptr;
  take_deepspeed_hosts(import, hostfile, include, exclude, filter ? 0 : ranks.per_node);
}

}  // namespace dstrain::importing
