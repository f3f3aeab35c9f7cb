#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "engine/base/gpu_limits.h"
#include "engine/kernels/dtype.h"

/// Attention of short sequences without a mask: all keys and values of a head lie in shared memory,
/// so that little is rounded up to more than 16 tokens. The rules are in engine/kernels/kernels.h.
namespace dstrain::kernels {

/// Elements [batch, head, token, 0 .. head_dim) of a tensor, dense in a head.
struct HeadsView {
  void* data;
  std::int64_t batch, head, token;  ///< strides in elements, multiples of 8
};

/// out = softmax(scale * q k^T) v, and the natural logarithm of each row's sum of exponentials.
struct ShortAttention {
  HeadsView query, key, value, out;
  float* log_sum_exp;  ///< [batch, heads, tokens]
  std::int64_t batch, heads, tokens, head_dim;
  float scale;
  DType dtype;  ///< of 16 bits
};

/// Gradients of query, key and value from that of the output. Dao 2023, arXiv:2307.08691, sec. 2.3,
/// with scores made twice: once by the rows of queries, once by the rows of keys, so that each sum
/// has one order.
struct ShortAttentionBackward {
  ShortAttention forward;  ///< with its results
  HeadsView grad;          ///< of out
  HeadsView query_grad, key_grad, value_grad;
  /// Sums of these over the tokens, for a bias; `query` null: not wanted. Only by wgmma. Weights of
  /// a query sum up to one, and their gradients to zero: so the sum of the gradients of values is
  /// that of `grad`, and that of keys is zero. Sums of queries are those of what is written.
  struct Sums {
    /// [batch * kShortAttentionSums, stride] each: a head's elements lie where query_grad.head and
    /// the like place it in a row.
    float *query = nullptr, *key = nullptr, *value = nullptr;
    std::int64_t stride = 0;
  } sums = {};
};

/// Parts of a sample's tokens whose sums are apart.
inline constexpr std::int64_t kShortAttentionSums = 4;

/// Warps of a block of the kernels by mma.sync, and rows of their tiles.
inline constexpr int kShortAttentionWarps = 6, kShortAttentionTile = 16;

/// Dynamic shared memory of forward by mma.sync: two operands, whose rows have room for eight
/// elements more, and where `staged` for the rows that warps move.
[[nodiscard]] constexpr std::size_t short_attention_bytes(std::int64_t tokens,
                                                          std::int64_t head_dim, bool staged) {
  const std::int64_t tiles = (tokens + kShortAttentionTile - 1) / kShortAttentionTile,
                     held = 2 * tiles + (staged ? kShortAttentionWarps : 0);
  return static_cast<std::size_t>(held * kShortAttentionTile * (head_dim + 8) * 2);
}
/// And of backward, which has two facts of each row, too: never less than forward.
[[nodiscard]] constexpr std::size_t short_attention_backward_bytes(std::int64_t tokens,
                                                                   std::int64_t head_dim,
                                                                   bool staged) {
  const std::int64_t tiles = (tokens + kShortAttentionTile - 1) / kShortAttentionTile;
  return short_attention_bytes(tokens, head_dim, staged) +
         static_cast<std::size_t>(tiles * kShortAttentionTile) * 2 * sizeof(float);
}

/// Whether rows go by way of shared memory, where a GPU has the room. With the room of staged rows
/// of 80 elements two blocks of backward would leave little L1 cache: 0.42 instead of 0.38 ms for
/// ViT-H's 64 images on an H100; rows of 64 take 0.29 instead of 0.31 ms when staged.
[[nodiscard]] constexpr bool short_attention_stages(std::int64_t tokens, std::int64_t head_dim,
                                                    const GpuLimits& limits) {
  return short_attention_bytes(tokens, head_dim, true) <= limits.shared_block;
}
[[nodiscard]] constexpr bool short_attention_backward_stages(std::int64_t tokens,
                                                             std::int64_t head_dim,
                                                             const GpuLimits& limits) {
  return head_dim <= 64 &&
         short_attention_backward_bytes(tokens, head_dim, true) <= limits.shared_block;
}

/// How many tokens of heads of this width the kernels take in a GPU's shared memory: 0 for a width
/// that they do not know.
[[nodiscard]] std::int64_t short_attention_max_tokens(std::int64_t head_dim,
                                                      const GpuLimits& limits);

namespace cuda {
void short_attention(const ShortAttention& args, cudaStream_t stream);
void short_attention_backward(const ShortAttentionBackward& args, cudaStream_t stream);

/// What these choose from: by mma.sync, for every GPU; by wgmma, where it is the current one's.
void short_attention_sm80(const ShortAttention& args, cudaStream_t stream);
void short_attention_backward_sm80(const ShortAttentionBackward& args, cudaStream_t stream);
[[nodiscard]] bool short_attention_has_sm90();
void short_attention_sm90(const ShortAttention& args, cudaStream_t stream);
void short_attention_backward_sm90(const ShortAttentionBackward& args, cudaStream_t stream);
}  // namespace cuda

}  // namespace dstrain::kernels
