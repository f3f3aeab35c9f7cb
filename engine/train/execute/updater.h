#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/recipe/recipe.h"
#include "engine/train/state/state_store.h"

namespace dstrain {

/// What each moment of a rule starts from.
[[nodiscard]] std::vector<double> first_moments(const OptimizerConfig& config);

struct UpdaterOptions {
  OptimizerConfig optimizer;
  at::ScalarType compute = at::kFloat;
  std::int64_t seed = 0;  ///< of the run
};

/// Elements `range` of a flat group, of which each tensor holds just those.
struct PartMemory {
  Range range;
  at::Tensor master;
  std::vector<at::Tensor> moments;
  at::Tensor gradient;
  at::Tensor parameters;  ///< in the compute type; the same as master, or undefined, if that is it
};

/// The optimizer on what this rank owns of each group.
class Updater {
 public:
  Updater(StateStore& states, UpdaterOptions options)
      : states_(states), options_(std::move(options)) {}

  /// Enqueues the update of a group by its gradient; `control` is StepControl on the device.
  /// `shards`: over the ranks that share one copy of the state, where the update has a collective
  /// (Layout::update_bytes); else null.
  void update(int group, double lr, const at::Tensor& control, Communicator* shards);
  /// Moves the average of the group's weights by `share` towards them, unless the step is skipped.
  void average(int group, double share, const at::Tensor& control);
  /// Updates a part of a group with element-wise rules; on the device that its memory is on.
  void update_part(int group, double lr, const at::Tensor& control, const PartMemory& part);
  /// The same of elements [begin, end) of the part, in host memory, by the calling thread alone.
  void update_part_here(int group, double lr, const at::Tensor& control, const PartMemory& part,
                        std::int64_t begin, std::int64_t end) const;

 private:
  /// Muon (Jordan et al. 2024): momentum on the own part, its direction gathered, each matrix that
  /// the rank has a part of orthogonalised whole, and a step of the own part. Every rank computes
  /// on equal bits, whatever the shards.
  void update_matrices(int group, double lr, const at::Tensor& control, Communicator* shards);
  /// Directions of the group's matrices, fp32 under fp32 compute, else bf16, at their places in the
  /// flat group.
  [[nodiscard]] at::Tensor directions(int group, const at::Tensor& control, Communicator* shards);
  /// Calls `visit(step, begin)` for each launch that the part needs; `begin` counts from the part's
  /// own first element.
  template <class Visit>
  void for_each_step(int group, double lr, const PartMemory& part, const Visit& visit) const;
  /// Seed of a part of the group; another number where `momentum`.
  [[nodiscard]] std::uint64_t seed(int group, bool momentum = false) const;

  StateStore& states_;
  UpdaterOptions options_;
};

}  // namespace dstrain
