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
  float* grad_weight;  ///< null with grad_bias: neither is wanted
  float* grad_bias;
  float* partial;  ///< scratch, [norm_partials(rows), 2, dim]
  std::int64_t rows;
  std::int64_t dim;
  DType dtype;
};

/// sum = x + delta, rounded to dtype; y = weight * (sum * rstd, rounded to dtype), as Qwen2 has it.
/// Zhang & Sennrich 2019, arXiv:1910.07467, eq. 4. Reads x and delta, writes sum and y.
struct AddRmsNorm {
  const void* x;       ///< [rows, dim]
  const void* delta;   ///< [rows, dim] or null: then sum is x and not written
  const void* weight;  ///< [dim]
  void* sum;           ///< [rows, dim]; null without delta
  void* y;             ///< [rows, dim]
  float* rstd;         ///< [rows]
  std::int64_t rows;
  std::int64_t dim;  ///< multiple of 8, at most kMaxNormDim
  float eps;
  DType dtype;
};

/// grad_x = grad_sum + the norm's input gradient, in one pass with the sum over rows of grad_y *
/// sum * rstd.
struct AddRmsNormBackward {
  const void* sum;
  const void* weight;
  const void* grad_y;
  const void* grad_sum;  ///< what flows past the norm along the residual; null: nothing
  const float* rstd;
  void* grad_x;
  float* grad_weight;  ///< null: not wanted
  float* partial;      ///< scratch, [norm_partials(rows), dim]
  std::int64_t rows;
  std::int64_t dim;
  DType dtype;
};
inline constexpr std::int64_t kMaxNormDim = 8192;
[[nodiscard]] std::int64_t norm_partials(std::int64_t rows);

/// x Phi(x), exact or by 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))). Hendrycks & Gimpel 2016,
/// arXiv:1606.08415.
enum class Gelu { erf, tanh };

/// y = gelu(z + bias). z is the GEMM's output without bias: adding it here and again in backward
/// costs nothing, and z is written once.
struct BiasGelu {
  const void* z;     ///< [rows, cols]
  const void* bias;  ///< [cols]
  void* y;           ///< [rows, cols]
  std::int64_t rows, cols;
  DType dtype;
  Gelu kind = Gelu::erf;
};

/// grad_z = grad_y * gelu'(z + bias), and grad_bias += its sum over rows (before rounding).
struct BiasGeluBackward {
  const void* z;
  const void* bias;
  const void* grad_y;
  void* grad_z;      ///< may alias grad_y
  float* grad_bias;  ///< null: not wanted
  float* partial;    ///< scratch, [column_partials(rows, cols), cols]; null without grad_bias
  std::int64_t rows, cols;
  DType dtype;
  Gelu kind = Gelu::erf;
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

/// h = silu(gate) * up, silu(x) = x / (1 + exp(-x)); one rounding. Shazeer 2020, arXiv:2002.05202,
/// eq. 5.
struct Swiglu {
  const void* gate_up;  ///< [rows, 2 cols]: of each row gate, then up
  void* h;              ///< [rows, cols]
  std::int64_t rows, cols;
  DType dtype;
};

/// The gradient of gate and up, and h once more, in one pass.
struct SwigluBackward {
  const void* gate_up;
  const void* grad_h;
  void* grad_gate_up;  ///< may alias gate_up
  void* h;             ///< bit for bit what forward gave; null: not wanted
  std::int64_t rows, cols;
  DType dtype;
};

/// y = x / (1 - share) or 0: element i is dropped where word i % 4 of Philox at counter i / 4 and
/// `key` falls into the lowest `share` of [0, 1).
struct Dropout {
  const void* x;
  void* y;  ///< may alias x
  std::int64_t count;
  const std::int64_t* seed;  ///< [1], where x is; with `place` it makes the key (dropout_key)
  std::uint64_t place;
  float share;
  DType dtype;
};

/// Formats of 8 bits: e4m3 (finite, largest 448) for values, e5m2 (largest 57344) for gradients.
/// Micikevicius et al. 2022, arXiv:2209.05433, sec. 3.
enum class Fp8Format { e4m3, e5m2 };

/// partial [kAbsMaxPartials] = largest |x| of each part of x; nan is passed over.
struct AbsMax {
  const void* x;
  float* partial;
  std::int64_t count;
  DType dtype;
};
inline constexpr std::int64_t kAbsMaxPartials = 528;

/// x / scale in 8 bits, as rows and as columns, x read once. Where `partial` is given, scale is its
/// largest value (1e-30 at least) over the format's largest, and written; else it is read.
struct Quantize {
  const void* x;         ///< [rows, cols], both multiples of 16
  std::uint8_t* out;     ///< [rows, cols]; null: not wanted
  std::uint8_t* out_t;   ///< [cols, rows]; null: not wanted
  const float* partial;  ///< [kAbsMaxPartials] or null
  float* scale;          ///< [1]
  std::int64_t rows, cols;
  Fp8Format format;
  DType dtype;
};

/// Cross entropy over many classes, in place: each row of logits becomes its gradient, grad_loss *
/// weight * (softmax - one-hot). A row of weight 0 is not read and becomes zeros; a label outside
/// [0, classes) gives a nan loss.
struct VocabLoss {
  void* logits;                ///< [rows, stride]; elements from `classes` on are left alone
  const std::int64_t* labels;  ///< [rows]
  const float* weights;        ///< [rows]
  const float* grad_loss;      ///< [1]; null: logits stay as they are
  float* loss;                 ///< [rows], weighted
  float* top1;  ///< [rows]: weight where no class scores higher, ties to the lower index
  std::int64_t rows, classes;
  std::int64_t stride;  ///< multiple of 8, at least classes
  DType dtype;
};

/// totals [4] += sum of loss, sum of top1, 0, sum of weights; loss_sum = the first.
struct VocabTotals {
  const float* loss;     ///< [rows]
  const float* top1;     ///< [rows]
  const float* weights;  ///< [rows]
  float* loss_sum;       ///< [1]; null: not wanted
  float* totals;
  std::int64_t rows;
};

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

/// out[row] = table[tokens[row]]; a token outside [0, vocab) gives a row of nan.
struct EmbedTokens {
  const std::int64_t* tokens;     ///< [rows]
  const void* table;              ///< [vocab, dim]
  void* out;                      ///< [rows, dim]
  std::int64_t rows, vocab, dim;  ///< dim a multiple of 8
  DType dtype;
};

/// grad_table[token] += sum of grad_out over the token's rows, in an order given by the tokens; one
/// outside [0, vocab) is left out.
struct EmbedTokensBackward {
  const std::int64_t* tokens;
  const void* grad_out;  ///< [rows, dim]
  float* grad_table;     ///< [vocab, dim]
  void* scratch;         ///< embed_tokens_scratch bytes
  std::int64_t rows, vocab, dim;
  DType dtype;
};
[[nodiscard]] std::int64_t embed_tokens_scratch(std::int64_t rows, std::int64_t vocab,
                                                std::int64_t dim);

/// Where attention's heads lie in a row of qkv: all queries, all keys, all values; or, interleaved,
/// query, key and value of one head after the other (then kv_heads = heads).
struct HeadLayout {
  std::int64_t heads, kv_heads, head_dim;
  bool interleaved;

