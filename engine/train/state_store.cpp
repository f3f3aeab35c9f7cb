#include "engine/train/state_store.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <set>

#include "engine/base/error.h"

namespace dstrain {
namespace {

std::size_t index(int group) { return static_cast<std::size_t>(group); }

std::int64_t numel(const std::vector<std::int64_t>& shape) {
  std::int64_t product = 1;
  for (const std::int64_t size : shape) product *= size;
  return product;
}

/// Calls `visit(part, part range, group offset)` for every file tensor that meets `range` of the
/// flat group.
template <class Visit>
void for_each_slice(const std::vector<Parameter*>& parameters, const FlatGroup& flat, Range range,
                    Visit visit) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    std::int64_t begin = flat.offset(i);
    for (const NamedShape& part : parameters[i]->parts) {
      const std::int64_t size = numel(part.shape);
      const Range met = intersect(range, {begin, begin + size});
      if (!met.empty()) visit(part, Range{met.begin - begin, met.end - begin}, met.begin);
      begin += size;
    }
  }
}

std::string moment_tensor(int num_moments, int moment, const std::string& name) {
  return fmt::format("optimizer.{}/{}", moment_name(num_moments, moment), name);
}

}  // namespace

const char* moment_name(int num_moments, int index) {
  if (num_moments == 1) return "momentum_buffer";
  return index == 0 ? "exp_avg" : "exp_avg_sq";
}

StateStore::StateStore(const Layout& layout, ParameterGroups groups, const StateOptions& options)
    : layout_(layout), groups_(std::move(groups)), options_(options) {
  DSTRAIN_CHECK(layout_.groups.size() == groups_.size() && layout_.flat.size() == groups_.size(),
                "layout and model differ in their number of groups");
  std::int64_t full = 0;
  std::int64_t shard = 0;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    DSTRAIN_CHECK(layout_.groups[g] == layout_.groups[0], "groups of different layouts");
    full_begin_.push_back(full);
    shard_begin_.push_back(shard);
    full += layout_.flat[g].padded();
    shard += layout_.flat[g].shard_size();
  }
  const auto elements = [&](Partition partition) {
    return partition == Partition::sharded ? shard : full;
  };
  const GroupLayout& kind = layout_.groups.at(0);
  const auto fp32 = at::TensorOptions().dtype(at::kFloat).device(options_.device);
  parameter_ = at::zeros({elements(kind.parameters)}, fp32.dtype(options_.compute));
  gradient_ = at::zeros({elements(kind.gradients)}, fp32);
  if (options_.compute != at::kFloat) master_ = at::zeros({elements(kind.states)}, fp32);
  for (int i = 0; i < options_.num_moments; ++i)
    moments_.push_back(at::zeros({elements(kind.states)}, fp32));
  for (int g = 0; g < static_cast<int>(groups_.size()); ++g) {
    if (kind.parameters == Partition::replicated) bind_values(g, resident_parameters(g));
    if (kind.gradients == Partition::replicated) bind_gradients(g, resident_gradient(g));
  }
}

Range StateStore::own_range(int group) const {
  return layout_.groups[index(group)].states == Partition::sharded
             ? flat(group).shard(options_.shard_coordinate)
             : Range{0, flat(group).padded()};
}

Range StateStore::state_place(int group) const {
  const bool sharded = layout_.groups[index(group)].states == Partition::sharded;
  const std::int64_t begin = sharded ? shard_begin_[index(group)] : full_begin_[index(group)];
  return {begin, begin + own_range(group).size()};
}

at::Tensor StateStore::resident_parameters(int group) const {
  if (layout_.groups[index(group)].parameters == Partition::sharded) return {};
  return parameter_.narrow(0, full_begin_[index(group)], flat(group).padded());
}

at::Tensor StateStore::own_parameters(int group) const {
  if (layout_.groups[index(group)].parameters == Partition::sharded) {
    return parameter_.narrow(0, shard_begin_[index(group)], flat(group).shard_size());
  }
  const Range own = own_range(group);
  return resident_parameters(group).narrow(0, own.begin, own.size());
}

at::Tensor StateStore::master(int group) const {
  if (!master_.defined()) return own_parameters(group);
  const Range place = state_place(group);
  return master_.narrow(0, place.begin, place.size());
}

at::Tensor StateStore::moment(int group, int moment_index) const {
  const Range place = state_place(group);
  return moments_[index(moment_index)].narrow(0, place.begin, place.size());
}

at::Tensor StateStore::resident_gradient(int group) const {
  if (layout_.groups[index(group)].gradients == Partition::sharded) return {};
  return gradient_.narrow(0, full_begin_[index(group)], flat(group).padded());
}

