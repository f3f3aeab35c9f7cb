#include "engine/train/execute/replicas.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <set>

#include "engine/base/host_name.h"
#include "engine/base/index.h"
#include "engine/device/device.h"
#include "engine/device/pinned.h"
#include "engine/device/stream.h"
#include "engine/kernels/hash/hash.h"

namespace dstrain {
namespace {

constexpr std::int64_t kNobody = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kNameBytes = 64;  ///< of a host

/// Names of the hosts of all ranks. Collective.
std::vector<std::string> hosts_of_all(Communicator& world, c10::Device device) {
  const at::Tensor names = at::zeros({world.size(), kNameBytes}, at::kByte);
  const std::string own = host_name().substr(0, kNameBytes);
  std::memcpy(static_cast<char*>(names[world.rank()].mutable_data_ptr()), own.data(), own.size());
  at::Tensor all = names.to(device);
  world.all_reduce(all, ReduceOp::sum);
  synchronize(device);
  const at::Tensor found = all.cpu();
  std::vector<std::string> hosts;
  for (int rank = 0; rank < world.size(); ++rank) {
    const auto* name = static_cast<const char*>(found.const_data_ptr()) + rank * kNameBytes;
    hosts.emplace_back(name, ::strnlen(name, kNameBytes));
  }
  return hosts;
}

}  // namespace

Replicas::Replicas(Kind kind, const Layout& layout, const Mesh& mesh, int rank,
                   const StateStore& states, c10::Device device)
    : kind_(kind), layout_(layout), mesh_(mesh), rank_(rank), states_(states), device_(device) {
  for (int g = 0; g < static_cast<int>(layout.groups.size()); ++g) {
    const GroupLayout& group = layout.groups[to_index(g)];
    const Axes equal = layout.in_mesh(axes_of_equals(g));
    const bool tied = group.stages.size() > 1;
    const int copies = mesh.degree(equal) * (tied ? 2 : 1);
    if (copies < 2 || (kind == Kind::states && !group.trainable)) continue;
    if (!on_device(g)) {
      ++left_out_;
      continue;
    }
    const auto set = std::ranges::find_if(
        sets_, [&](const Set& s) { return s.equal == equal && s.tied == tied; });
    if (set != sets_.end()) {
      set->groups.push_back(g);
      continue;
    }
    sets_.push_back({.equal = equal, .tied = tied, .groups = {g}, .first = rows_});
    rows_ += mesh.world_size() / mesh.degree(equal);
  }
}

Axes Replicas::axes_of_equals(int group) const {
  const GroupLayout& own = layout_.groups[to_index(group)];
  if (kind_ == Kind::states) return layout_.holder_axes(group);
  return own.parameters == Partition::sharded ? own.copies : own.copies | own.cut;
}

bool Replicas::on_device(int group) const {
  const GroupLayout& own = layout_.groups[to_index(group)];
  const bool parameters = own.parameter_place == Place::device;
  return kind_ == Kind::states ? parameters && own.state_place == Place::device : parameters;
}

std::int64_t Replicas::row(const Set& set, int rank) const {
  // Those of a tied group are told apart by their line, not by their stage.
  const Axes others = kAllAxes - (set.tied ? set.equal | Axis::pipeline : set.equal);
  return set.first + mesh_.coordinate(rank, others);
}

bool Replicas::holds(int group, int rank) const {
  return layout_.holds(mesh_.coordinate(rank, Axis::pipeline), group);
}

void Replicas::hash(int group, const at::Tensor& sum) const {
  std::uint64_t salt = static_cast<std::uint64_t>(group) * (3 + to_index(states_.num_moments()));
  if (kind_ == Kind::parameters) {
    const at::Tensor whole = states_.resident_parameters(group);
    add_hash(whole.defined() ? whole : states_.own_parameters(group), salt, sum);
    return;
  }
  const at::Tensor master = states_.master(group);
  add_hash(master, salt, sum);
  if (master.scalar_type() == at::kShort)  // lower halves of weights
    add_hash(states_.own_parameters(group), ++salt, sum);
  for (int m = 0; m < states_.num_moments(); ++m) {
    const Range own = states_.moment_range(group, m);
    if (!own.empty()) add_hash(states_.moment(group, m, own), ++salt, sum);
  }
}

at::Tensor Replicas::to_host(const at::Tensor& tensor) const {
  const at::Tensor host = host_tensor(tensor.sizes(), at::kLong, device_);
  host.copy_(tensor, /*non_blocking=*/true);
  return host;
}

Replicas::Hashes Replicas::compare(Communicator& world) const {
  const auto integers = at::TensorOptions().dtype(at::kLong).device(device_);
  const at::Tensor groups = at::zeros({static_cast<std::int64_t>(layout_.groups.size())}, integers);
  at::Tensor table = at::full({rows_, 2}, kNobody, integers);
  for (const Set& set : sets_) {
    const at::Tensor own = table[row(set, rank_)];
    bool any = false;
    for (const int g : set.groups) {
      if (!holds(g, rank_)) continue;
      hash(g, groups.narrow(0, g, 1));
      any ? own[0].add_(groups[g]) : own[0].copy_(groups[g]);
      any = true;
    }
    if (any) own[1].copy_(own[0].bitwise_not());
  }
  world.all_reduce(table, ReduceOp::max);
  return {.sets = to_host(table), .groups = to_host(groups)};
}

bool Replicas::equal(const Hashes& hashes) {
  const auto* pair = hashes.sets.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < hashes.sets.size(0); ++i, pair += 2) {
    const bool nobody = pair[0] == kNobody && pair[1] == kNobody;
    if (!nobody && pair[0] != ~pair[1]) return false;
  }
  return true;
}

