#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/mesh/split.h"
#include "engine/nn/call.h"
#include "engine/nn/linear.h"
#include "engine/nn/workspace.h"

namespace dstrain {

/// What files call the projections of one attention.
struct AttentionNames {
  std::vector<std::string> qkv;  ///< query, key and value, or one matrix of all three
  std::string output;
  std::string query_norm = {}, key_norm = {};            ///< of each head; empty: none
  bool norms_all_heads = false;                          ///< these norms are over all heads at once
  ops::RmsWeight norm_weights = ops::RmsWeight::factor;  ///< what their weights hold
};

/// Which of them have a bias.
struct AttentionBiases {
  bool qkv = true;
  bool output = true;
};

/// Multi-head self-attention: one product for query, key and value, softmax attention of the kind
/// that `shape` says, output projection. Vaswani et al. 2017, arXiv:1706.03762, sec. 3.2.
///
/// A tensor rank has some of the query heads, and the key and value heads that these use. Where a
/// key head is used by several ranks, each has the keys' and values' matrices whole, and the sum
/// over ranks completes their gradients.
class SelfAttention {
 public:
  /// `width` is that of the stream; the batch of `shape`, which is that of all ranks, is left open.
  /// `norm_eps` is that of the norms that `names` has. With
  /// parts of samples (Splits::sequence) B, T, costs and rows are those of this sequence rank.
  SelfAttention(const AttentionNames& names, std::int64_t width, const ops::AttentionShape& shape,
                const InitialWeights& init, const AttentionBiases& biases = {}, double norm_eps = 0,
                const Splits& splits = {});

  /// x [m, D] -> [m, D], the rows of this rank of B * T, of B = `samples`; or its cost beside the
  /// gradients of the stream and of its own output.
  [[nodiscard]] Features run(LayerPass& pass, const Features& x, std::int64_t samples);
  /// Room for the maxima of x, or undefined (ops::maxima_for).
  [[nodiscard]] at::Tensor maxima_for_input(const LayerPass& pass, const Features& x) const {
    return qkv_.maxima_for_input(pass, x);
  }

  /// Its output, which has no bias, becomes `scale` times what it was.
  void scale_output(double scale) { output_.scale_output(scale); }

  [[nodiscard]] KeyValueShape key_values() const { return {shape_.kv_heads, shape_.head_dim}; }

  void add_parameters(std::vector<Parameter*>& list);
  void add_linears(std::vector<Linear*>& list) {
    list.push_back(&qkv_);
    if (shared_) list.push_back(&*shared_);
    list.push_back(&output_);
  }

 private:
  /// x [m, D] -> [M, qkv_width]: queries of this rank beside the key and value head that they use.
  [[nodiscard]] Features run_shared(LayerPass& pass, const Features& x);
  [[nodiscard]] Features norm_heads(LayerPass& pass, const Features& qkv,
                                    const ops::AttentionShape& shape);
  /// qkv [M, qkv_width] -> [M, width], of which it keeps what backward needs.
  [[nodiscard]] Features attend(LayerPass& pass, const Features& qkv,
                                const ops::AttentionShape& shape) const;
  /// Softmax attention of M = `rows` rows; the products of causal attention count half.
  [[nodiscard]] LayerCost attention_cost(std::int64_t rows, std::int64_t samples,
                                         int compute_bytes) const;
  /// Backward, beside the gradient of its output.
  [[nodiscard]] Workspace workspace(std::int64_t rows, std::int64_t samples,
                                    int compute_bytes) const;

  ops::AttentionShape shape_;  ///< of this rank
  Splits splits_;
  Linear qkv_;                    ///< where a key head is shared by ranks, queries alone
  std::optional<Linear> shared_;  ///< then keys and values
  std::int64_t kv_width_ = 0;     ///< of all key heads
  std::int64_t shared_head_ = 0;  ///< the one that this rank uses
  Linear output_;
  /// A norm for each query and key head (Qwen3, Gemma 3), or for all of them at once (OLMo 2), or
  /// none.
  struct HeadNorms {
    Parameter query, key;
    double eps = 0;
    bool all_heads = false;
    ops::RmsWeight hold = ops::RmsWeight::factor;
  };
  /// Bytes that they keep for `rows` rows.
  [[nodiscard]] Bytes norms_saved_bytes(std::int64_t rows, int compute_bytes) const;
  std::optional<HeadNorms> norms_;
};

}  // namespace dstrain
