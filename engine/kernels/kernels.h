#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

/// Every kernel: its arguments, the GPU version and the reference in double.
///
/// The rules, once: tensors are dense and row-major; a `void*` holds elements of `dtype`,
/// statistics and weight gradients are fp32; a `grad_*` of a parameter is added to, everything else
/// is overwritten. Sums run in fp32 in an order that depends on the shape only, so results are
/// bitwise repeatable. Launches are asynchronous on `stream`; nothing waits for the host. Pointers
/// are aligned to 16 bytes unless said otherwise. The reference takes the same arguments with host
/// pointers.
namespace dstrain::kernels {

enum class DType { f32, bf16, f16 };

/// sum = x + delta, rounded to dtype; y = (sum - mean) * rstd * weight + bias. Ba et al. 2016,
/// arXiv:1607.06450, eq. 4. Reads x and delta, writes sum and y.
struct AddLayerNorm {
  const void* x;       ///< [rows, dim]
  const void* delta;   ///< [rows, dim] or null: then sum is x and not written
  const void* weight;  ///< [dim]
  const void* bias;    ///< [dim]
  void* sum;           ///< [rows, dim]; null without delta
  void* y;             ///< [rows, dim]
  float* mean;         ///< [rows]
  float* rstd;         ///< [rows]
  std::int64_t rows;
  std::int64_t dim;  ///< multiple of 8, at most kMaxNormDim
  float eps;
  DType dtype;
};

/// grad_x = grad_sum + the norm's input gradient, in one pass with the sums over rows of grad_y *
/// x_hat and grad_y.
struct AddLayerNormBackward {
  const void* sum;
  const void* weight;
  const void* grad_y;
  const void* grad_sum;  ///< what flows past the norm along the residual; null: nothing
  const float* mean;
  const float* rstd;
  void* grad_x;
  float* grad_weight;
  float* grad_bias;
  float* partial;  ///< scratch, [norm_partials(rows), 2, dim]
  std::int64_t rows;
  std::int64_t dim;
  DType dtype;
};
inline constexpr std::int64_t kMaxNormDim = 2048;
[[nodiscard]] std::int64_t norm_partials(std::int64_t rows);

/// y = gelu(z + bias) with the erf GELU (Hendrycks & Gimpel 2016, arXiv:1606.08415). z is the
/// GEMM's output without bias: adding it here and again in backward costs nothing, and z is written
/// once.
struct BiasGelu {
  const void* z;     ///< [rows, cols]
  const void* bias;  ///< [cols]
  void* y;           ///< [rows, cols]
  std::int64_t rows, cols;
  DType dtype;
};

/// grad_z = grad_y * gelu'(z + bias), and grad_bias += its sum over rows (before rounding).
struct BiasGeluBackward {
  const void* z;
  const void* bias;
  const void* grad_y;
  void* grad_z;  ///< may alias grad_y
  float* grad_bias;
  float* partial;  ///< scratch, [column_partials(rows, cols), cols]
  std::int64_t rows, cols;
  DType dtype;
};

/// sum += sum of x over rows.
struct ColumnSum {
  const void* x;   ///< [rows, cols]
  float* sum;      ///< [cols]
  float* partial;  ///< scratch, [column_partials(rows, cols), cols]
  std::int64_t rows, cols;
  DType dtype;
};
[[nodiscard]] std::int64_t column_partials(std::int64_t rows, std::int64_t cols);

/// [B, C, H, W] -> [B * H/P * W/P, C * P * P], each row in the order of a convolution's weight.
struct Patchify {
  const void* images;
  void* patches;
  std::int64_t batch, channels, height, width, patch;
  DType dtype;
};

/// out[b, 0] = class_token + positions[0]; out[b, t] = patches[b, t - 1] + positions[t].
struct EmbedSequence {
  const void* patches;      ///< [batch, tokens - 1, dim]
  const void* class_token;  ///< [dim]
  const void* positions;    ///< [tokens, dim]
  void* out;                ///< [batch, tokens, dim]
  std::int64_t batch, tokens, dim;
  DType dtype;
};

/// Copies the patches' gradient out and adds the sums over the batch to both parameters, reading
/// grad_out once.
struct EmbedSequenceBackward {
  const void* grad_out;
  void* grad_patches;
  float* grad_class_token;
  float* grad_positions;
  std::int64_t batch, tokens, dim;
  DType dtype;
};

/// Three [batch, heads, tokens, head_dim] tensors of any strides (last one 1) into rows [batch *
/// tokens, 3, heads, head_dim].
struct PackHeads {
  const void* source[3];
  std::int64_t stride[3][3];  ///< of batch, head, token, in elements; multiples of 8
  void* out;
  std::int64_t batch, heads, tokens, head_dim;  ///< head_dim a multiple of 8
  DType dtype;
};

/// Weighted cross entropy with label smoothing. Szegedy et al. 2016, arXiv:1512.00567, sec. 7. A
/// row of weight 0 is not read; a label outside [0, classes) gives a nan loss. No alignment needed.
struct CrossEntropy {
  const void* logits;          ///< [batch, classes]
  const std::int64_t* labels;  ///< [batch]
  const float* weights;        ///< [batch]
  float* log_sum_exp;          ///< [batch], kept for backward
  float* rows;                 ///< scratch, [4, batch]
  float* loss;                 ///< [1]
  float* totals;               ///< [4] += loss, top-1, top-5, samples
  std::int64_t batch, classes;
  float smoothing;
  DType dtype;
};

/// grad_logits = grad_loss * weight * (softmax - smoothed target).
struct CrossEntropyBackward {
  const void* logits;
  const std::int64_t* labels;
  const float* weights;
  const float* log_sum_exp;
  const float* grad_loss;  ///< [1]
  void* grad_logits;
  std::int64_t batch, classes;
  float smoothing;
  DType dtype;
};

/// sum[0] += factor * sum of x^2.
struct AddSquares {
  const float* x;  ///< any alignment
  float* partial;  ///< scratch, [kSquarePartials]
  float* sum;
  std::int64_t count;
  float factor;
};
inline constexpr std::int64_t kSquarePartials = 1024;

/// The decisions between gradients and update; see optimizer::finish_gradients.
struct FinishGradients {
  float* control;
  const float* sum;
  float clip_norm;
  bool dynamic_loss_scale;
  int growth_interval;
};

/// One AdamW step on flat tensors; see optimizer::adamw. Any alignment; 16 bytes is the fast path.
struct AdamWStep {
  float* master;
  float* exp_avg;
  float* exp_avg_sq;
  const float* gradient;
  void* compute;  ///< dtype, may be null
  const float* control;
  std::int64_t count;
  double lr, beta1, beta2, eps, weight_decay;
  DType dtype;
};

/// One SGD step on flat tensors; see optimizer::sgd. Any alignment.
struct SgdStep {
  float* master;
  float* momentum_buffer;
  const float* gradient;
  void* compute;  ///< dtype, may be null
  const float* control;
  std::int64_t count;
  double lr, momentum, weight_decay;
  DType dtype;
};

namespace cuda {
void add_layer_norm(const AddLayerNorm& args, cudaStream_t stream);
void add_layer_norm_backward(const AddLayerNormBackward& args, cudaStream_t stream);
void bias_gelu(const BiasGelu& args, cudaStream_t stream);
void bias_gelu_backward(const BiasGeluBackward& args, cudaStream_t stream);
void column_sum(const ColumnSum& args, cudaStream_t stream);
void patchify(const Patchify& args, cudaStream_t stream);
void embed_sequence(const EmbedSequence& args, cudaStream_t stream);
void embed_sequence_backward(const EmbedSequenceBackward& args, cudaStream_t stream);
void pack_heads(const PackHeads& args, cudaStream_t stream);
void cross_entropy(const CrossEntropy& args, cudaStream_t stream);
void cross_entropy_backward(const CrossEntropyBackward& args, cudaStream_t stream);
void add_squares(const AddSquares& args, cudaStream_t stream);
void finish_gradients(const FinishGradients& args, cudaStream_t stream);
void adamw(const AdamWStep& args, cudaStream_t stream);
void sgd(const SgdStep& args, cudaStream_t stream);
}  // namespace cuda

namespace reference {
void add_layer_norm(const AddLayerNorm& args);
void add_layer_norm_backward(const AddLayerNormBackward& args);
void bias_gelu(const BiasGelu& args);
void bias_gelu_backward(const BiasGeluBackward& args);
void column_sum(const ColumnSum& args);
void patchify(const Patchify& args);
void embed_sequence(const EmbedSequence& args);
void embed_sequence_backward(const EmbedSequenceBackward& args);
void pack_heads(const PackHeads& args);
void cross_entropy(const CrossEntropy& args);
void cross_entropy_backward(const CrossEntropyBackward& args);
void add_squares(const AddSquares& args);
void finish_gradients(const FinishGradients& args);
void adamw(const AdamWStep& args);
void sgd(const SgdStep& args);
}  // namespace reference

}  // namespace dstrain::kernels
