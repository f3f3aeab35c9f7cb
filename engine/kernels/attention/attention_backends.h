#pragma once

#include <optional>

#include "engine/base/gpu_limits.h"
#include "engine/kernels/attention/attention_heads.h"

/// The libraries, and kernels of our own (short_attention.h), that do the softmax; not for other
/// layers.
namespace dstrain::ops {

enum class Backend : std::int64_t { cpu, cudnn, flash, efficient, own, composed };

/// What a backend does with its heads. There may be fewer queries than keys: they are the last of
/// their sequence then, which matters where attention is causal.
struct Masking {
  bool causal = false;
  std::int64_t window = 0;            ///< AttentionShape::window
  std::optional<Slopes> biases = {};  ///< linear ones; flash attention has them in its heads
  double scale = 0;
  double softcap = 0;            ///< AttentionShape::softcap; the composed one knows it alone
  Sequences sequences = {};      ///< of the keys; packed: heads are those of one sample
  at::Tensor query_starts = {};  ///< packed: as sequences.starts, of the queries
  std::int64_t longest_query = 0;
};

/// What forward hands to backward: the random states are whatever the backend wants to see again.
struct Attended {
  Backend backend = Backend::cpu;
  at::Tensor out;  ///< [B, heads, T, width of values]
  at::Tensor log_sum_exp, seed, offset;
};

/// Widest heads for which cuDNN is the library of choice: it was measured with up to 144 elements
/// on Hopper. On Ampere, Ada and the Blackwell of workstations flash attention is as fast or faster
/// (transformers#48163: 1.22 on A100, 1.07 on A10G, 1.00 on L40S, 1.14 on RTX PRO 6000).
[[nodiscard]] std::int64_t widest_for_cudnn(const GpuLimits& limits);

struct HeadsSize {
  std::int64_t tokens, width;
};
/// The backend on a GPU with these limits.
[[nodiscard]] Backend gpu_backend(at::ScalarType type, const AttentionShape& shape,
                                  const HeadsSize& size, bool packed, const GpuLimits& limits);

/// The backend for attention of this shape with heads up to `width` elements wide. cuDNN's kernels
/// may still refuse: then flash attention. Where neither runs, memory-efficient attention.
[[nodiscard]] Backend backend_for(const at::Tensor& qkv, const AttentionShape& shape,
                                  std::int64_t width, bool packed);

/// kv_heads may divide heads. cuDNN throws c10::Error where it has no kernel. Where a library knows
/// no causal attention of fewer queries than keys, it attends to the keys before the first query
/// without a mask, to the rest with one, and the two are merged in fp32 by their log-sum-exp (Dao
/// et al. 2022, arXiv:2205.14135, sec. 3.1). Backward takes the merged output and log-sum-exp for
/// both, which is exact.
[[nodiscard]] Attended attend(Backend backend, const Heads& in, const Masking& masking);

/// Gradients of `in`; those of shared key and value heads are summed. A backend that can write to
/// any strides writes to `places` (as many queries as keys) and returns these. `column_sums` as
/// room_for_sums gave it for the rows that `places` are heads of, to be filled.
[[nodiscard]] Heads attend_backward(const Attended& saved, const at::Tensor& grad, const Heads& in,
                                    const Masking& masking, const Heads& places = {},
                                    const at::Tensor& column_sums = {});

/// fp32 [parts, N] for sums over the rows of the gradient of qkv [M, N] that attend_backward leaves
/// on the way; undefined where it does not.
[[nodiscard]] at::Tensor room_for_sums(const Attended& saved, const at::Tensor& qkv);

}  // namespace dstrain::ops