ReplicaVerdict Replicas::find(const Hashes& hashes, Communicator& world) const {
  const auto num_groups = static_cast<std::int64_t>(layout_.groups.size());
  const at::Tensor own = at::zeros({world.size(), num_groups}, at::kLong);
  own[world.rank()].copy_(hashes.groups);
  at::Tensor all = own.to(device_);
  world.all_reduce(all, ReduceOp::sum);
  synchronize(device_);
  const at::Tensor found = all.cpu();
  const auto hash_of = [&](int rank, int group) {
    return found.const_data_ptr<std::int64_t>()[rank * num_groups + group];
  };
  ReplicaVerdict verdict;
  verdict.hosts = hosts_of_all(world, device_);
  std::set<int> wrong, suspects, groups;
  for (const Set& set : sets_) {
    for (const int g : set.groups) {
      std::map<std::int64_t, std::map<std::int64_t, std::vector<int>>> ranks_by_row;  // by hash
      for (int rank = 0; rank < world.size(); ++rank) {
        if (holds(g, rank)) ranks_by_row[row(set, rank)][hash_of(rank, g)].push_back(rank);
      }
      for (const auto& [row, ranks_by_hash] : ranks_by_row) {
        if (ranks_by_hash.size() == 1) continue;
        groups.insert(g);
        std::size_t all_ranks = 0;
        for (const auto& [hash, ranks] : ranks_by_hash) all_ranks += ranks.size();
        const bool majority = std::ranges::any_of(
            ranks_by_hash, [&](const auto& entry) { return 2 * entry.second.size() > all_ranks; });
        for (const auto& [hash, ranks] : ranks_by_hash) {
          if (majority && 2 * ranks.size() > all_ranks) continue;
          (majority ? wrong : suspects).insert(ranks.begin(), ranks.end());
        }
      }
    }
  }
  verdict.wrong.assign(wrong.begin(), wrong.end());
  verdict.suspects.assign(suspects.begin(), suspects.end());
  verdict.groups.assign(groups.begin(), groups.end());
  return verdict;
}

}  // namespace dstrain
