#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <utility>

#include "engine/kernels/parameter.h"

/// Operators of the models with their gradients, on GPU (our kernels, cuBLAS, cuDNN) and CPU (ATen). Each is an autograd
/// Function that saves the least it can, reads `Parameter::value` when it runs, forward and backward (the storage may
/// differ between the two), and adds weight gradients in fp32 to `Parameter::gradient`. Parameters are no autograd inputs.
///
/// Legend: B batch, T tokens, D width, M = B * T rows. Compute dtype fp32, bf16 or fp16; wrong shapes are Error{internal}.
namespace dstrain::ops {

/// Images to rows of patches in the order of a convolution's weight: [B, C, H, W] -> [B * (H/P) * (W/P), C * P * P].
/// No gradient: images are inputs.
[[nodiscard]] at::Tensor patchify(const at::Tensor& images_BCHW, std::int64_t patch);

/// x [M, K], weight [N, ...] with K trailing elements in all, bias [N] -> [M, N].
[[nodiscard]] at::Tensor linear(const at::Tensor& x_MK, Parameter& weight, Parameter& bias);

/// gelu(x weight^T + bias) with the exact (erf) GELU; saves x and the pre-activation.
[[nodiscard]] at::Tensor linear_gelu(const at::Tensor& x_MK, Parameter& weight, Parameter& bias);

/// (x + delta, layer_norm(x + delta)); without `delta` the first is x itself. x, delta [M, D]; weight, bias [D].
/// Statistics in fp32. Ba et al. 2016, arXiv:1607.06450, eq. 4.
[[nodiscard]] std::pair<at::Tensor, at::Tensor> add_layer_norm(const at::Tensor& x_MD,
                                                               const std::optional<at::Tensor>& delta_MD,
                                                               Parameter& weight, Parameter& bias, double eps);

/// Softmax attention of every head over all tokens of its sample, scale 1/sqrt(head_dim).
/// qkv [B * T, 3 * D] holds query, key, value of all heads, each D = heads * head_dim -> [B * T, D].
/// bf16/fp16 on a GPU: cuDNN; fp32 on a GPU: memory-efficient attention; CPU: flash attention for CPU.
[[nodiscard]] at::Tensor attention(const at::Tensor& qkv, std::int64_t batch, std::int64_t heads);

/// Puts the class token before the patches of each sample and adds positions: patches [B * N, D], class_token [1, 1, D],
/// positions [1, N + 1, D] -> [B * (N + 1), D]. Dosovitskiy et al. 2021, arXiv:2010.11929, eq. 1.
[[nodiscard]] at::Tensor embed_sequence(const at::Tensor& patches, std::int64_t batch, Parameter& class_token,
                                        Parameter& positions);

/// Row 0 of each sample: x [B * T, D] -> [B, D].
[[nodiscard]] at::Tensor first_token(const at::Tensor& x, std::int64_t batch);

/// Sum over samples of weight * cross entropy with label smoothing (Szegedy et al. 2016, arXiv:1512.00567, sec. 7), fp32
/// scalar. logits [B, classes]; labels [B] int64; weights [B] fp32. Adds [loss, top-1, top-5, samples] to `totals`
/// (a sample counts as top-k when fewer than k classes score higher; ties broken by the lower index).
[[nodiscard]] at::Tensor softmax_cross_entropy(const at::Tensor& logits, const at::Tensor& labels,
                                               const at::Tensor& weights, double label_smoothing,
                                               const at::Tensor& totals);

}  // namespace dstrain::ops
