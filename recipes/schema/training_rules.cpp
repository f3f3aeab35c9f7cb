#include <fmt/format.h>

#include "recipes/schema/rule.h"

namespace dstrain {
namespace {

void one_length(const Recipe& r, RuleContext& context) {
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

void warmup_ends_in_the_run(const Recipe& r, RuleContext& context) {
  if (r.run.steps == 0 || r.optimizer.warmup_steps < r.run.steps) return;
  context.warning("optimizer.warmup_steps",
                  fmt::format("{} steps of warm-up in a run of {} (run.steps): lr is never reached",
                              r.optimizer.warmup_steps, r.run.steps),
                  fmt::format("use less than {}", r.run.steps));
}

/// log(steps) of a logarithmic warm-up divides by nothing.
void logarithmic_warmup_has_steps(const Recipe& r, RuleContext& context) {
  if (r.optimizer.warmup != Warmup::log || r.optimizer.warmup_steps != 1) return;
  context.error("optimizer.warmup_steps", "1; optimizer.warmup log rises over 2 steps or more",
                "use 2 or more, or 0 for no warm-up");
}

void decay_follows_the_warmup(const Recipe& r, RuleContext& context) {
  const OptimizerConfig& o = r.optimizer;
  if (!decays(o.schedule) || o.decay_steps == 0 || o.decay_steps > o.warmup_steps) return;
  context.error("optimizer.decay_steps",
                fmt::format("the decay ends at step {}, the warm-up (optimizer.warmup_steps) at {}",
                            o.decay_steps, o.warmup_steps),
                fmt::format("use more than {}, or 0 for the last step of the run", o.warmup_steps));
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

}  // namespace

std::span<const Rule> training_rules() {
  static const std::vector<Rule> all = {
      {one_length, {"run.epochs", "run.steps"}},
      {warmup_ends_in_the_run, {"optimizer.warmup_steps", "run.steps"}},
      {logarithmic_warmup_has_steps, {"optimizer.warmup", "optimizer.warmup_steps"}},
      {decay_follows_the_warmup,
       {"optimizer.schedule", "optimizer.decay_steps", "optimizer.warmup_steps"}},
      {loss_scale_starts_above_its_minimum,
       {"precision.compute", "precision.loss_scale.initial", "precision.loss_scale.fixed",
        "precision.loss_scale.minimum"}},
  };
  return all;
}

}  // namespace dstrain
