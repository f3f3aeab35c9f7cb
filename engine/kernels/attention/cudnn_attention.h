#pragma once

#include <c10/util/Exception.h>

#include <optional>

#include "engine/kernels/attention/attention_backends.h"

/// Attention by graphs of cuDNN, which take operands and gradients of any strides and add linear
/// biases to the scores; not for other layers.
namespace dstrain::ops {

/// Whether cuDNN adds these biases: it knows the slopes of all heads of a model only.
[[nodiscard]] bool cudnn_adds(const Slopes& slopes);

/// For as many queries as keys where attention is causal. Throws c10::Error where cuDNN lacks a
/// kernel.
[[nodiscard]] Attended attend_by_cudnn(const Heads& in, const Masking& masking);

/// What `attend` by cuDNN gives; nothing where cuDNN has no kernel for this device or shape.
template <typename Attend>
[[nodiscard]] std::optional<Attended> unless_refused(const Attend& attend) {
  try {
    return attend();
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const c10::Error&) {
    return std::nullopt;
  }
}

/// Writes the gradients of `in` into `out`, whose last strides are 1.
void attend_backward_by_cudnn(const Attended& saved, const at::Tensor& grad, const Heads& in,
                              const Masking& masking, const Heads& out);

}  // namespace dstrain::ops
