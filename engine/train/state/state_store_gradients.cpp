#include <algorithm>
#include <tuple>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/kernels/gradient_sink.h"
#include "engine/train/state/state_store.h"

/// Gradients of groups: at rest, and while operators add to them.
namespace dstrain {

at::Tensor StateStore::resident_gradient(int group) const {
  const at::Tensor collecting = collecting_gradient(group);
  return collecting.defined() ? collecting.narrow(0, 0, flat(group).padded()) : collecting;
}

at::Tensor StateStore::collecting_gradient(int group) const {
  if (!trainable(group) || kind(group).gradients == Partition::sharded) return {};
  return gradient_.narrow(0, gradient_begin_[to_index(group)],
                          layout_.whole_gradient_elements(group));
}

at::Tensor StateStore::own_gradient(int group) const {
  if (kind(group).gradients == Partition::sharded) {
    return gradient_.narrow(0, gradient_begin_[to_index(group)], flat(group).shard_size());
  }
  const Range own = own_range(group);
  return resident_gradient(group).narrow(0, own.begin, own.size());
}

void StateStore::put_aside(int group) {
  if (collecting_[to_index(group)].empty()) return;
  Collected& bound = collecting_[to_index(group)].back();
  for (Parameter* parameter : groups_[to_index(group)])
    bound.gradients.emplace_back(std::move(parameter->gradient), parameter->gradient_state);
}

void StateStore::bind_gradients(int group, const at::Tensor& buffer) {
  std::vector<Collected>& list = collecting_[to_index(group)];
  const auto wanted = std::ranges::find_if(
      list, [&](const Collected& one) { return one.buffer.data_ptr() == buffer.data_ptr(); });
  DSTRAIN_CHECK(wanted != list.end(), "a gradient is added to where nothing was emptied");
  if (wanted + 1 == list.end()) return;
  put_aside(group);
  for (std::size_t i = 0; i < groups_[to_index(group)].size(); ++i) {
    Parameter& parameter = *groups_[to_index(group)][i];
    std::tie(parameter.gradient, parameter.gradient_state) = std::move(wanted->gradients[i]);
  }
  wanted->gradients.clear();
  std::rotate(wanted, wanted + 1, list.end());
}

void StateStore::bind_empty_gradients(int group, const at::Tensor& buffer) {
  std::vector<Collected>& list = collecting_[to_index(group)];
  put_aside(group);
  std::erase_if(list,
                [&](const Collected& one) { return one.buffer.data_ptr() == buffer.data_ptr(); });
  list.push_back({buffer});
  bind(group, buffer, &Parameter::gradient);
  // Vectors stand at the end of a group (parameter_groups), so that one pass zeroes them all,
  // padding and sums in fp32 included.
  const auto& parameters = groups_[to_index(group)];
  std::size_t first_vector = parameters.size();
  while (first_vector > 0 && parameters[first_vector - 1]->shape.size() < 2) --first_vector;
  const std::int64_t end_of_matrices =
      first_vector == 0 ? 0
                        : flat(group).offset(first_vector - 1) + flat(group).size(first_vector - 1);
  buffer.slice(0, end_of_matrices).zero_();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    parameters[i]->gradient_state = i < first_vector ? GradientState::empty : GradientState::held;
    if (i + 1 >= first_vector) continue;
    const std::int64_t gap = flat(group).offset(i) + flat(group).size(i);
    if (gap < flat(group).offset(i + 1)) buffer.slice(0, gap, flat(group).offset(i + 1)).zero_();
  }
  if (kind(group).fp32_sums == 0) return;
  const std::int64_t begin = flat(group).padded() - kind(group).fp32_sums;
  const at::Tensor sums = fp32_sums(group);
  for (std::size_t i = first_vector; i < parameters.size(); ++i) {
    parameters[i]->gradient = sums.narrow(0, flat(group).offset(i) - begin, flat(group).size(i))
                                  .view(parameters[i]->shape);
  }
}

at::Tensor StateStore::fp32_sums(int group) const {
  return collecting_[to_index(group)].back().buffer.slice(0, flat(group).padded()).view(at::kFloat);
}

void StateStore::settle_gradients(int group) {
  bool vectors = false;
  for (Parameter* parameter : groups_[to_index(group)]) {
    const bool changed = ops::settle_gradient(*parameter);
    vectors = vectors || (changed && parameter->shape.size() < 2);
  }
  const std::int64_t count = kind(group).fp32_sums;
  if (!vectors || count == 0) return;
  const std::int64_t begin = flat(group).padded() - count;
  collecting_[to_index(group)].back().buffer.narrow(0, begin, count).copy_(fp32_sums(group));
}

}  // namespace dstrain
