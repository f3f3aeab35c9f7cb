#include <algorithm>

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/kernels/optimizer/optimizer.h"
#include "engine/train/state/state_store.h"

/// Where what a rank holds of a group rests, and its values.
namespace dstrain {

Range StateStore::own_range(int group) const {
  if (!holds(group)) return {};
  // What the rank holds of a frozen group is what it reads, draws and hands out.
  const Partition partition = trainable(group) ? kind(group).states : kind(group).parameters;
  return partition == Partition::sharded
             ? flat(group).shard(options_.mesh.coordinate(options_.rank, kind(group).cut))
             : Range{0, flat(group).padded()};
}

at::Tensor StateStore::resident_parameters(int group) const {
  if (!holds(group) || kind(group).parameters == Partition::sharded ||
      kind(group).parameter_place != Place::device)
    return {};
  return parameters_.view(group, {0, flat(group).padded()});
}

StateStore::Resting StateStore::parameters_at_rest(int group) const {
  const bool shard = kind(group).parameters == Partition::sharded;
  return {&parameters_, shard ? 0 : own_range(group).begin};
}

StateStore::Resting StateStore::master_at_rest(int group) const {
  if (!master_ || !trainable(group)) return {};
  return {&*master_, 0};
}

StateStore::Resting StateStore::moment_at_rest(int group, int index) const {
  return {&moments_[to_index(index)], own_range(group).begin - moment_range(group, index).begin};
}

StateStore::Resting StateStore::at_rest(int group, int state) const {
  if (is_average(state)) return {&*average_, 0};
  if (state > 0) return moment_at_rest(group, state - 1);
  const Resting master = master_at_rest(group);
  return master.memory != nullptr ? master : parameters_at_rest(group);
}

at::Tensor StateStore::own_parameters(int group) const {
  const auto [memory, begin] = parameters_at_rest(group);
  return memory->view(group, moved({0, own_range(group).size()}, begin));
}

at::Tensor StateStore::load_parameters(int group) const {
  const auto [memory, begin] = parameters_at_rest(group);
  return memory->load(group, moved({0, own_range(group).size()}, begin));
}

at::Tensor StateStore::master(int group) const {
  const auto [memory, begin] = at_rest(group, 0);
  return memory->view(group, moved({0, own_range(group).size()}, begin));
}

at::Tensor StateStore::moment(int group, int index, Range part) const {
  DSTRAIN_CHECK(part.empty() || intersect(part, moment_range(group, index)) == part,
                "a moment that is not held");
  return moments_[to_index(index)].view(group, moved(part, -moment_range(group, index).begin));
}

/// `part` is of the flat group.
at::Tensor StateStore::load(const Resting& at, int group, Range part) const {
  return at.memory->load(group, moved(part, at.begin - own_range(group).begin));
}

void StateStore::store(const Resting& at, int group, Range part, const at::Tensor& values) {
  at.memory->store(group, moved(part, at.begin - own_range(group).begin), values);
}

at::Tensor StateStore::load_state(int group, int state, Range part) const {
  if (!in_halves(group, state)) return load(at_rest(group, state), group, part);
  return optimizer::join(load(parameters_at_rest(group), group, part).to(at::kCPU),
                         load(at_rest(group, state), group, part).to(at::kCPU));
}

void StateStore::store_state(int group, int state, Range part, const at::Tensor& values) {
  if (!in_halves(group, state)) return store(at_rest(group, state), group, part, values);
  const optimizer::Halves halves = optimizer::split(values);
  store(parameters_at_rest(group), group, part, halves.upper);
  store(at_rest(group, state), group, part, halves.lower);
}

at::Tensor StateStore::weights(int group, Range part) const {
  const at::Tensor rest = load(at_rest(group, 0), group, part);
  if (!in_halves(group, 0)) return rest;
  const at::Tensor upper = load(parameters_at_rest(group), group, part);
  return optimizer::join(upper, rest.to(upper.device()));
}

}  // namespace dstrain
