#pragma once

#include "engine/kernels/attention/attention_heads.h"

/// The libraries that do the softmax; not for other layers.
namespace dstrain::ops {

enum class Backend : std::int64_t { cpu, cudnn, flash, efficient };

/// What a backend does with its heads.
struct Masking {
  bool causal = false;
  bool biased = false;  ///< linear biases are not in the heads: add them
  Slopes slopes = {};   ///< of these
  double scale = 0;
  Sequences sequences;  ///< packed: heads are those of one sample
};

/// What forward hands to backward: the random states are whatever the backend wants to see again.
struct Attended {
  Backend backend = Backend::cpu;
  at::Tensor out;  ///< [B, heads, T, width of values]
  at::Tensor log_sum_exp, seed, offset;
};

/// The backend for heads up to `width` elements wide. cuDNN's kernels may still refuse: then flash
/// attention.
[[nodiscard]] Backend backend_for(const at::Tensor& qkv, std::int64_t width, bool packed);

/// kv_heads may divide heads. cuDNN throws c10::Error where it has no kernel.
[[nodiscard]] Attended attend(Backend backend, const Heads& in, const Masking& masking);

/// Gradients of `in`; those of shared key and value heads are summed.
[[nodiscard]] Heads attend_backward(const Attended& saved, const at::Tensor& grad, const Heads& in,
                                    const Masking& masking);

}  // namespace dstrain::ops
