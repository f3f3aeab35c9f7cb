#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "engine/base/units.h"
#include "engine/mesh/pieces.h"

namespace dstrain {

/// What changes a tensor that no gradient changes.
enum class StateChange {
  by_block,
  /// The engine, once in each step that is applied: value += share * (mean - value), where mean is
  /// the sum of `step_sum` over micro-batches and data ranks, divided by the step's samples. The
  /// block adds to `step_sum` for each micro-batch its samples, without fillers, times what it
  /// found.
  step_mean,
  applied_steps,  ///< the engine counts the steps that are applied
};

/// A tensor of a block that no gradient changes: running statistics, counters. Every rank holds it
/// whole; it is neither reduced nor updated by the optimizer, and each checkpoint has it.
///
/// The block changes `value` or `step_sum` in place, in Mode::train only, so that neither a
/// recomputation nor an evaluation counts a sample twice. A `value` it changes with numbers that
/// are equal on all ranks: what depends on samples is summed over the data ranks first
/// (BlockContext::peers), without fillers (Batch::valid). What a forward of training returns must
/// not depend on what such a forward has changed, or its recomputation would differ; a `value` that
/// the engine changes it may depend on.
struct BlockState {
  Piece part;  ///< whole
  double initial = 0;
  at::ScalarType type =
      at::kFloat;  ///< kFloat or kLong; of step_mean the first, of applied_steps the second
  StateChange change = StateChange::by_block;
  double share = 0;          ///< step_mean: of the new mean in the value
  at::Tensor value = {};     ///< bound by the state store
  at::Tensor step_sum = {};  ///< step_mean: as value, bound by the executor
};

[[nodiscard]] Bytes state_bytes(const BlockState& state);

/// Checkpoints hold fp32. An int64 is stored as three numbers of 22 bits, the highest first, which
/// are exact in fp32: the shape has one dimension more.
[[nodiscard]] Piece stored_part(const BlockState& state);
[[nodiscard]] std::vector<float> stored_values(const BlockState& state);
/// On the CPU, in the state's type and shape; the opposite of stored_values.
[[nodiscard]] at::Tensor from_stored(const BlockState& state, std::span<const float> stored);

}  // namespace dstrain
