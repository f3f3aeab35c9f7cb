#include "engine/train/session/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "engine/base/error.h"
#include "engine/mesh/split.h"
#include "engine/recipe/axes.h"
#include "engine/train/session/session.h"

namespace dstrain {
namespace {

using Weights = std::map<std::string, std::vector<float>>;

/// What a step gave; `weights` on rank 0 alone.
struct Made {
  StepOutcome outcome;
  Weights weights;
};

/// One rank has the same statistics with a larger micro-batch, of which it would drop others.
bool shares_statistics(const Recipe& recipe) {
  return recipe.batch_norm.over == BatchNormOver::ranks;
}

/// Runs the steps; `start` (perhaps none) and `made` get the weights, which only rank 0 keeps
/// (gathering them is collective).
void run(const Recipe& recipe, const World& world, int steps, RankRecordFile& record,
         const std::function<void(Weights)>& start, const std::function<void(int, Made)>& made) {
  Session session(recipe, world, record);
  session.seek(0);
  const SectionScope section(record, RankSection::step);
  const auto gathered = [&] {
    Weights weights = session.gathered_weights();
    return world.rank == 0 ? std::move(weights) : Weights();
  };
  if (start) start(gathered());
  for (int step = 0; step < steps; ++step) {
    session.enqueue_step();
    const StepOutcome outcome = session.executor().take_outcome();
    made(step, {outcome, gathered()});
  }
}

double unit_roundoff(ComputeType type) {
  switch (type) {
    case ComputeType::fp32:
      return std::ldexp(1.0, -24);
    case ComputeType::fp16:
      return std::ldexp(1.0, -11);
    case ComputeType::fp8:
      return std::ldexp(1.0, -4);
    case ComputeType::bf16:
    case ComputeType::automatic:
      return std::ldexp(1.0, -8);
  }
  return 0;
}

/// Codes: for a weight as large as most in its block, whose largest one sets the scale.
double unit_roundoff(GatherType type) {
  switch (type) {
    case GatherType::compute:
      return 0;
    case GatherType::int8:
      return std::ldexp(1.0, -7);
    case GatherType::fp8:
      return std::ldexp(1.0, -4);
    case GatherType::int4:
      return std::ldexp(1.0, -3);
  }
  return 0;
}

double unit_roundoff(const PrecisionConfig& precision) {
  GatherType reduced = GatherType::compute;
  if (precision.reduce == ReduceType::int8) reduced = GatherType::int8;
  if (precision.reduce == ReduceType::int4) reduced = GatherType::int4;
  return std::max(
      {unit_roundoff(precision.compute), unit_roundoff(precision.gather), unit_roundoff(reduced)});
}

bool within(double value, double reference, double tolerance) {
  if (!std::isfinite(reference)) return !std::isfinite(value);  // both skip the step
  return std::abs(value - reference) <= tolerance * std::abs(reference);
}

/// Distance of bf16 numbers as large as `value`.
double bf16_spacing(float value) { return value == 0 ? 0 : std::ldexp(1.0, std::ilogb(value) - 7); }

/// Random bits of states in bf16 are drawn by an element's place in its rank's group, so where
/// ranks hold other parts of tensors they are other ones.
bool rounds_otherwise(const Recipe& recipe) {
  return recipe.precision.states == StateType::bf16 &&
         product(given_degrees(recipe.parallel), axes_of(Cut::expert)) > 1;
}

/// Fills in all that is about weights; `u` is the unit roundoff.
void compare_weights(const Weights& start, const Weights& reference, const Weights& weights,
                     const Recipe& recipe, double u, VerifyStep& step) {
  double difference = 0;
  double update = 0;
  const bool other_bits = rounds_otherwise(recipe);
  double rounding = 0;  // expected squares of the differences that random bits alone make
  for (const auto& [name, expected] : reference) {
    const std::vector<float>& first = start.at(name);
    const std::vector<float>& found = weights.at(name);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const double d = double{found[i]} - expected[i];
      const double way = double{expected[i]} - first[i];
      difference += d * d;
      update += way * way;
      // Two numbers that are rounded up or down by chance: at most half of the spacing squared.
      if (other_bits) rounding += std::pow(bf16_spacing(expected[i]), 2) / 2;
      if (!(std::abs(d) <= step.worst_difference)) {
        step.worst_difference = std::abs(d);
        step.worst_tensor = name;
      }
    }
  }
  step.update_difference = update > 0 ? std::sqrt(difference / update) : std::sqrt(difference);
  step.update_tolerance = std::sqrt(4 * u + (update > 0 ? rounding / update : 0));
}

}  // namespace

