#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/import/import_state.h"
#include "engine/recipe/text.h"

namespace dstrain::importing {
namespace {

/// A value of the trainer: that of its file, else its default.
struct TrainerValue {
  std::string text;  ///< JSON
  std::string from;
  bool given = false;  ///< Trainer holds it beside other values, its default where it is one, too
  bool known = true;   ///< false: a default, while nothing shows that the training is Trainer's
};

/// Whether Transformers compares values of ds_config.json with those of the trainer.
bool compares(const Import& import) { return uses_trainer(import) && trainer_defaults(import); }

TrainerValue trainer_value(Import& import, std::string_view name, std::string_view otherwise) {
  const Given* given = import.find(Table::trainer, name);
  if (given == nullptr)
    return {std::string(otherwise), fmt::format("the default of {}", name), compares(import),
            trainer_defaults(import)};
  return {given->node.text, fmt::format("{} ({})", name, given->origin()), true};
}

/// True if either flag is.
TrainerValue either(Import& import, std::string_view a, std::string_view b) {
  TrainerValue first = trainer_value(import, a, "false");
  TrainerValue second = trainer_value(import, b, "false");
  return second.text == "true" ? second : first;
}

/// Steps of the run, where they are known.
std::optional<long> known_steps(Import& import) {
  if (const auto chosen = import.chosen("run.steps")) return std::atol(chosen->c_str());
  const long steps = import.whole(Table::trainer, "max_steps").value_or(-1);
  return steps > 0 ? std::optional(steps) : std::nullopt;
}

/// As TrainingArguments.get_warmup_steps(): whole steps, or a share of all.
std::optional<TrainerValue> warmup_steps(Import& import) {
  TrainerValue value = trainer_value(import, "warmup_steps", "0");
  const double steps = std::atof(value.text.c_str());
  if (steps >= 1) {
    value.text = fmt::format("{}", static_cast<long>(steps));
    return value;
  }
  double ratio = steps;
  if (ratio == 0) {
    const TrainerValue other = trainer_value(import, "warmup_ratio", "0");
    ratio = std::atof(other.text.c_str());
    if (import.find(Table::trainer, "warmup_ratio") != nullptr) value = other;
  }
  if (ratio == 0) {
    value.text = "0";
    return value;
  }
  const std::optional<long> total = known_steps(import);
  if (!total) return std::nullopt;
  value.text = fmt::format("{}", static_cast<long>(std::ceil(ratio * static_cast<double>(*total))));
  return value;
}

/// One key of ds_config.json that the trainer knows, too.
struct Pair {
  std::string_view path;
  std::string_view name;       ///< of TrainingArguments
  std::string_view otherwise;  ///< its default
};
constexpr Pair kPairs[] = {
    {"train_micro_batch_size_per_gpu", "per_device_train_batch_size", "8"},
    {"gradient_accumulation_steps", "gradient_accumulation_steps", "1"},
    {"gradient_clipping", "max_grad_norm", "1.0"},
    {"optimizer.params.lr", "learning_rate", "5e-5"},
    {"optimizer.params.eps", "adam_epsilon", "1e-8"},
    {"optimizer.params.weight_decay", "weight_decay", "0.0"},
    {"scheduler.params.warmup_max_lr", "learning_rate", "5e-5"},
};
/// "auto" of these is filled by the model's size there and sets nothing here.
constexpr std::string_view kSized[] = {"zero_optimization.reduce_bucket_size",
                                       "zero_optimization.stage3_prefetch_bucket_size",
                                       "zero_optimization.stage3_param_persistence_threshold"};

class Resolver {
 public:
  explicit Resolver(Import& import) : import_(import) {}

  void run() {
    for (const Pair& pair : kPairs)
      match(pair.path, trainer_value(import_, pair.name, pair.otherwise));
    match_betas();
    fill("scheduler.params.warmup_min_lr", {"0", "Transformers sets 0", false});
    match("fp16.enabled", either(import_, "fp16", "fp16_full_eval"));
    match("bf16.enabled", either(import_, "bf16", "bf16_full_eval"));
    match_steps();
    match_batch();
    for (const std::string_view path : kSized) drop(path, "sized by the model there");
    refuse_others();
  }

 private:
  Given* find(std::string_view path) { return import_.find(Table::deepspeed, path); }
  [[nodiscard]] static bool is_auto(const Given& given) { return given.node.text == "auto"; }

