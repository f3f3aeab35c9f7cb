#include <ATen/ops/lerp.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <set>
#include <string>

#include "engine/base/error.h"
#include "engine/device/stream.h"
#include "engine/train/state/state_store.h"

/// The average of the weights over the steps, and what a phase takes over from the one before.
namespace dstrain {

at::Tensor StateStore::average(int group) const {
  return average_->view(group, {0, own_range(group).size()});
}

void StateStore::bind_block_averages(const at::Tensor& all_means) {
  averaged_states_.push_back({all_means, all_means.clone()});
  const at::Tensor& averages = averaged_states_.back().average;
  std::int64_t begin = 0;
  for (std::size_t s = 0; s < block_states_.size(); ++s) {
    const BlockState& state = *block_states_[s];
    if (!holds_state(s) || state.type != at::kFloat) continue;
    if (state.change == StateChange::step_mean) {
      const std::int64_t count = state.value.numel();
      block_averages_[s] = averages.narrow(0, begin, count).view(state.part.shape);
      begin += count;
    } else {
      block_averages_[s] = state.value.clone();
      averaged_states_.push_back({state.value, block_averages_[s]});
    }
  }
}

void StateStore::start_average() {
  if (!average_) return;
  for (int g = 0; g < static_cast<int>(groups_.size()); ++g) {
    if (!trainable(g)) continue;
    const Range own = own_range(g);
    for (std::int64_t begin = own.begin; begin < own.end; begin += kChunk) {
      const Range chunk{begin, std::min(begin + kChunk, own.end)};
      average(g).narrow(0, begin - own.begin, chunk.size()).copy_(weights(g, chunk));
    }
  }
  for (AveragedState& state : averaged_states_) state.average.copy_(state.value);
}

void StateStore::average_block_states(double share, const at::Tensor& skip) {
  const at::Tensor applied = skip.eq(0);
  for (AveragedState& state : averaged_states_) {
    // What a skipped step found may not be finite.
    const at::Tensor moved = at::lerp(state.average, state.value, share);
    state.average.copy_(at::where(applied, moved, state.average));
  }
}

void StateStore::take_average() {
  DSTRAIN_CHECK(average_, "there is no average of the weights");
  for (int g = 0; g < static_cast<int>(groups_.size()); ++g) {
    if (!trainable(g)) continue;
    own_gradient(g).copy_(own_parameters(g));
    own_parameters(g).copy_(average(g));
  }
  for (AveragedState& state : averaged_states_) {
    state.kept = state.value.clone();
    state.value.copy_(state.average);
  }
  synchronize(options_.device);
}

void StateStore::give_back_average() {
  for (int g = 0; g < static_cast<int>(groups_.size()); ++g) {
    if (trainable(g)) own_parameters(g).copy_(own_gradient(g));
  }
  for (AveragedState& state : averaged_states_) {
    state.value.copy_(state.kept);
    state.kept.reset();
  }
  synchronize(options_.device);
}

void StateStore::begin_phase(const CheckpointReader& reader, std::int64_t chunk) {
  require_own_tensors(reader);
  std::set<std::string> saved;
  for (const Piece& tensor : reader.tensors()) saved.insert(tensor.name);
  const std::string prefix = average_name("");
  const auto first = saved.lower_bound(prefix);
  const bool averaged = average_ && first != saved.end() && first->starts_with(prefix);
  read_state(reader, &saved, 0, chunk);
  if (averaged) read_state(reader, &saved, 1 + num_moments(), chunk);
  read_block_states(reader, averaged);
  if (!averaged) start_average();
  refresh_own_parameters();
}

}  // namespace dstrain