bool VerifyStep::passed() const {
  return within(loss, reference_loss, scalar_tolerance) &&
         within(norm, reference_norm, scalar_tolerance) && update_difference <= update_tolerance;
}

std::vector<VerifyStep> verify_strategy(const Recipe& given, const World& world, int steps,
                                        RankRecordFile& record,
                                        const std::function<void(const std::string&)>& note) {
  Recipe recipe = given;
  if (shares_statistics(recipe)) {
    recipe.model.dropout = recipe.model.drop_path = recipe.lora.dropout = 0;
    if (world.rank == 0)
      note("batch_norm.over: ranks: nothing drops out here, and only the first step is judged");
  }
  Weights start;
  std::vector<Made> trace;
  // The strategy first: the other ranks need not wait for the slower single rank.
  run(
      recipe, world, steps, record, [&](Weights weights) { start = std::move(weights); },
      [&](int step, Made made) {
        if (world.rank == 0)
          note(fmt::format("step {}/{} on {} ranks: loss {:.8g}", step + 1, steps, world.size,
                           made.outcome.loss));
        trace.push_back(std::move(made));
      });
  if (world.rank != 0) return {};
  Recipe alone = recipe;
  alone.parallel = {};
  alone.parallel.backend = recipe.parallel.backend;
  const bool shared = shares_statistics(recipe);
  if (shared) {
    // Its micro-batch is that of all data ranks, in their order.
    alone.batch.micro *= static_cast<int>(world.size / ranks_per_sample(recipe.parallel));
    alone.batch_norm.over = BatchNormOver::micro_batch;
  }

  const double u = unit_roundoff(recipe.precision);
  const double scalar = shared                                  ? 2 * std::sqrt(u)
                        : u == unit_roundoff(ComputeType::fp32) ? 64 * u
                                                                : 4 * u;
  std::vector<VerifyStep> result;
  run(alone, single_world(world.device), steps, record, {}, [&](int i, const Made& reference) {
    note(fmt::format("step {}/{} on one rank: loss {:.8g}", i + 1, steps, reference.outcome.loss));
    Made& made = trace[static_cast<std::size_t>(i)];
    const double growth = shared && i > 0 ? INFINITY : std::sqrt(i + 1.0);
    VerifyStep step{.reference_loss = reference.outcome.loss,
                    .loss = made.outcome.loss,
                    .reference_norm = reference.outcome.gradient_norm,
                    .norm = made.outcome.gradient_norm,
                    .scalar_tolerance = scalar * growth};
    compare_weights(start, reference.weights, made.weights, recipe, u, step);
    step.update_tolerance *= growth;
    made.weights.clear();  // of a large model the host holds few copies
    result.push_back(step);
  });
  return result;
}

std::string verify_report(const std::vector<VerifyStep>& steps, const Recipe& recipe,
                          int world_size) {
  const double u = unit_roundoff(recipe.precision);
  std::string text = fmt::format(
      "one rank against {}, ZeRO stage {}; tolerances from the unit roundoff {:.1e} of "
      "{},\n"
      "growing with the square root of the step\n"
      "step   loss (1 rank)   loss           grad norm (1)  grad norm      allowed   update diff  "
      "allowed   worst element\n",
      world_size == 1 ? std::string("itself (start more with --ranks; this proves nothing)")
                      : fmt::format("{} ranks", world_size),
      recipe.parallel.zero.stage, u,
      u == unit_roundoff(recipe.precision.compute) ? "the compute type" : "what travels as codes");
  bool passed = !steps.empty();
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const VerifyStep& s = steps[i];
    passed = passed && s.passed();
    text += fmt::format(
        "{:4}   {:<14.8g}  {:<13.8g}  {:<13.7g}  {:<13.7g}  {:.1e}   {:.2e}     {:.1e}   {:.2e} "
        "{}{}\n",
        i + 1, s.reference_loss, s.loss, s.reference_norm, s.norm, s.scalar_tolerance,
        s.update_difference, s.update_tolerance, s.worst_difference, s.worst_tensor,
        s.passed() ? "" : "  <- FAILED");
  }
  return text + (passed ? "passed: the strategy computes what one rank computes"
                        : "FAILED: the strategy differs from one rank");
}

}  // namespace dstrain