  void fill(std::string_view path, const TrainerValue& value) {
    Given* given = find(path);
    if (given == nullptr || !is_auto(*given)) return;
    if (!value.known) return refuse_unsaid(*given);
    given->node.text = value.text;
    given->node.quoted = false;
    import_.result.autos.push_back({std::string(path), value.text, value.from});
  }
  /// "auto" that a script without Trainer fills.
  void refuse_unsaid(Given& given) {
    const bool chosen = import_.chosen(given.rule->target).has_value();
    given.counts = false;
    import_.outcome(&given, Fate::translated, "\"auto\": --set says it");
    if (!chosen)
      import_.error(
          &given,
          fmt::format("\"auto\", and the arguments of {} show no TrainingArguments that "
                      "would fill it",
                      shown(import_.script)),
          fmt::format("give --trainer FILE, its value, or --set {}=...", given.rule->target));
  }
  void drop(std::string_view path, const std::string& why) {
    Given* given = find(path);
    if (given == nullptr || !is_auto(*given)) return;
    given->counts = false;
    import_.outcome(given, Fate::no_effect, "\"auto\": " + why);
  }
  /// Fills "auto"; another value must be the one that the trainer's file gives.
  void match(std::string_view path, const TrainerValue& value) {
    Given* given = find(path);
    if (given == nullptr) return;
    if (is_auto(*given)) return fill(path, value);
    const bool number = given->rule->kind != Kind::flag;
    const bool same = number ? std::atof(given->node.text.c_str()) == std::atof(value.text.c_str())
                             : given->node.text == value.text;
    if (value.given && !same) differs(*given, value);
  }
  void differs(const Given& given, const TrainerValue& value) {
    import_.error(&given, fmt::format("{} here, but {} by {}", given.value, value.text, value.from),
                  "write \"auto\" here, or give both the same value, as Transformers asks for");
  }

  void match_betas() {
    Given* given = find("optimizer.params.betas");
    if (given == nullptr) return;
    const TrainerValue one = trainer_value(import_, "adam_beta1", "0.9");
    const TrainerValue two = trainer_value(import_, "adam_beta2", "0.999");
    if (is_auto(*given) && !(one.known && two.known)) return refuse_unsaid(*given);
    if (is_auto(*given)) {
      Node list(Node::Kind::list, given->node.place);
      for (const TrainerValue* value : {&one, &two})
        list.items.push_back({Node::Kind::scalar, given->node.place, value->text});
      given->node = std::move(list);
      import_.result.autos.push_back({given->path, fmt::format("[{}, {}]", one.text, two.text),
                                      fmt::format("{}, {}", one.from, two.from)});
      return;
    }
    if (given->node.items.size() != 2) return;
    for (const auto& [item, value] :
         {std::pair(given->node.items[0], one), {given->node.items[1], two}}) {
      if (value.given && std::atof(item.text.c_str()) != std::atof(value.text.c_str()))
        return differs(*given, value);
    }
  }

  void match_steps() {
    const std::optional<long> total = known_steps(import_);
    if (Given* given = find("scheduler.params.total_num_steps"); given != nullptr) {
      if (is_auto(*given) && !total) {
        given->counts = false;
        import_.outcome(given, Fate::translated,
                        "\"auto\": the run's steps, as its epochs give them");
        import_.result.autos.push_back({given->path, "null", "the run's steps"});
      } else if (total) {
        // --set ends the run before or behind the schedule's end, as its user wants.
        const bool chosen = import_.chosen("run.steps").has_value();
        match(given->path,
              {fmt::format("{}", *total), chosen ? "--set run.steps" : "max_steps", !chosen});
      }
    }
    Given* given = find("scheduler.params.warmup_num_steps");
    if (given == nullptr) return;
    const std::optional<TrainerValue> value = warmup_steps(import_);
    if (value) {
      const long steps = std::max(1L, std::atol(value->text.c_str()));
      match(given->path, {fmt::format("{}", steps), value->from, value->given, value->known});
    } else if (is_auto(*given)) {
      if (import_.chosen("optimizer.warmup_steps")) return drop(given->path, "--set says it");
      import_.error(given, "\"auto\" is a share of the run's steps, which no file says",
                    "give max_steps, or --set optimizer.warmup_steps=N");
      given->counts = false;
    }
  }

  /// train_batch_size = ranks x micro x accumulation.
  void match_batch() {
    Given* given = find("train_batch_size");
    if (given == nullptr) return;
    const TrainerValue micro = trainer_value(import_, "per_device_train_batch_size", "8");
    const TrainerValue steps = trainer_value(import_, "gradient_accumulation_steps", "1");
    const long ranks = import_.ranks.total;
    if (ranks == 0) return drop(given->path, "ranks x micro-batch x accumulation");
    if (is_auto(*given) && !(micro.known && steps.known)) return refuse_unsaid(*given);
    const TrainerValue value = {
        fmt::format("{:.0f}", static_cast<double>(ranks) * std::atof(micro.text.c_str()) *
                                  std::atof(steps.text.c_str())),
        fmt::format("{} ranks x {} x {}", ranks, micro.from, steps.from),
        micro.given && steps.given};
    match("train_batch_size", value);
  }

  void refuse_others() {
    for (Given& given : import_.keys()) {
      const Kind kind = given.rule->kind;
      const bool value =
          kind == Kind::number || kind == Kind::whole || kind == Kind::flag || kind == Kind::list;
      if (!given.counts || !value || !is_auto(given)) continue;
      given.counts = false;
      import_.error(&given, "\"auto\", but neither Transformers nor dstrain fills this key",
                    "give its value");
    }
  }

  Import& import_;
};

}  // namespace

void resolve_auto(Import& import) {
  Resolver(import).run();
  match_accelerate(import);
}

}  // namespace dstrain::importing
