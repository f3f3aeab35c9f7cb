#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/kernels/experts/experts.h"
#include "engine/mesh/split.h"
#include "engine/nn/block.h"
#include "engine/nn/gated_mlp.h"
#include "engine/nn/host_numbers.h"
#include "engine/nn/linear.h"
#include "engine/nn/workspace.h"

namespace dstrain {

/// Sizes of a mixture of experts.
struct MoeShape {
  std::int64_t width = 0;
  std::int64_t expert_width = 0;  ///< hidden width of an expert
  std::int64_t shared_width = 0;  ///< of the expert that every token takes; 0: there is none
  Splits splits = {};             ///< Splits::experts: those of this rank
  double planned_load = 1;        ///< rows of its experts over the even share, where they share
  ops::RouterShape router;
};

/// What files call a mixture of experts, and the matrices of an expert.
struct MoeNames {
  std::string layer;  ///< NAME below
  std::string gate = "gate_proj", up = "up_proj", down = "down_proj";
};

/// Losses of the routers, which are means over samples and layers.
struct MoeLosses {
  double balance = 0;       ///< coefficient
  double z = 0;             ///< coefficient
  std::int64_t layers = 1;  ///< with experts
  std::int64_t tokens = 1;  ///< of a planned sample, on this rank
};

/// Mixture of experts: each token goes through the gated MLPs of the few experts whose router
/// logits are largest, all of them (no token is dropped), and the results are added with the
/// router's weights; beside it through a shared expert times sigmoid(x w). Qwen2, arXiv:2407.10671,
/// sec. 2.2.2; Shazeer et al. 2017, arXiv:1701.06538, sec. 2.
///
/// Where ranks share the experts, each of its rows goes to the ranks that have its experts, and the
/// results come back (Lepikhin et al. 2020, arXiv:2006.16668, sec. 3): two exchanges of rows
/// forward and two backward, along the expert and tensor axes. Experts lie whole on a rank; router
/// and shared expert are on all ranks, each of which takes its own rows through them. Where ranks
/// have parts of a sample, they add up how often its tokens choose each expert.
///
/// Files call the tensors NAME.gate.weight, NAME.experts.E.{gate,up,down}_proj.weight (MoeNames),
/// NAME.shared_expert.{gate,up,down}_proj.weight and NAME.shared_expert_gate.weight. Matrices of
/// experts are never multiplied in FP8.
///
/// Legend: M rows, m those of this tensor rank, D width, E experts, k experts of a row, I hidden
/// width of an expert.
class Moe {
 public:
  Moe(const MoeNames& names, const MoeShape& shape, const MoeLosses& losses,
      const InitialWeights& init);

  /// x [m, D] -> [m, D], or its cost beside what its block holds. On a GPU the host waits for the
  /// number of rows of each expert, while the device works on the shared expert.
  ///
  /// Rows of an expert are known by running alone; their cost is that of an even spread, or of the
  /// planned load, and stands beside the forward.
  [[nodiscard]] Features run(LayerPass& pass, const Features& x, const Workspace& beside);
  /// None: the router reads its input, and experts get rows that are spread.
  [[nodiscard]] static at::Tensor maxima_for_input(const LayerPass& /*pass*/,
                                                   const Features& /*x*/) {
    return {};
  }

  /// The experts' products for all numbers of rows that M rows of x on each rank may lead to.
  void rehearse(std::int64_t all_rows, const at::TensorOptions& compute,
                at::ScalarType gradients) const;

  /// Its output becomes `scale` times what it was.
  void scale_output(double scale);

  void add_parameters(std::vector<Parameter*>& list);
  /// Adds those of the shared expert.
  void add_linears(std::vector<Linear*>& list);

 private:
  [[nodiscard]] at::Tensor forward(const at::Tensor& x_mD, const Batch& batch,
                                   const BlockContext& context);
  // What `rows` rows m of x cost.
  [[nodiscard]] std::vector<LayerCost> layers(std::int64_t rows, int compute_bytes) const;
  [[nodiscard]] Workspace workspace(std::int64_t rows, int compute_bytes) const;
  void add_exchanges(std::vector<Exchange>& list, std::int64_t rows, int compute_bytes) const;
  [[nodiscard]] ops::RouterLosses losses_of(const Batch& batch, const BlockContext& context) const;
  /// Results for `rows` [M * k, D], sorted by expert, from all ranks that share the experts.
  /// `sent` [E]: rows of each expert here; `received` [ranks * own experts]: rows that each rank
  /// has for those of this one, and the same on the device.
  [[nodiscard]] at::Tensor run_among_ranks(at::Tensor rows, const std::vector<std::int64_t>& sent,
                                           const std::vector<std::int64_t>& received,
                                           const at::Tensor& received_there, Communicator& peers);
  /// The part of it that begins with the exchange of rows; `of_expert`: of each of this rank's.
  [[nodiscard]] at::Tensor run_own_experts(at::Tensor rows, const ExchangedRows& there,
                                           const std::vector<std::int64_t>& of_expert,
                                           const at::Tensor& received_there, Communicator& peers);
  /// Cost of the experts' products with `rows` rows m of x.
  [[nodiscard]] LayerCost experts_cost(std::int64_t rows, int compute_bytes) const;
  /// Rows of this rank's experts that memory is planned for, of `rows` rows of x on each rank.
  [[nodiscard]] std::int64_t planned_rows(std::int64_t rows) const;
  [[nodiscard]] std::int64_t own_experts() const { return shape_.router.experts / ranks(); }
  [[nodiscard]] int ranks() const { return shape_.splits.experts().count; }
  /// Samples of which this rank has `rows` rows m.
  [[nodiscard]] std::int64_t samples_of(std::int64_t rows) const {
    return rows * shape_.splits.tensor.count / losses_.tokens;
  }
  /// The axis of the ranks that share the experts.
  [[nodiscard]] CommAxis expert_ranks() const;
  /// The axis of the ranks that have parts of a sample.
  [[nodiscard]] CommAxis sample_ranks() const;

  std::string name_;
  MoeShape shape_;
  MoeLosses losses_;
  Linear router_;
  // Matrices of this rank's experts, one after the other.
  Parameter gate_up_;  ///< [E * 2I, D]: gate, then up
  Parameter down_;     ///< [E * D, I]
  std::optional<GatedMlp> shared_;
  std::optional<Linear> shared_gate_;  ///< [1, D]
  HostNumbers sent_counts_, received_counts_;
};

}  // namespace dstrain