at::Tensor StateStore::own_gradient(int group) const {
  if (layout_.groups[index(group)].gradients == Partition::sharded) {
    return gradient_.narrow(0, shard_begin_[index(group)], flat(group).shard_size());
  }
  const Range own = own_range(group);
  return resident_gradient(group).narrow(0, own.begin, own.size());
}

void StateStore::bind(int group, const at::Tensor& whole, at::Tensor Parameter::* member) {
  const auto& parameters = groups_[index(group)];
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    parameters[i]->*member =
        whole.narrow(0, flat(group).offset(i), flat(group).size(i)).view(parameters[i]->shape);
  }
}

void StateStore::bind_values(int group, const at::Tensor& whole) {
  bind(group, whole, &Parameter::value);
}
void StateStore::bind_gradients(int group, const at::Tensor& whole) {
  bind(group, whole, &Parameter::gradient);
}

void StateStore::unbind_values(int group) {
  for (Parameter* parameter : groups_[index(group)]) parameter->value.reset();
}

void StateStore::refresh_own_parameters() {
  if (!master_.defined()) return;
  for (int g = 0; g < static_cast<int>(groups_.size()); ++g) own_parameters(g).copy_(master(g));
}

void StateStore::initialize(const WeightSource& source) {
  for (int g = 0; g < static_cast<int>(groups_.size()); ++g) {
    const Range own = own_range(g);
    std::vector<float> values(static_cast<std::size_t>(own.size()), 0.0F);
    const auto& parameters = groups_[index(g)];
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const std::int64_t begin = flat(g).offset(i);
      const Range met = intersect(own, {begin, begin + flat(g).size(i)});
      if (met.empty()) continue;
      const auto out = std::span(values).subspan(static_cast<std::size_t>(met.begin - own.begin),
                                                 static_cast<std::size_t>(met.size()));
      source.read(*parameters[i], {met.begin - begin, met.end - begin}, out);
    }
    master(g).copy_(at::from_blob(values.data(), {own.size()}, at::kFloat));
  }
  refresh_own_parameters();
}

CheckpointPart StateStore::snapshot() const {
  CheckpointPart part;
  for (int g = 0; g < static_cast<int>(groups_.size()); ++g) {
    const Range own = own_range(g);
    const Range share = even_part(own.size(), layout_.replica_degree, options_.replica_coordinate);
    if (share.empty()) continue;
    for (int kind = 0; kind <= options_.num_moments; ++kind) {
      const at::Tensor state = kind == 0 ? master(g) : moment(g, kind - 1);
      const at::Tensor host = state.narrow(0, share.begin, share.size()).to(at::kCPU, at::kFloat);
      const float* values = host.const_data_ptr<float>();
      const std::int64_t first = own.begin + share.begin;
      for_each_slice(groups_[index(g)], flat(g), {first, first + share.size()},
                     [&](const NamedShape& tensor, Range range, std::int64_t place) {
                       const std::string name =
                           kind == 0 ? tensor.name
                                     : moment_tensor(options_.num_moments, kind - 1, tensor.name);
                       const float* begin = values + (place - first);
                       part.slices.push_back({.name = name, .shape = tensor.shape, .range = range});
                       part.data.emplace_back(begin, begin + range.size());
                     });
    }
  }
  return part;
}

void StateStore::restore(const CheckpointReader& reader) {
  std::set<std::string> known;
  for (const auto& parameters : groups_) {
    for (const Parameter* parameter : parameters) {
      for (const NamedShape& part : parameter->parts) known.insert(part.name);
    }
  }
  for (const TensorSlice& tensor : reader.tensors()) {
    if (!tensor.name.starts_with("optimizer.") && !known.contains(tensor.name)) {
      throw Error(ErrorKind::checkpoint,
                  fmt::format("the checkpoint is of another model: this one has no tensor '{}'",
                              tensor.name),
                  "resume with the model of the run that saved it");
    }
  }
  for (int g = 0; g < static_cast<int>(groups_.size()); ++g) {
    const Range own = own_range(g);
    for (int kind = 0; kind <= options_.num_moments; ++kind) {
      std::vector<float> values(static_cast<std::size_t>(own.size()), 0.0F);
      for_each_slice(groups_[index(g)], flat(g), own,
                     [&](const NamedShape& tensor, Range range, std::int64_t place) {
                       const std::string name =
                           kind == 0 ? tensor.name
                                     : moment_tensor(options_.num_moments, kind - 1, tensor.name);
                       const auto out =
                           std::span(values).subspan(static_cast<std::size_t>(place - own.begin),
                                                     static_cast<std::size_t>(range.size()));
                       reader.read({.name = name, .shape = tensor.shape, .range = range}, out);
                     });
      at::Tensor state = kind == 0 ? master(g) : moment(g, kind - 1);
      state.copy_(at::from_blob(values.data(), {own.size()}, at::kFloat));
    }
  }
  refresh_own_parameters();
}

}  // namespace dstrain
