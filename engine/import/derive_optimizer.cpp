#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/import/import_state.h"

namespace dstrain::importing {
namespace {

constexpr Table kDs = Table::deepspeed;
constexpr const char* kDeepspeedDefault = "DeepSpeed's default";

std::string param(std::string_view name) { return fmt::format("optimizer.params.{}", name); }
std::string schedule_param(std::string_view name) {
  return fmt::format("scheduler.params.{}", name);
}

/// Two numbers as YAML; empty where it is something else.
std::string pair_text(const Node& node) {
  if (node.items.size() != 2) return {};
  for (const Node& item : node.items)
    if (item.kind != Node::Kind::scalar) return {};
  return fmt::format("[{}, {}]", node.items[0].text, node.items[1].text);
}

/// A value of the file, else DeepSpeed's default.
void set_or(Import& import, std::string_view key, Given* given, std::string_view otherwise) {
  if (given != nullptr)
    import.set(key, given->node.text, given);
  else
    import.set(key, std::string(otherwise), std::string(kDeepspeedDefault));
}

void set_betas(Import& import, std::string_view otherwise) {
  Given* betas = import.find(kDs, param("betas"));
  if (betas == nullptr)
    return import.set("optimizer.betas", std::string(otherwise), std::string(kDeepspeedDefault));
  const std::string text = pair_text(betas->node);
  if (text.empty()) return import.error(betas, "two numbers are wanted", "write [0.9, 0.999]");
  import.set("optimizer.betas", text, betas);
}

/// Keys of params that another optimizer has.
void unused(Import& import, std::initializer_list<const char*> names, std::string_view of) {
  for (const char* name : names) {
    if (Given* given = import.find(kDs, param(name)))
      import.error(given, fmt::format("optimizer {} has no such parameter", of), "take it out");
  }
}

void deepspeed_adam(Import& import, const std::string& type, Given* given) {
  import.set("optimizer.name", "adamw", given);
  const bool torch = import.flag(kDs, param("torch_adam")).value_or(false);
  set_or(import, "optimizer.lr", import.find(kDs, param("lr")), "1e-3");
  set_betas(import, "[0.9, 0.999]");
  set_or(import, "optimizer.eps", import.find(kDs, param("eps")), "1e-8");
  Given* decay = import.find(kDs, param("weight_decay"));
  for (const char* name : {"adam_w_mode", "adamw_mode"}) {
    Given* mode = import.find(kDs, param(name));
    if (mode == nullptr) continue;
    const bool coupled = type == "adam" && mode->node.text == "false";
    const double share = import.number(kDs, param("weight_decay")).value_or(0);
    if (coupled && share != 0) {
      import.error(
          mode,
          fmt::format(
              "Adam with weight_decay {}: its decay is a part of the gradient, adamw's is not",
              share),
          "use weight_decay 0, or AdamW");
    }
    import.outcome(mode, Fate::translated, coupled ? "without decay both rules are one" : "adamw");
    mode->became = "optimizer.name: adamw";
  }
  set_or(import, "optimizer.weight_decay", decay, torch ? "0.01" : "0");
  unused(import, {"momentum", "nesterov"}, "Adam");
}

void deepspeed_sgd(Import& import, Given* given) {
  import.set("optimizer.name", "sgd", given);
  set_or(import, "optimizer.lr", import.find(kDs, param("lr")), "1e-3");
  set_or(import, "optimizer.momentum", import.find(kDs, param("momentum")), "0");
  set_or(import, "optimizer.nesterov", import.find(kDs, param("nesterov")), "false");
  set_or(import, "optimizer.weight_decay", import.find(kDs, param("weight_decay")), "0");
  unused(import, {"betas", "eps"}, "SGD");
}

void deepspeed_lion(Import& import, Given* given) {
  import.set("optimizer.name", "lion", given);
  set_or(import, "optimizer.lr", import.find(kDs, param("lr")), "1e-3");
  set_betas(import, "[0.9, 0.999]");
  set_or(import, "optimizer.weight_decay", import.find(kDs, param("weight_decay")), "0");
  unused(import, {"momentum", "nesterov", "eps"}, "Lion");
}

void deepspeed_optimizer(Import& import, Given* given) {
  const std::string type = import.word(kDs, "optimizer.type").value_or("");
  if (type == "adam" || type == "adamw") return deepspeed_adam(import, type, given);
  if (type == "sgd") return deepspeed_sgd(import, given);
  if (type == "lion") return deepspeed_lion(import, given);
  import.error(
      given, fmt::format("optimizer {} has no counterpart", given->value),
      "use AdamW, SGD or Lion; dstrain's others are in recipes/REFERENCE.md (optimizer.name)");
}

void trainer_number(Import& import, std::string_view key, std::string_view name,
                    std::string_view otherwise) {
  if (Given* given = import.find(Table::trainer, name))
    import.set(key, given->node.text, given);
  else
    set_trainer_default(import, key, std::string(otherwise));
}

void trainer_optimizer(Import& import) {
  const std::string optim = import.word(Table::trainer, "optim").value_or("adamw_torch_fused");
  const bool sgd = optim == "sgd";
  if (Given* given = import.find(Table::trainer, "optim"))
    import.set("optimizer.name", sgd ? "sgd" : "adamw", given);
  else
    set_trainer_default(import, "optimizer.name", "adamw");
  trainer_number(import, "optimizer.lr", "learning_rate", "5e-5");
  trainer_number(import, "optimizer.weight_decay", "weight_decay", "0");
  if (sgd) {
    import.set("optimizer.momentum", "0", std::string("Trainer's sgd has none"));
    import.set("optimizer.nesterov", "false", std::string("Trainer's sgd has none"));
    return;
  }
  const auto text_of = [&](const char* name, const char* otherwise) {
    const Given* given = import.find(Table::trainer, name);
    return given == nullptr ? std::string(otherwise) : given->node.text;
  };
  const std::string betas =
      fmt::format("[{}, {}]", text_of("adam_beta1", "0.9"), text_of("adam_beta2", "0.999"));
  Given* from = import.find(Table::trainer, "adam_beta2");
  if (Given* first = import.find(Table::trainer, "adam_beta1")) {
    if (from != nullptr)
      first->became = "optimizer.betas: " + betas;
    else
      from = first;
  }
  if (from != nullptr)
    import.set("optimizer.betas", betas, from);
  else
    set_trainer_default(import, "optimizer.betas", betas);
  trainer_number(import, "optimizer.eps", "adam_epsilon", "1e-8");
}

void clipping(Import& import) {
  Given* given = one_of_both(import, "gradient_clipping", "deepspeed_config.gradient_clipping");
  const bool of_accelerate = given != nullptr && given->table != kDs;
  if (of_accelerate && import.number(given->table, given->path) == 0.0) {
    import.outcome(given, Fate::no_effect, "0 is as if it were absent, there");
    return import.set("optimizer.clip_norm", "1.0", std::string("DeepSpeed's default"));
  }
  if (given == nullptr) given = import.find(kDs, param("max_grad_norm"));
  if (given != nullptr && given->node.text != "none")
    return import.set("optimizer.clip_norm", given->node.text, given);
  // Without ds_config.json, accelerate's value is "auto".
  const bool is_auto = accelerate_mode(import) == Accelerate::deepspeed &&
                       !import.has(Table::deepspeed) && uses_trainer(import);
  if (uses_deepspeed(import) && !is_auto) {
    import.outcome(import.find(Table::trainer, "max_grad_norm"), Fate::no_effect,
                   "DeepSpeed clips by its own gradient_clipping, which is absent");
    return import.set("optimizer.clip_norm", "1.0",
                      std::string("gradient_clipping is absent: 1.0 in DeepSpeed 0.19"));
  }
  if (uses_trainer(import)) trainer_number(import, "optimizer.clip_norm", "max_grad_norm", "1.0");
}

/// What DeepSpeed's three schedules share.
void deepspeed_warmup(Import& import, double lr, Given* minimum, bool ratio) {
  Given* steps = import.find(kDs, schedule_param("warmup_num_steps"));
  const long count = import.whole(kDs, schedule_param("warmup_num_steps")).value_or(1000);
  if (count < 1) return import.error(steps, fmt::format("{} steps", count), "use 1 or more");
  const std::string text = fmt::format("{}", std::max(2L, count));
  if (import.chosen("optimizer.warmup_steps")) {
    // --set says it.
  } else if (steps != nullptr) {
    import.set("optimizer.warmup_steps", text, steps);
  } else {
    import.set("optimizer.warmup_steps", text, std::string(kDeepspeedDefault));
  }
  Given* type = import.find(kDs, schedule_param("warmup_type"));
  set_or(import, "optimizer.warmup", type, "log");
  import.set("optimizer.warmup_shift", "-1",
             std::string("DeepSpeed takes two updates at the start"));
  if (minimum == nullptr) return;
  const double min = import.number(minimum->table, minimum->path).value_or(0);
  const double share = ratio ? min : lr > 0 ? min / lr : 0;
  if (share != 0)
    import.set("optimizer.warmup_ratio", fmt::format("{}", share), minimum);
  else
    import.outcome(minimum, Fate::translated, "0, the default of optimizer.warmup_ratio");
}

void decay_end(Import& import, const std::string& type) {
  Given* total = import.find(kDs, schedule_param("total_num_steps"));
  if (total != nullptr) return import.set("optimizer.decay_steps", total->node.text, total);
  const bool automatic = std::ranges::any_of(import.keys(), [](const Given& given) {
    return given.path == "scheduler.params.total_num_steps" && given.value == "\"auto\"";
  });
  if (!automatic)
    import.error(import.find(kDs, "scheduler.type"),
                 fmt::format("{} without total_num_steps", type),
                 "give it, or \"auto\" for the steps of the run");
}

void refuse_foreign(Import& import, std::initializer_list<const char*> names,
                    std::string_view type) {
  for (const char* name : names) {
    if (Given* given = import.find(kDs, schedule_param(name)))
      import.error(given, fmt::format("{} has no such parameter", type), "take it out");
  }
}

void deepspeed_schedule(Import& import, Given* given) {
  const std::string type = given->node.text;
  Given* min = import.find(kDs, schedule_param("warmup_min_lr"));
  if (type == "WarmupLR" || type == "WarmupDecayLR") {
    Given* top = import.find(kDs, schedule_param("warmup_max_lr"));
    if (top != nullptr) {
      if (Given* other = import.find(kDs, param("lr"));
          other != nullptr && import.number(kDs, other->path) != import.number(kDs, top->path)) {
        other->became.clear();
        import.outcome(other, Fate::no_effect, fmt::format("{} takes its place", top->path));
      }
      import.set("optimizer.lr", top->node.text, top);
    } else if (type == "WarmupDecayLR") {
      import.set("optimizer.lr", "1e-3", std::string("WarmupDecayLR's default of warmup_max_lr"));
    }
    const auto lr = import.settings().find("optimizer.lr");
    deepspeed_warmup(import,
                     lr == import.settings().end() ? 0 : std::atof(lr->second.value.c_str()), min,
                     false);
    refuse_foreign(import, {"warmup_min_ratio", "cos_min_ratio"}, type);
    if (type == "WarmupLR") {
      import.set("optimizer.schedule", "constant", given);
      return refuse_foreign(import, {"total_num_steps"}, type);
    }
    import.set("optimizer.schedule", "linear", given);
    return decay_end(import, type);
  }
  if (type == "WarmupCosineLR") {
    import.set("optimizer.schedule", "cosine", given);
    deepspeed_warmup(import, 0, import.find(kDs, schedule_param("warmup_min_ratio")), true);
    set_or(import, "optimizer.final_lr_ratio", import.find(kDs, schedule_param("cos_min_ratio")),
           "0.0001");
    refuse_foreign(import, {"warmup_min_lr", "warmup_max_lr"}, type);
    return decay_end(import, type);
  }
  import.error(given, fmt::format("schedule {} has no counterpart", given->value),
               "use WarmupLR, WarmupDecayLR or WarmupCosineLR");
}

/// Steps of Trainer's warm-up.
void trainer_warmup(Import& import) {
  Given* given = import.find(Table::trainer, "warmup_steps");
  double steps = import.number(Table::trainer, "warmup_steps").value_or(0);
  if (steps == 0) {
    given = import.find(Table::trainer, "warmup_ratio");
    steps = import.number(Table::trainer, "warmup_ratio").value_or(0);
    if (steps >= 1) return import.error(given, fmt::format("{} is no share", steps), "use 0 to 1");
  }
  if (steps <= 0 || import.chosen("optimizer.warmup_steps")) return;
  if (steps < 1) {
    const long total = import.whole(Table::trainer, "max_steps").value_or(-1);
    const std::optional<std::string> chosen = import.chosen("run.steps");
    const double all = chosen ? std::atof(chosen->c_str()) : static_cast<double>(total);
    if (all <= 0)
      return import.error(given, "a share of the run's steps, which no file says",
                          "give max_steps, or --set optimizer.warmup_steps=N");
    steps = std::ceil(steps * all);
  }
  import.set("optimizer.warmup_steps", fmt::format("{:.0f}", std::floor(steps)), given);
  import.set("optimizer.warmup_shift", "0", std::string("Trainer's first update has rate 0"));
}

void trainer_schedule(Import& import) {
  const std::string type = import.word(Table::trainer, "lr_scheduler_type").value_or("linear");
  const std::string schedule = type.starts_with("constant") ? "constant" : type;
  if (Given* given = import.find(Table::trainer, "lr_scheduler_type"))
    import.set("optimizer.schedule", schedule, given);
  else
    set_trainer_default(import, "optimizer.schedule", schedule);
  if (type != "constant") trainer_warmup(import);
}

}  // namespace

void derive_optimizer(Import& import) {
  const bool trainer = uses_trainer(import);
  if (Given* type = import.find(kDs, "optimizer.type")) {
    deepspeed_optimizer(import, type);
    for (const char* name :
         {"optim", "learning_rate", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon"})
      import.outcome(import.find(Table::trainer, name), Fate::no_effect,
                     "the optimizer of ds_config.json holds");
  } else if (trainer) {
    trainer_optimizer(import);
    // An optimizer of ds_config.json decays all parameters.
    const auto decay = import.settings().find("optimizer.weight_decay");
    if (decay != import.settings().end() && std::atof(decay->second.value.c_str()) != 0 &&
        trainer_defaults(import))
      import.set("optimizer.decay_vectors", "false",
                 std::string("Trainer decays no biases and norms"));
  } else if (uses_deepspeed(import)) {
    import.result.notes.emplace_back(
        "ds_config.json has no optimizer: the script made its own, whose name and rates no file "
        "says");
  }
  clipping(import);
  if (Given* given = import.find(Table::trainer, "label_smoothing_factor");
      given != nullptr && import.number(Table::trainer, given->path) != 0.0)
    import.set("optimizer.label_smoothing", given->node.text, given);
}

void derive_schedule(Import& import) {
  if (Given* type = import.find(kDs, "scheduler.type")) {
    deepspeed_schedule(import, type);
    for (const char* name : {"lr_scheduler_type", "warmup_steps", "warmup_ratio"})
      import.outcome(import.find(Table::trainer, name), Fate::no_effect,
                     "the scheduler of ds_config.json holds");
  } else if (uses_trainer(import)) {
    trainer_schedule(import);
  } else if (uses_deepspeed(import)) {
    import.set("optimizer.schedule", "constant", std::string("no scheduler"));
    import.result.notes.emplace_back(
        "ds_config.json has no scheduler: a schedule that the script made itself is in no file");
  }
}

}  // namespace dstrain::importing