  struct Place {
    int part;  ///< 0 query, 1 key, 2 value
    std::int64_t head;
  };
  [[nodiscard]] constexpr std::int64_t slots() const { return heads + 2 * kv_heads; }
  [[nodiscard]] constexpr std::int64_t width() const { return slots() * head_dim; }
  [[nodiscard]] constexpr Place place(std::int64_t slot) const {
    if (interleaved) return {static_cast<int>(slot % 3), slot / 3};
    if (slot < heads) return {0, slot};
    if (slot < heads + kv_heads) return {1, slot - heads};
    return {2, slot - heads - kv_heads};
  }
  [[nodiscard]] constexpr std::int64_t slot(Place place) const {
    if (interleaved) return 3 * place.head + place.part;
    return place.head + (place.part > 0 ? heads : 0) + (place.part > 1 ? kv_heads : 0);
  }
};

/// Rotary positions in place on the query and key heads: of each head, elements (i, i + head_dim/2)
/// turn by position * theta^(-2i/head_dim). Su et al. 2021, arXiv:2104.09864, eq. 34, pairs as in
/// Qwen2.
struct RotateHeads {
  void* qkv;           ///< [rows, layout.width()]
  const float* table;  ///< [length, head_dim/2, 2]: cosine and sine; length > any position
  const std::int32_t* positions;  ///< [rows]; null: row % tokens
  std::int64_t rows, tokens;
  HeadLayout layout;  ///< head_dim a multiple of 16
  DType dtype;
};

/// Gradients of query, key, value, each [batch, its heads, tokens, head_dim or more] of any strides
/// (last one 1), into rows like qkv; further elements of a head are left out. With a table, query
/// and key turn back on the way.
struct PackHeads {
  const void* source[3];
  std::int64_t stride[3][3];      ///< of batch, head, token, in elements; multiples of 8
  const float* table;             ///< as in RotateHeads; null: no turn
  const std::int32_t* positions;  ///< as in RotateHeads
  void* out;                      ///< [batch * tokens, layout.width()]
  std::int64_t batch, tokens;
  HeadLayout layout;  ///< head_dim a multiple of 8, with a table of 16
  DType dtype;
};

/// Query, key and value heads with further elements behind their own that make softmax(scale * q
/// k^T) the one with linear biases: q gets slope / scale in two roundings hi + lo, as (256 hi, hi,
/// 256 lo, lo); k gets its position 256 a + b, as (a, b, a, b), exact in bf16 and fp16; the rest is
/// zero. Press et al. 2022, arXiv:2108.12409, sec. 3; the part of the bias that is the same for all
/// keys drops out of the softmax.
struct StretchHeads {
  const void* qkv;                       ///< [rows, layout.width()]
  const std::int32_t* positions;         ///< [rows]; null: row % tokens; below kAlibiPositions
  void* query;                           ///< [rows, heads, stretched]
  void* key;                             ///< [rows, kv_heads, stretched]
  void* value;                           ///< the same; null: values stay as they are
  std::int64_t rows, tokens, stretched;  ///< stretched: head_dim + 4 or more, a multiple of 8
  HeadLayout layout;                     ///< head_dim a multiple of 8
  float inverse_scale;
  DType dtype;
};
inline constexpr std::int64_t kAlibiPositions = 1 << 16;

/// Slope of one head's linear bias: 2^(-8 (head + 1) / p), p the largest power of two not above
/// `heads`; the heads beyond p have 2^(-4 (2 (head - p) + 1) / p), as BLOOM has them.
[[nodiscard]] double alibi_slope(std::int64_t head, std::int64_t heads);

/// Rows of `from` elements to rows of `to`: cut, or zeros behind.
struct ResizeRows {
  const void* source;
  void* out;
  std::int64_t rows, from, to;  ///< from and to multiples of 8
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

namespace cuda {
void add_layer_norm(const AddLayerNorm& args, cudaStream_t stream);
void add_layer_norm_backward(const AddLayerNormBackward& args, cudaStream_t stream);
void add_rms_norm(const AddRmsNorm& args, cudaStream_t stream);
void add_rms_norm_backward(const AddRmsNormBackward& args, cudaStream_t stream);
void bias_gelu(const BiasGelu& args, cudaStream_t stream);
void bias_gelu_backward(const BiasGeluBackward& args, cudaStream_t stream);
void column_sum(const ColumnSum& args, cudaStream_t stream);
void swiglu(const Swiglu& args, cudaStream_t stream);
void swiglu_backward(const SwigluBackward& args, cudaStream_t stream);
void dropout(const Dropout& args, cudaStream_t stream);
void abs_max(const AbsMax& args, cudaStream_t stream);
void quantize(const Quantize& args, cudaStream_t stream);
void vocab_loss(const VocabLoss& args, cudaStream_t stream);
void vocab_totals(const VocabTotals& args, cudaStream_t stream);
void patchify(const Patchify& args, cudaStream_t stream);
void embed_sequence(const EmbedSequence& args, cudaStream_t stream);
void embed_sequence_backward(const EmbedSequenceBackward& args, cudaStream_t stream);
void embed_tokens(const EmbedTokens& args, cudaStream_t stream);
void embed_tokens_backward(const EmbedTokensBackward& args, cudaStream_t stream);
void rotate_heads(const RotateHeads& args, cudaStream_t stream);
void pack_heads(const PackHeads& args, cudaStream_t stream);
void stretch_heads(const StretchHeads& args, cudaStream_t stream);
void resize_rows(const ResizeRows& args, cudaStream_t stream);
void cross_entropy(const CrossEntropy& args, cudaStream_t stream);
void cross_entropy_backward(const CrossEntropyBackward& args, cudaStream_t stream);
void add_squares(const AddSquares& args, cudaStream_t stream);
void finish_gradients(const FinishGradients& args, cudaStream_t stream);
}  // namespace cuda

namespace reference {
void add_layer_norm(const AddLayerNorm& args);
void add_layer_norm_backward(const AddLayerNormBackward& args);
void add_rms_norm(const AddRmsNorm& args);
void add_rms_norm_backward(const AddRmsNormBackward& args);
void bias_gelu(const BiasGelu& args);
void bias_gelu_backward(const BiasGeluBackward& args);
void column_sum(const ColumnSum& args);
void swiglu(const Swiglu& args);
void swiglu_backward(const SwigluBackward& args);
void dropout(const Dropout& args);
void abs_max(const AbsMax& args);
void quantize(const Quantize& args);
void vocab_loss(const VocabLoss& args);
void vocab_totals(const VocabTotals& args);
void patchify(const Patchify& args);
void embed_sequence(const EmbedSequence& args);
void embed_sequence_backward(const EmbedSequenceBackward& args);
void embed_tokens(const EmbedTokens& args);
void embed_tokens_backward(const EmbedTokensBackward& args);
void rotate_heads(const RotateHeads& args);
void pack_heads(const PackHeads& args);
void stretch_heads(const StretchHeads& args);
void resize_rows(const ResizeRows& args);
void cross_entropy(const CrossEntropy& args);
void cross_entropy_backward(const CrossEntropyBackward& args);
void add_squares(const AddSquares& args);
void finish_gradients(const FinishGradients& args);
}  // namespace reference

}  // namespace dstrain::kernels
