#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/import/import_state.h"
#include "engine/recipe/text.h"

namespace dstrain::importing {
namespace {

constexpr Table kFile = Table::deepspeed;

/// The key that says in which format the training computes, and that format.
struct Format {
  Given* given = nullptr;
  std::string name = "fp32";
};

Given* if_true(Import& import, Table table, std::string_view path) {
  return import.flag(table, path).value_or(false) ? import.find(table, path) : nullptr;
}

Format autocast(Import& import) {
  Given* on = if_true(import, kFile, "torch_autocast.enabled");
  if (on == nullptr) return {};
  const Given* type = import.find(kFile, "torch_autocast.dtype");
  std::string name = type == nullptr ? "bf16" : type->node.text;
  if (name.starts_with("torch.")) name.erase(0, 6);
  if (name == "bfloat16") name = "bf16";
  if (name == "float16" || name == "half") name = "fp16";
  if (name != "bf16" && name != "fp16") {
    import.error(type, fmt::format("{} is no 16-bit format", shown(name)),
                 "use bfloat16 or float16");
    name = "bf16";
  }
  return {on, name};
}

/// Formats by section and flag; two different ones are reported.
Format compute_format(Import& import) {
  std::vector<Format> found;
  const auto add = [&](Given* given, const char* name) {
    if (given != nullptr) found.push_back({given, name});
  };
  add(if_true(import, kFile, "fp16.enabled"), "fp16");
  add(if_true(import, kFile, "bf16.enabled"), "bf16");
  add(if_true(import, kFile, "bfloat16.enabled"), "bf16");
  if (Format cast = autocast(import); cast.given != nullptr) found.push_back(std::move(cast));
  for (const char* name : {"fp16", "bf16"}) {
    Given* given = if_true(import, Table::trainer, name);
    if (given == nullptr) continue;
    const std::string section = fmt::format("{}.enabled", name);
    if (import.flag(kFile, section).value_or(true))
      add(given, name);
    else
      import.outcome(given, Fate::no_effect, "ds_config.json says that it is off");
  }
  const bool by_trainer = if_true(import, Table::trainer, "fp16") != nullptr ||
                          if_true(import, Table::trainer, "bf16") != nullptr;
  for (const Table table : {Table::accelerate_command, Table::accelerate}) {
    Given* given = import.find(table, "mixed_precision");
    if (given == nullptr) continue;
    if (by_trainer)
      import.outcome(given, Fate::no_effect, "bf16 or fp16 of Trainer takes its place");
    else if (given->node.text != "no")
      add(given, given->node.text == "fp16" ? "fp16" : "bf16");
    else if (found.empty())
      found.push_back({given, "fp32"});
    break;
  }
  if (import.find(Table::accelerate, "mixed_precision") == nullptr && found.empty())
    add(if_true(import, Table::accelerate, "fp16"), "fp16");
  for (const Format& other : found) {
    if (other.name == found[0].name) continue;
    import.error(other.given,
                 fmt::format("{} here, but {} by {} ({})", other.name, found[0].name,
                             found[0].given->path, found[0].given->origin()),
                 "keep one format");
  }
  for (std::size_t i = 1; i < found.size(); ++i)
    found[i].given->became = "precision.compute: " + found[i].name;
  return found.empty() ? Format{} : found[0];
}

void loss_scale(Import& import) {
  const auto set = [&](const char* path, const char* key, const char* otherwise) {
    if (Given* given = import.find(kFile, fmt::format("fp16.{}", path)))
      import.set(key, given->node.text, given);
    else
      import.set(key, otherwise, std::string("DeepSpeed's default"));
  };
  Given* fixed = import.find(kFile, "fp16.loss_scale");
  if (fixed != nullptr && import.number(kFile, fixed->path) > 0.0) {
    import.set("precision.loss_scale.fixed", fixed->node.text, fixed);
    for (const char* name : {"initial_scale_power", "loss_scale_window", "hysteresis",
                             "consecutive_hysteresis", "min_loss_scale"})
      import.outcome(import.find(kFile, fmt::format("fp16.{}", name)), Fate::no_effect,
                     "the loss scale is fixed");
    return;
  }
  Given* power = import.find(kFile, "fp16.initial_scale_power");
  const long exponent = import.whole(kFile, "fp16.initial_scale_power").value_or(16);
  if (exponent < 0 || exponent > 100)
    return import.error(power, fmt::format("2^{} is no loss scale", exponent), "use 0 to 32");
  import.set("precision.loss_scale.initial",
             fmt::format("{:.0f}", std::exp2(static_cast<double>(exponent))), power);
  set("loss_scale_window", "precision.loss_scale.growth_interval", "1000");
  set("hysteresis", "precision.loss_scale.hysteresis", "2");
  if (Given* given = import.find(kFile, "fp16.consecutive_hysteresis"))
    import.set("precision.loss_scale.consecutive", given->node.text, given);
  if (Given* given = import.find(kFile, "fp16.min_loss_scale"))
    import.set("precision.loss_scale.minimum", given->node.text, given);
}

void reduction(Import& import, const std::string& format) {
  Given* codes = if_true(import, kFile, "zero_optimization.zero_quantized_gradients");
  if (codes != nullptr) return import.set("precision.reduce", "int4", codes);
  if (Given* given = import.find(kFile, "communication_data_type")) {
    const std::string name = import.word(kFile, given->path).value_or("");
    if (name == "bf16" || name == "fp32") return import.set("precision.reduce", name, given);
  }
  if (format == "bf16" && uses_deepspeed(import))
    import.set("precision.reduce", "bf16",
               std::string("DeepSpeed sums in the format of the computation"));
}

/// After `reduction`.
void accumulation(Import& import, const std::string& format) {
  Given* given = import.find(kFile, "data_types.grad_accum_dtype");
  if (given == nullptr || import.word(kFile, given->path) != "bf16") return;
  const auto reduce = import.settings().find("precision.reduce");
  const bool narrow =
      format == "bf16" && reduce != import.settings().end() && reduce->second.value == "bf16";
  if (narrow) return import.set("precision.gradients", "bf16", given);
  import.outcome(given, Fate::no_effect,
                 "sums over micro-batches are fp32 unless computation and reductions are bf16");
}

void bf16_states(Import& import) {
  Given* weights = if_true(import, kFile, "bf16.bf16_master_weights_and_grads");
  Given* moments = if_true(import, kFile, "bf16.bf16_optimizer_states");
  if (weights == nullptr && moments == nullptr) return;
  if (weights == nullptr || moments == nullptr) {
    return import.error(
        weights != nullptr ? weights : moments,
        "without the other of bf16_master_weights_and_grads and bf16_optimizer_states",
        "weights and moments have one format here: set both, or none");
  }
  import.set("precision.states", "bf16", weights);
  moments->became = "precision.states: bf16";
}

/// "pinned", "pageable", "file"; empty: not offloaded.
std::string place_of(Import& import, const std::string& section, const Given& device) {
  if (device.node.text == "none") return {};
  if (device.node.text == "nvme") return "file";
  return import.flag(kFile, section + ".pin_memory").value_or(true) ? "pinned" : "pageable";
}

void offload(Import& import, const std::string& section, const char* other, const char* key,
             const char* old) {
  Given* device =
      one_of_both(import, section + ".device", fmt::format("deepspeed_config.{}_device", other));
  const bool whole = import.has(kFile, section);
  const auto off = [&](const std::string& why) {
    for (Given& given : import.keys()) {
      if (given.path.starts_with(section + ".")) import.outcome(&given, Fate::no_effect, why);
    }
  };
  if (device == nullptr) {
    Given* flag = if_true(import, kFile, old);
    if (flag != nullptr) return import.set(key, "pinned", flag);
    if (whole) off("device is absent: none, its default");
    return;
  }
  const std::string place = place_of(import, section, *device);
  const auto stage = import.settings().find("parallel.zero.stage");
  const bool stage_3 = stage != import.settings().end() && stage->second.value == "3";
  if (place.empty()) return off("device none");
  if (section.ends_with("param") && !stage_3) return off("counts only at stage 3, there, too");
  import.set(key, place, device);
  if (Given* pinned = import.find(kFile, section + ".pin_memory"))
    pinned->became = fmt::format("{}: {}", key, place);
  Given* path = one_of_both(import, section + ".nvme_path",
                            fmt::format("deepspeed_config.{}_nvme_path", other));
  if (place != "file") return import.outcome(path, Fate::no_effect, "nothing rests in a file");
  if (path == nullptr || path->node.text == "none") return;
  const std::string text = yaml_text(path->node.text);
  const auto before = import.settings().find("memory.offload.path");
  if (before != import.settings().end() && before->second.value != text)
    return import.error(
        path,
        fmt::format("{} here, but {} for the other offload", path->value, before->second.value),
        "one path serves both");
  import.set("memory.offload.path", text, path);
}

void fsdp_stage(Import& import, Given* given, std::string name) {
  for (char& c : name) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c;
  const auto is = [&](std::initializer_list<std::string_view> names) {
    return std::ranges::find(names, name) != names.end();
  };
  if (is({"NO_SHARD", "3"})) return import.set("parallel.zero.stage", "0", given);
  const bool gradients = is({"SHARD_GRAD_OP", "2", "HYBRID_SHARD_ZERO2", "5", "FALSE"});
  const bool hybrid = is({"HYBRID_SHARD", "4", "HYBRID_SHARD_ZERO2", "5"});
  if (!gradients && !hybrid && !is({"FULL_SHARD", "1", "TRUE"}))
    return import.error(
        given, fmt::format("{} is no way of sharding", given == nullptr ? name : given->value),
        "use full_shard, shard_grad_op, hybrid_shard or no_shard");
  import.set("parallel.zero.stage", gradients ? "2" : "3", given);
  if (!hybrid) return;
  if (import.ranks.per_node > 0)
    import.set("parallel.zero.shard", fmt::format("{}", import.ranks.per_node), given);
  else if (!import.chosen("parallel.zero.shard"))
    import.error(given, "a shard of one host, whose number of ranks no file says",
                 "give --set parallel.zero.shard=N");
}

void offload_all(Import& import, Given* given) {
  const auto stage = import.settings().find("parallel.zero.stage");
  import.set("memory.offload.optimizer", "pinned", given);
  if (stage != import.settings().end() && stage->second.value == "3")
    import.set("memory.offload.parameters", "pinned", given);
}

/// Words of Trainer's --fsdp.
void trainer_fsdp(Import& import) {
  Given* given = import.find(Table::trainer, "fsdp");
  if (given == nullptr) return;
  std::vector<std::string> words;
  if (given->node.kind == Node::Kind::list) {
    for (const Node& item : given->node.items) words.push_back(item.text);
  } else {
    for (std::size_t begin = 0; begin < given->node.text.size();) {
      const std::size_t end = std::min(given->node.text.find(' ', begin), given->node.text.size());
      if (end > begin) words.push_back(given->node.text.substr(begin, end - begin));
      begin = end + 1;
    }
  }
  const auto has = [&](std::string_view word) {
    return std::ranges::find(words, word) != words.end();
  };
  if (words.empty() || has("false") || has("False"))
    return import.outcome(given, Fate::no_effect, "empty: no FSDP");
  std::string strategy = "true";
  for (const std::string& word : words) {
    if (word == "auto_wrap" || word == "offload" || word == "true" || word == "True") continue;
    strategy = word == "hybrid_shard_zero2" || word.ends_with("shard") || word.ends_with("op")
                   ? word
                   : "?" + word;
  }
  fsdp_stage(import, given, strategy);
  if (has("offload")) offload_all(import, given);
}

void accelerate_fsdp(Import& import) {
  if (accelerate_mode(import) != Accelerate::fsdp) return;
  Given* strategy = one_of_both(import, "", "fsdp_config.fsdp_sharding_strategy");
  if (strategy == nullptr)
    strategy = one_of_both(import, "", "fsdp_config.fsdp_reshard_after_forward");
  if (strategy != nullptr)
    fsdp_stage(import, strategy, strategy->node.text);
  else
    import.set("parallel.zero.stage", "3", std::string("FULL_SHARD, FSDP's default"));
  const auto flag = [&](const char* name) -> Given* {
    Given* given = one_of_both(import, "", fmt::format("fsdp_config.{}", name));
    return given != nullptr && import.flag(given->table, given->path).value_or(false) ? given
                                                                                      : nullptr;
  };
  if (Given* given = flag("fsdp_offload_params")) offload_all(import, given);
  if (Given* given = flag("fsdp_activation_checkpointing"))
    import.set("memory.recompute", "blocks", given);
  if (Given* given = flag("fsdp_activation_checkpointing_offload")) {
    import.set("memory.recompute", "blocks", given);
    import.set("memory.offload.activations", "pinned", given);
  }
}

}  // namespace

void derive_tf32(Import& import) {
  Given* given = if_true(import, Table::trainer, "tf32");
  if (given == nullptr) return;
  bool sixteen = autocast(import).given != nullptr;
  for (const auto& [table, path] :
       {std::pair(Table::trainer, "bf16"), std::pair(Table::trainer, "fp16"),
        std::pair(kFile, "bf16.enabled"), std::pair(kFile, "fp16.enabled")})
    sixteen = sixteen || if_true(import, table, path) != nullptr;
  for (const Table table : {Table::accelerate_command, Table::accelerate}) {
    const std::string format = import.word(table, "mixed_precision").value_or("no");
    sixteen = sixteen || format == "bf16" || format == "fp16";
  }
  if (!sixteen) return;
  given->counts = false;
  import.outcome(given, Fate::no_effect, "products of matrices are in 16 bits");
}

void derive_precision(Import& import) {
  const bool known = uses_deepspeed(import) || (uses_trainer(import) && trainer_defaults(import)) ||
                     import.has(Table::accelerate);
  const Format format = compute_format(import);
  if (format.given != nullptr)
    import.set("precision.compute", format.name, format.given);
  else if (known)
    import.set("precision.compute", "fp32", std::string("neither bf16 nor fp16"));
  if (format.name == "fp16" && uses_deepspeed(import)) loss_scale(import);
  const auto stage = import.settings().find("parallel.zero.stage");
  const bool stage_0 = stage == import.settings().end() || stage->second.value == "0";
  if (uses_deepspeed(import) && stage_0 && format.name != "fp32") {
    import.result.notes.emplace_back(
        "DeepSpeed's stage 0 in 16 bits begins with an update of zero gradients, which decays "
        "weights "
        "and counts as a step of Adam; dstrain does not");
  }
  reduction(import, format.name);
  accumulation(import, format.name);
  bf16_states(import);
}

void derive_memory(Import& import) {
  trainer_fsdp(import);
  accelerate_fsdp(import);
  offload(import, "zero_optimization.offload_optimizer", "offload_optimizer",
          "memory.offload.optimizer", "zero_optimization.cpu_offload");
  offload(import, "zero_optimization.offload_param", "offload_param", "memory.offload.parameters",
          "zero_optimization.cpu_offload_param");
  Given* share = import.find(kFile, "zero_optimization.offload_optimizer.ratio");
  if (share != nullptr && import.settings().contains("memory.offload.optimizer"))
    import.set("memory.offload.share", share->node.text, share);
  for (const char* name : {"gradient_checkpointing", "activation_checkpointing",
                           "fsdp_config.activation_checkpointing"}) {
    if (Given* given = if_true(import, Table::trainer, name))
      import.set("memory.recompute", "blocks", given);
  }
  for (const char* path :
       {"activation_checkpointing.cpu_checkpointing", "compile.offload_activation"}) {
    Given* given = if_true(import, kFile, path);
    if (given == nullptr) continue;
    import.set("memory.recompute", "blocks", given);
    import.set("memory.offload.activations", "pinned", given);
  }
}

}  // namespace dstrain::importing
