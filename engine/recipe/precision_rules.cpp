#include <fmt/format.h>

#include "engine/recipe/choices.h"
#include "engine/recipe/rule.h"

namespace dstrain {
namespace {

/// Rounds activations to bf16, on GPUs that multiply it.
bool computes_in_bf16(ComputeType compute) {
  return compute != ComputeType::fp32 && compute != ComputeType::fp16;
}

void states_fit_compute(const Recipe& r, RuleContext& context) {
  if (r.precision.states == StateType::fp32 || computes_in_bf16(r.precision.compute)) return;
  context.error("precision.states",
                fmt::format("{} states need a bf16 computation, precision.compute is {}",
                            spelling(r.precision.states), spelling(r.precision.compute)),
                "use states: fp32, or compute: bf16");
}

void gradients_fit_compute(const Recipe& r, RuleContext& context) {
  if (r.precision.gradients != GradientType::bf16) return;
  if (!computes_in_bf16(r.precision.compute)) {
    context.error("precision.gradients",
                  fmt::format("bf16 gradients need a bf16 computation, precision.compute is {}",
                              spelling(r.precision.compute)),
                  "use gradients: fp32, or compute: bf16");
  }
  if (r.precision.reduce != ReduceType::bf16) {
    context.error(
        "precision.gradients",
        fmt::format("bf16 gradients are summed over ranks in bf16, precision.reduce is {}",
                    spelling(r.precision.reduce)),
        "use reduce: bf16 too, or gradients: fp32");
  }
}

void gathered_codes_need_stage_3(const Recipe& r, RuleContext& context) {
  if (r.precision.gather == GatherType::compute) return;
  if (r.parallel.zero.stage != 3) {
    context.error("precision.gather",
                  fmt::format("{}, but parallel.zero.stage {} gathers no parameters into slots",
                              spelling(r.precision.gather), r.parallel.zero.stage),
                  "set parallel.zero.stage: 3, or leave gather out");
  }
}

void reduced_codes_need_slots(const Recipe& r, RuleContext& context) {
  if (r.precision.reduce != ReduceType::int8 && r.precision.reduce != ReduceType::int4) return;
  if (r.parallel.zero.stage >= 2) return;
  context.error("precision.reduce",
                fmt::format("{} is summed by the rank that owns a shard of the gradients, and "
                            "parallel.zero.stage {} splits none",
                            spelling(r.precision.reduce), r.parallel.zero.stage),
                "set parallel.zero.stage to 2 or 3, or use reduce: bf16");
}

void reduce_not_below_compute(const Recipe& r, RuleContext& context) {
  if (r.precision.compute != ComputeType::fp32 || r.precision.reduce != ReduceType::bf16) return;
  context.error("precision.reduce", "bf16 sums would round the gradients of precision.compute fp32",
                "use reduce: fp32, or compute: bf16");
}

}  // namespace

std::span<const Rule> precision_rules() {
  static const std::vector<Rule> rules = {
      {states_fit_compute, {"precision.compute", "precision.states"}},
      {gradients_fit_compute, {"precision.compute", "precision.gradients", "precision.reduce"}},
      {gathered_codes_need_stage_3, {"precision.gather", "parallel.zero.stage"}},
      {reduced_codes_need_slots, {"precision.reduce", "parallel.zero.stage"}},
      {reduce_not_below_compute, {"precision.compute", "precision.reduce"}},
  };
  return rules;
}

}  // namespace dstrain
