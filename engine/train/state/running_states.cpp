#include "engine/train/state/running_states.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/where.h>

#include <algorithm>

#include "engine/mesh/pieces.h"

namespace dstrain {

std::int64_t step_sum_elements(const std::vector<BlockState*>& states) {
  std::int64_t elements = 0;
  for (const BlockState* state : states) {
    if (state->change == StateChange::step_mean) elements += num_elements(state->part.shape);
  }
  return elements;
}

namespace {

/// A view of `count` elements from that of `first` on, of the memory that `first` is in.
at::Tensor elements_from(const at::Tensor& first, std::int64_t count) {
  return first.as_strided({count}, {1}, first.storage_offset());
}

bool follows(const at::Tensor& values, std::int64_t count, const at::Tensor& next) {
  return values.storage().is_alias_of(next.storage()) &&
         values.storage_offset() + count == next.storage_offset();
}

}  // namespace

RunningStates::RunningStates(const std::vector<BlockState*>& states, const at::Tensor& sums) {
  struct Open {
    at::Tensor first;
    std::int64_t begin = 0;  ///< of the sums
    std::vector<float> shares;
  };
  std::vector<Open> open;
  std::int64_t begin = 0;
  for (BlockState* state : states) {
    if (state->change == StateChange::applied_steps && state->value.defined()) {
      const bool known = std::ranges::any_of(
          counters_, [&](const at::Tensor& other) { return other.is_same(state->value); });
      if (!known) counters_.push_back(state->value);
    }
    if (state->change != StateChange::step_mean) continue;
    const std::int64_t count = num_elements(state->part.shape);
    state->step_sum = sums.narrow(0, begin, count).view(state->part.shape);
    if (state->value.defined()) {
      const auto length = [&] { return static_cast<std::int64_t>(open.back().shares.size()); };
      if (open.empty() || open.back().begin + length() != begin ||
          !follows(open.back().first, length(), state->value))
        open.push_back({state->value, begin, {}});
      open.back().shares.insert(open.back().shares.end(), static_cast<std::size_t>(count),
                                static_cast<float>(state->share));
    }
    begin += count;
  }
  for (const auto& [first, first_sum, shares] : open) {
    const auto count = static_cast<std::int64_t>(shares.size());
    const at::Tensor host = at::empty({count}, at::kFloat);
    std::ranges::copy(shares, host.mutable_data_ptr<float>());
    runs_.push_back(
        {elements_from(first, count), sums.narrow(0, first_sum, count), host.to(first.device())});
  }
}

void RunningStates::apply(const at::Tensor& skip, std::int64_t samples) const {
  const at::Tensor applied = skip.eq(0);
  for (const auto& [values, sums, shares] : runs_) {
    at::Tensor kept = values;
    const at::Tensor mean = sums / static_cast<double>(std::max<std::int64_t>(samples, 1));
    // What a skipped step found may not be finite.
    kept.copy_(at::where(applied, values + shares * (mean - values), values));
  }
  for (at::Tensor counter : counters_) counter.add_(applied);
}

}  // namespace dstrain
