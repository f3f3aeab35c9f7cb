#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/units.h"
#include "engine/kernels/ops.h"
#include "engine/kernels/parameter.h"
#include "engine/mesh/split.h"
#include "engine/nn/layer_pass.h"
#include "engine/nn/low_rank.h"
#include "engine/program/cost.h"

namespace dstrain {

/// First values of a module's matrices.
struct InitialWeights {
  Init kind = Init::truncated_normal;
  double std = 0.02;
};

/// One of the matrices that a linear map multiplies at once, as files keep it.
struct LinearPart {
  std::string name;       ///< files call the tensors NAME.weight and NAME.bias
  std::int64_t rows = 0;  ///< of the whole matrix: its outputs
  /// Rows of matrices that files join in this one, each of which ranks divide; empty: it is one.
  std::vector<std::int64_t> joined = {};
};

/// How the matrices of a linear map are cut between tensor ranks, each into equal parts: by rows,
/// so that a rank has some outputs of each; or by columns, so that it has some inputs and the sum
/// over ranks is the output. Shoeybi et al. 2019, arXiv:1909.08053, sec. 3.
struct LinearCut {
  enum class By { rows, columns };
  By by = By::rows;
  AxisPart split = {};  ///< whole: not cut
  [[nodiscard]] bool rows() const { return by == By::rows && !split.whole(); }
  [[nodiscard]] bool columns() const { return by == By::columns && !split.whole(); }
};

/// y = x weight^T + bias, the matrices of all parts stacked along their rows. Low-rank adapters may
/// be added to single parts.
///
/// Legend: M rows of x, K inputs, N outputs of this rank. Of matrices cut by columns each call sums
/// over the tensor ranks and gives each its rows: y is [M / ranks, N].
class Linear {
 public:
  /// `columns` is the shape of a row: [K], or what a convolution has there. Biases start at zero.
  /// Sizes are those of whole matrices, which `cut` divides.
  Linear(std::vector<LinearPart> parts, const std::vector<std::int64_t>& columns,
         const InitialWeights& init, bool has_bias = true, const LinearCut& cut = {});

  /// x [M, K] -> [M, N], N over all parts.
  [[nodiscard]] at::Tensor forward(const ops::Measured& x_MK, const Call& call = {});
  /// forward(), or its cost.
  [[nodiscard]] Features run(LayerPass& pass, const Features& x);
  /// x [M, K] -> [M, N] of the rows of all tensor ranks: x [m, K]; without others that of x.
  [[nodiscard]] at::Tensor forward_of_gathered(const ops::Measured& x_mK, const Call& call);
  /// forward_of_gathered(), or its cost.
  [[nodiscard]] Features run_of_gathered(LayerPass& pass, const Features& x);
  /// Room for the maxima of x, which is like `x`, or undefined (ops::maxima_for): ranks that gather
  /// x from others do not know them.
  [[nodiscard]] at::Tensor maxima_for_input(const LayerPass& pass, const Features& x) const {
    const bool unknown = pass.costs != nullptr || pass.call.tensor() != nullptr;
    return unknown ? at::Tensor() : ops::maxima_for(weight_, x.tensor);
  }
  /// gelu(x weight^T + bias); needs a bias and whole columns.
  [[nodiscard]] at::Tensor forward_gelu(const at::Tensor& x_MK, ops::Gelu kind,
                                        const Call& call = {});
  /// gelu(z + input_bias) weight^T + bias of z [M, K], of which GELU's output is not kept; needs a
  /// bias and no adapters.
  [[nodiscard]] at::Tensor forward_of_gelu(const at::Tensor& z_MK, Parameter& input_bias,
                                           ops::Gelu kind, const Call& call = {});
  /// (act(gate) * up) weight^T, where gate_up of the rows x of all tensor ranks gives gate, then
  /// up, [M, 2K]: x [m, D]; both have biases or none, and the columns of gate_up are whole.
  [[nodiscard]] at::Tensor forward_gated(const ops::Measured& x_mD, Linear& gate_up,
                                         ops::GateActivation gate, const Call& call = {});

  [[nodiscard]] const std::vector<LinearPart>& parts() const { return parts_; }
  [[nodiscard]] Parameter& weight() { return weight_; }
  [[nodiscard]] const Parameter& weight() const { return weight_; }
  /// Null without a bias.
  [[nodiscard]] Parameter* bias() { return has_bias_ ? &bias_ : nullptr; }

  /// To the outputs of part `part`, under the name PREFIX; before anyone asks for the parameters.
  void add_adapter(std::size_t part, const std::string& prefix, const LowRankOptions& options);

  [[nodiscard]] bool has_adapters() const { return !adapters_.empty(); }

  /// From here on y is `scale` (x weight^T), adapters included; before any is added. Only without a
  /// bias.
  void scale_output(double scale);

  void add_parameters(std::vector<Parameter*>& list);
  /// For `rows` rows of x, which is kept for backward where a gradient needs it, unless another
  /// layer keeps it.
  [[nodiscard]] LayerCost cost(std::int64_t rows, int compute_bytes,
                               bool input_is_kept = false) const;
  /// Forward, for `rows` rows of x.
  [[nodiscard]] Flops flops(std::int64_t rows) const;
  /// Kept for backward, for `rows` rows of x: x, where a gradient needs it, and what adapters keep.
  [[nodiscard]] Bytes saved_bytes(std::int64_t rows, int compute_bytes) const;
  /// The same without x, which another layer keeps.
  [[nodiscard]] Bytes adapter_bytes(std::int64_t rows, int compute_bytes) const;
  /// In forward_gated adapters need no h of their own: it is made in their kernels.
  [[nodiscard]] bool gated_in_kernels(int compute_bytes) const;
  /// What each product makes of a matrix in 4 bits.
  [[nodiscard]] Bytes decoded_bytes(int compute_bytes) const {
    return weight_.nf4 ? weight_.numel() * compute_bytes : 0;
  }

 private:
  /// Pieces of the weight that are of part `part`.
  [[nodiscard]] std::vector<Piece> pieces_of(std::size_t part) const;
  /// A cut may leave no rows.
  [[nodiscard]] std::int64_t columns() const { return weight_.parts.front().columns.size(); }
  [[nodiscard]] std::vector<ops::LowRankTerm> terms(const Call& call);
  /// x weight^T + bias with what adapters add, of this rank's part.
  [[nodiscard]] at::Tensor product(const ops::Measured& x_MK, Parameter* bias, const Call& call);
  /// The ranks over which matrices cut by columns are summed.
  [[nodiscard]] Communicator* summing(const Call& call) const;
  [[nodiscard]] at::Tensor with_bias(const at::Tensor& y_mN);

  std::vector<LinearPart> parts_;
  bool has_bias_;
  LinearCut cut_;
  Parameter weight_;
  Parameter bias_;
  std::vector<LowRank> adapters_;
};

}  // namespace dstrain
