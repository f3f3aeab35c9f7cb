#include "engine/base/error.h"
#include "engine/device/stream.h"
#include "engine/train/state_store.h"

/// The average of the weights over the steps.
namespace dstrain {

at::Tensor StateStore::average(int group) const {
  return average_->view(group, {0, own_range(group).size()});
}

void StateStore::start_average() {
  if (!average_) return;
  for (int g = 0; g < static_cast<int>(groups_.size()); ++g) {
    if (trainable(g)) average(g).copy_(master(g));
  }
  for (std::size_t s = 0; s < block_averages_.size(); ++s) {
    if (block_averages_[s].defined()) block_averages_[s].copy_(block_states_[s]->value);
  }
}

void StateStore::average_block_states(double share, const at::Tensor& skip) {
  const at::Tensor step = (1 - skip) * share;
  for (std::size_t s = 0; s < block_averages_.size(); ++s) {
    if (!block_averages_[s].defined()) continue;
    at::Tensor& average = block_averages_[s];
    average.add_((block_states_[s]->value - average) * step);
  }
}

void StateStore::take_average() {
  DSTRAIN_CHECK(average_, "there is no average of the weights");
  for (int g = 0; g < static_cast<int>(groups_.size()); ++g) {
    if (!trainable(g)) continue;
    own_gradient(g).copy_(own_parameters(g));
    own_parameters(g).copy_(average(g));
  }
  for (std::size_t s = 0; s < block_averages_.size(); ++s) {
    kept_states_.emplace_back();
    if (!block_averages_[s].defined()) continue;
    kept_states_[s] = block_states_[s]->value.clone();
    block_states_[s]->value.copy_(block_averages_[s]);
  }
  synchronize(options_.device);
}

void StateStore::give_back_average() {
  for (int g = 0; g < static_cast<int>(groups_.size()); ++g) {
    if (trainable(g)) own_parameters(g).copy_(own_gradient(g));
  }
  for (std::size_t s = 0; s < kept_states_.size(); ++s) {
    if (kept_states_[s].defined()) block_states_[s]->value.copy_(kept_states_[s]);
  }
  kept_states_.clear();
  synchronize(options_.device);
}

}  // namespace dstrain
