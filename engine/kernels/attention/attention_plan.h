#pragma once

#include <torch/csrc/autograd/custom_function.h>

#include <cstdint>
#include <functional>
#include <optional>

#include "engine/kernels/attention/attention_backends.h"
#include "engine/kernels/attention/attention_heads.h"

namespace dstrain::ops {

/// Everything about one attention but its tensors; kept from forward to backward. Not for other
/// layers.
struct Plan {
  AttentionShape shape;
  std::optional<StretchedWidths> stretched = {};  ///< linear biases stand in the heads
  bool cudnn_adds_biases = false;                 ///< cuDNN's heads have none in them
  std::int64_t longest = 0;                       ///< Sequences::longest

  /// For qkv of this type and device. Where `fewer_queries` than keys attend, cuDNN adds no biases.
  [[nodiscard]] static Plan of(const at::Tensor& qkv, const AttentionShape& shape,
                               std::int64_t longest, bool fewer_queries = false);
  [[nodiscard]] Masking masking(const Sequences& sequences) const;
  /// Widths of the heads that the backend gets: all but cuDNN want values as wide as keys.
  [[nodiscard]] StretchedWidths widths(Backend backend) const;
  [[nodiscard]] Heads heads(Backend backend, const at::Tensor& qkv,
                            const Sequences& sequences) const;
  /// By the backend for heads of the type and device of `like`, to which `heads_for` gives them.
  [[nodiscard]] Attended attend(const at::Tensor& like, bool packed, const Masking& masking,
                                const std::function<Heads(Backend)>& heads_for) const;

  void save(torch::autograd::AutogradContext* context) const;
  [[nodiscard]] static Plan load(torch::autograd::AutogradContext* context);
};

/// Error{internal} where qkv [M, qkv_width] and sequences are not what `shape` says.
void check_attention(const at::Tensor& qkv, const AttentionShape& shape,
                     const Sequences& sequences);

}  // namespace dstrain::ops
