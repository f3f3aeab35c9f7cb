#include <fmt/format.h>

#include <cstddef>
#include <string>
#include <utility>

#include "engine/recipe/best_metric.h"
#include "engine/recipe/choices.h"
#include "engine/recipe/datasets.h"
#include "engine/recipe/families.h"
#include "engine/recipe/phases.h"
#include "engine/recipe/rule.h"

namespace dstrain {
namespace {

void one_length(const Recipe& r, RuleContext& context) {
  if (!r.phases.empty()) return;
  if (r.run.epochs > 0 && r.run.steps > 0) {
    context.error("run.steps",
                  fmt::format("the length is given twice: run.epochs is {} and run.steps {}",
                              r.run.epochs, r.run.steps),
                  "keep one; with --set put the other to 0");
  } else if (r.run.epochs == 0 && r.run.steps == 0) {
    context.error("run.epochs", "missing; the run has no length",
                  "give run.epochs or run.steps, from 1");
  }
}

void runs_have_a_folder(const Recipe& r, RuleContext& context) {
  if (r.run.output.empty())
    context.error("run.output", "is empty", "name the folder of the runs, such as runs");
}

void each_phase_has_one_length(const Recipe& r, RuleContext& context) {
  for (std::size_t i = 0; i < r.phases.size(); ++i) {
    const PhaseConfig& phase = r.phases[i];
    if ((phase.epochs > 0) != (phase.steps > 0)) continue;
    context.error(fmt::format("phases.{}", i),
                  phase.epochs > 0 ? fmt::format("the length is given twice: {} epochs, {} steps",
                                                 phase.epochs, phase.steps)
                                   : "missing; the phase has no length",
                  "give epochs or steps, from 1");
  }
}

void phases_are_the_run(const Recipe& r, RuleContext& context) {
  constexpr std::size_t kMaxPhases = 64;
  if (r.phases.empty()) return;
  if (r.phases.size() > kMaxPhases)
    context.error("phases", fmt::format("{} of them", r.phases.size()),
                  fmt::format("use {} at most", kMaxPhases));
  for (const auto& [path, length] :
       {std::pair("run.epochs", r.run.epochs), std::pair("run.steps", r.run.steps)}) {
    if (length > 0)
      context.error(path, fmt::format("{}, but the phases say how long the run is", length),
                    "leave it out, or phases; with --set put it to 0");
  }
}

/// Positions of patches belong to one size.
void image_sizes_fit_the_weights(const Recipe& r, RuleContext& context) {
  for (std::size_t i = 0; i < r.phases.size(); ++i) {
    const int size = r.phases[i].image_size;
    const ModelFamily* family = family_of(r.model.name);
    if (size == 0 || size == r.model.image_size || family == nullptr) continue;
    const std::string path = fmt::format("phases.{}.image_size", i);
    if (family->modality != Modality::images || family->has_size("patch_size")) {
      context.error(path,
                    fmt::format("{}, but the weights of model.name {} belong to one size", size,
                                r.model.name),
                    "leave it out, or use a convolutional model");
    } else if (r.data.resize_side > 0 && r.data.resize_side < size &&
               any_reads(r.data, "data.resize_side")) {
      context.error(
          path,
          fmt::format("{} pixels are more than data.resize_side ({})", size, r.data.resize_side),
          fmt::format("use data.resize_side: {} or more", size));
    }
  }
}

/// Adapters decide what is trained.
void phases_freeze_weights(const Recipe& r, RuleContext& context) {
  for (std::size_t i = 0; i < r.phases.size(); ++i) {
    if (r.lora.rank > 0 && !r.phases[i].frozen.empty())
      context.warning(fmt::format("phases.{}.frozen", i),
                      "has no effect: lora.rank above 0 freezes all but lora.also_train",
                      "remove it");
  }
}

/// Calls `check(recipe, length, path)` for each phase: the recipe as the phase has it, its steps
/// (0: not known here) and the key that gives its warm-up.
template <class Check>
void for_each_phase(const Recipe& r, Check check) {
  if (r.phases.empty()) return check(r, r.run.steps, std::string("optimizer.warmup_steps"));
  for (int i = 0; i < num_phases(r); ++i) {
    const PhaseConfig& phase = r.phases[static_cast<std::size_t>(i)];
    check(phase_recipe(r, i), phase.steps,
          phase.warmup_steps >= 0 ? fmt::format("phases.{}.warmup_steps", i)
                                  : std::string("optimizer.warmup_steps"));
  }
}

void warmup_ends_in_the_run(const Recipe& r, RuleContext& context) {
  for_each_phase(r, [&](const Recipe& own, int steps, const std::string& path) {
    if (steps == 0 || own.optimizer.warmup_steps < steps) return;
    context.warning(path,
                    fmt::format("{} steps of warm-up in a {} of {}: lr is never reached",
                                own.optimizer.warmup_steps, r.phases.empty() ? "run" : "phase",
                                r.phases.empty() ? fmt::format("{} (run.steps)", steps)
                                                 : std::to_string(steps)),
                    fmt::format("use less than {}", steps));
  });
}

/// log(steps) of a logarithmic warm-up divides by nothing.
void logarithmic_warmup_has_steps(const Recipe& r, RuleContext& context) {
  for_each_phase(r, [&](const Recipe& own, int, const std::string& path) {
    if (own.optimizer.warmup != Warmup::log || own.optimizer.warmup_steps != 1) return;
    context.error(path, "1; optimizer.warmup log rises over 2 steps or more",
                  "use 2 or more, or 0 for no warm-up");
  });
}

void decay_follows_the_warmup(const Recipe& r, RuleContext& context) {
  for_each_phase(r, [&](const Recipe& own, int, const std::string& path) {
    const OptimizerConfig& o = own.optimizer;
    if (!decays(o.schedule) || o.decay_steps == 0 || o.decay_steps > o.warmup_steps) return;
    context.error(
        "optimizer.decay_steps",
        fmt::format("the decay ends at step {}, the warm-up ({}) at {}", o.decay_steps, path,
                    o.warmup_steps),
        fmt::format("use more than {}, or 0 for the last step of the run", o.warmup_steps));
  });
}

void loss_scale_starts_above_its_minimum(const Recipe& r, RuleContext& context) {
  const LossScaleConfig& scale = r.precision.loss_scale;
  // A factor that starts below the default minimum stays there.
  if (r.precision.compute != ComputeType::fp16 || scale.fixed > 0 || scale.minimum <= 1 ||
      scale.initial >= scale.minimum)
    return;
  context.error("precision.loss_scale.minimum",
                fmt::format("{} is more than precision.loss_scale.initial ({})", scale.minimum,
                            scale.initial),
                fmt::format("use at most {}", scale.initial));
}

/// The average is updated on the device, by weights that rest there, and takes their place.
void averaged_weights_rest_on_the_device(const Recipe& r, RuleContext& context) {
  const OffloadConfig& offload = r.memory.offload;
  if (r.ema.decay == 0) return;
  if (offload.optimizer == OffloadPlace::device && offload.parameters == OffloadPlace::device)
    return;
  context.error("ema.decay",
                fmt::format("the average is taken of weights on the device, and "
                            "memory.offload.optimizer is {}, .parameters {}",
                            spelling(offload.optimizer), spelling(offload.parameters)),
                "leave ema out, or memory.offload; memory.offload.activations may stay");
}

/// For a metric of answers, of a model that takes text.
void best_answers_are_made(const Recipe& r, RuleContext& context) {
  const BestMetric metric = r.run.best.metric;
  if (r.run.generate == 0)
    context.error("run.best.metric",
                  fmt::format("{}, but run.generate is 0: nothing is answered", spelling(metric)),
                  "set run.generate to the number of test samples that are");
  const bool generated = is_generated(dataset_row(r.data.name));
  const std::vector<DataConfig> sets = sets_of(r.data);
  const auto has_figure = [&](const DataConfig& one) {
    return (one.name == DatasetName::metamathqa) == (metric == BestMetric::right_answers);
  };
  if (!generated && (sets.empty() || std::ranges::any_of(sets, has_figure))) return;
  const bool maths = metric != BestMetric::right_answers;
  context.error("run.best.metric",
                fmt::format("{}, but answers to data.name {} have no such figure", spelling(metric),
                            dataset_row(r.data.name).spelling),
                generated ? "use loss"
                : maths   ? "use right_answers"
                          : "use exact_match or f1");
}

void best_is_measured(const Recipe& r, RuleContext& context) {
  if (r.run.best.metric == BestMetric::none) return;
  if (r.run.evaluate.is_never())
    context.error("run.best.metric",
                  fmt::format("{}, but run.evaluate is never", spelling(r.run.best.metric)),
                  "set run.evaluate to epoch or to steps");
  const ModelFamily* family = family_of(r.model.name);
  if (family == nullptr) return;
  const bool text = family->modality == Modality::text;
  const bool answers = is_of_answers(r.run.best.metric);
  if (text && answers) return best_answers_are_made(r, context);
  if (answers || r.run.best.metric == (text ? BestMetric::top5 : BestMetric::perplexity))
    context.error("run.best.metric",
                  fmt::format("{}, but model.name {} takes {}", spelling(r.run.best.metric),
                              r.model.name, text ? "text" : "images"),
                  "use loss or accuracy");
}

/// Adapters take about ten times the learning rate of full training.
void learning_rates_are_usual(const Recipe& r, RuleContext& context) {
  if (r.optimizer.name != OptimizerName::adamw || r.lora.rank == 0) return;
  constexpr double kLow = 2e-5, kHigh = 1e-3, kHighOfLargeRank = 1e-4;
  constexpr int kLargeRank = 128;
  const double high = r.lora.rank >= kLargeRank && !r.lora.rslora ? kHighOfLargeRank : kHigh;
  if (r.optimizer.lr > 0 && r.optimizer.lr < kLow)
    context.warning("optimizer.lr",
                    fmt::format("{:g} is low for adapters: they take about ten times the rate of "
                                "full training",
                                r.optimizer.lr),
                    "1e-4 to 2e-4 is usual");
  const ModelFamily* family = family_of(r.model.name);
  const bool text = family != nullptr && family->modality == Modality::text;
  if (text && r.optimizer.lr > high)  // vision transformers bear 5e-3
    context.warning(
        "optimizer.lr",
        fmt::format("{:g} is high for adapters of rank {}", r.optimizer.lr, r.lora.rank),
        fmt::format("use at most {:g}", high));
}

}  // namespace

std::span<const Rule> training_rules() {
  static const std::vector<Rule> all = {
      {one_length, {"run.epochs", "run.steps", "phases"}},
      {runs_have_a_folder, {"run.output"}},
      {each_phase_has_one_length, {"phases"}},
      {phases_are_the_run, {"run.epochs", "run.steps", "phases"}},
      {image_sizes_fit_the_weights,
       {"phases", "model.name", "model.image_size", "data.name", "data.resize_side"}},
      {phases_freeze_weights, {"phases", "lora.rank"}},
      {warmup_ends_in_the_run, {"optimizer.warmup_steps", "run.steps", "phases"}},
      {logarithmic_warmup_has_steps, {"optimizer.warmup", "optimizer.warmup_steps", "phases"}},
      {decay_follows_the_warmup,
       {"optimizer.schedule", "optimizer.decay_steps", "optimizer.warmup_steps", "phases"}},
      {loss_scale_starts_above_its_minimum,
       {"precision.compute", "precision.loss_scale.initial", "precision.loss_scale.fixed",
        "precision.loss_scale.minimum"}},
      {best_is_measured,
       {"run.best.metric", "run.evaluate", "run.generate", "model.name", "data.name"}},
      {learning_rates_are_usual,
       {"optimizer.name", "optimizer.lr", "lora.rank", "lora.rslora", "model.name"}},
      {averaged_weights_rest_on_the_device,
       {"ema.decay", "memory.offload.optimizer", "memory.offload.parameters"}},
  };
  return all;
}

}  // namespace dstrain
