#pragma once

#include <ATen/core/Tensor.h>

#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "engine/base/gpu_limits.h"
#include "engine/kernels/activation/gate.h"
#include "engine/kernels/parameter.h"
#include "engine/kernels/taken_sizes.h"

/// Operators of the models with their gradients, on GPU (our kernels, cuBLAS, cuDNN) and CPU
/// (ATen). Each is an autograd Function that saves the least it can, reads `Parameter::value` when
/// it runs, forward and backward (the storage may differ between the two), and adds weight
/// gradients in fp32 to `Parameter::gradient`. Parameters are no autograd inputs.
///
/// Legend: B batch, T tokens, D width, M = B * T rows. Compute dtype fp32, bf16 or fp16; wrong
/// shapes are Error{internal}.
namespace dstrain::ops {

/// Images to rows of patches in the order of a convolution's weight: [B, C, H, W] -> [B * (H/P) *
/// (W/P), C * P * P]. No gradient: images are inputs.
[[nodiscard]] at::Tensor patchify(const at::Tensor& images_BCHW, std::int64_t patch);

/// Which approximation of x * Phi(x). Hendrycks & Gimpel 2016, arXiv:1606.08415: exact by erf, by
/// tanh, or quick, x sigmoid(1.702 x).
enum class Gelu { erf, tanh, quick };

/// Rows that a product reads, perhaps with their largest absolute values, so that a product in FP8
/// need not read them for these.
struct Measured {
  Measured(at::Tensor tensor, at::Tensor largest = {})  // NOLINT(google-explicit-constructor)
      : rows(std::move(tensor)), maxima(std::move(largest)) {}
  at::Tensor rows;
  at::Tensor maxima;  ///< of parts of the rows, one after the other; undefined: not known
};
/// Room in which an operator that writes rows like `x` leaves their maxima for a product with the
/// weight; undefined where that product asks for none.
[[nodiscard]] at::Tensor maxima_for(const Parameter& weight, const at::Tensor& x);

/// x [M, K], weight [N, ...] with K trailing elements in all, bias [N] or none -> [M, N].
[[nodiscard]] at::Tensor linear(const Measured& x_MK, Parameter& weight, Parameter* bias);

/// gelu(x weight^T + bias); saves x and the pre-activation.
[[nodiscard]] at::Tensor linear_gelu(const at::Tensor& x_MK, Parameter& weight, Parameter& bias,
                                     Gelu kind);

/// Whether backward reads a product's input as it is kept, or makes it again.
enum class Keep { input, nothing };

/// gelu(z + input_bias) weight^T (+ bias); z [M, F], weight [N, F] -> [M, N]. Saves z; GELU's
/// output is computed again for the weight's gradient, unless `keep` says that it is saved, too
/// (never in FP8, where its codes are made again at the same cost).
[[nodiscard]] at::Tensor gelu_linear(const at::Tensor& z_MF, Parameter& input_bias,
                                     Parameter& weight, Parameter* bias, Gelu kind,
                                     Keep keep = Keep::nothing);

using kernels::GateActivation;

/// (act(gate) * up) weight^T, where gate_up [M, 2F] holds gate, then up, of each row; weight [N,
/// F] -> [M, N]. Saves gate_up only; the product is computed again for the weight's gradient.
/// Shazeer 2020, arXiv:2002.05202, eq. 5.
[[nodiscard]] at::Tensor swiglu_linear(const at::Tensor& gate_up, Parameter& weight,
                                       GateActivation gate = GateActivation::silu);

/// A part of gelu_linear, for where something is added before or read between: gelu(z + bias) with
/// z [M, N] and bias [N] saves z.
[[nodiscard]] at::Tensor bias_gelu(const at::Tensor& z_MN, Parameter& bias, Gelu kind);

/// Which elements of an input are set to zero while training; the others grow by 1 / (1 - share).
struct DropMask {
  double share = 0;         ///< of the elements; 0: none
  at::Tensor seed = {};     ///< [] int64 on the input's device; the mask is a pure function of it,
                            ///< `place` and the element
  std::uint64_t place = 0;  ///< in the model
  at::Tensor rows = {};     ///< OwnRows::rows where the input is a part of its rows
  /// Where the input is some columns of a tensor, those of the whole one and the first; 0: all.
  std::int64_t whole_columns = 0, first_column = 0;
};

/// What is added to some outputs of a linear map: scale * (dropout(x) a^T) b^T to columns [column,
/// column + N'); x [M, K], a [R, K], b [N', R]. LoRA, Hu et al. 2021, arXiv:2106.09685, sec. 4.1.
struct LowRankTerm {
  Parameter* a = nullptr;
  Parameter* b = nullptr;
  double scale = 1;
  std::int64_t column = 0;
  DropMask mask = {};
};

/// linear(x, weight, bias), with what `terms` add; the columns of no two overlap.
[[nodiscard]] at::Tensor adapted_linear(const Measured& x_MK, Parameter& weight, Parameter* bias,
                                        const std::vector<LowRankTerm>& terms);

/// swiglu_linear with what `terms` add to its second product. The product of gate and up is not
/// kept: backward makes it again. On a GPU, where numbers have 16 bits and sizes are multiples of
/// 8, it is made and its gradient taken in the kernels of the term.
[[nodiscard]] at::Tensor adapted_swiglu_linear(const at::Tensor& gate_up, Parameter& weight,
                                               const std::vector<LowRankTerm>& terms,
                                               GateActivation gate = GateActivation::silu);

/// Rows of `table` [V, D] by token: tokens [...] int64 -> [M, D]. The gradient's sums have a fixed
/// order.
[[nodiscard]] at::Tensor embed_tokens(const at::Tensor& tokens, Parameter& table);

/// (x + delta, layer_norm(x + delta)); without `delta` the first is x itself. x, delta [M, D];
/// weight, bias [D]. Statistics in fp32. The norm's maxima are left in `maxima`, where that is
/// defined. Ba et al. 2016, arXiv:1607.06450, eq. 4.
[[nodiscard]] std::pair<at::Tensor, at::Tensor> add_layer_norm(
    const at::Tensor& x_MD, const std::optional<at::Tensor>& delta_MD, Parameter& weight,
    Parameter& bias, double eps, const at::Tensor& maxima = {});

/// What an RMS norm's weight holds: the factor, or the factor less one, as Gemma has it; then the
/// product is rounded once, in the first case also before the weight comes.
enum class RmsWeight { factor, less_one };

/// (x + delta, rms_norm(x + delta) * factor); without `delta` the first is x itself. x, delta [M,
/// D]; weight [D]. Statistics in fp32. `maxima` as above. Zhang & Sennrich 2019, arXiv:1910.07467,
/// eq. 4.
[[nodiscard]] std::pair<at::Tensor, at::Tensor> add_rms_norm(
    const at::Tensor& x_MD, const std::optional<at::Tensor>& delta_MD, Parameter& weight,
    double eps, const at::Tensor& maxima = {}, RmsWeight holds = RmsWeight::factor);

/// Where sequences lie in the rows [B * T] of a batch of text. Without `starts`, each sample is one
/// sequence.
struct Sequences {
  at::Tensor starts;  ///< [S + 1] int32, first row of each packed sequence, ascending; unused ones
                      ///< repeat B * T
  std::int64_t longest = 0;  ///< tokens of the longest of them
  at::Tensor
      positions;  ///< [B * T] int32, place of each row in its sequence; defined with `starts`
};

/// The rows of such a batch that a rank of the sequence axis has (engine/mesh/zigzag.h). Undefined:
/// all of them.
struct OwnRows {
  at::Tensor rows;       ///< [M] int32, each one's place in [B * T]
  at::Tensor positions;  ///< [M] int32, and in its sequence
};

/// Rotary positions slowed for texts longer than those of the training before. A pair of elements
/// that turns around more than `high_factor` times in `positions` tokens is left alone, one that
/// turns less than `low_factor` times is slowed by `factor`, between them the two are mixed.
/// Llama 3.1, as transformers' rope_type "llama3".
struct RopeScaling {
  double factor = 0;  ///< 0: nothing is slowed
  double low_factor = 1;
  double high_factor = 4;
  double positions = 8192;
  /// By what the frequency of each pair is divided where a sample has up to `positions` tokens, and
  /// where it has more (Ding et al. 2024, arXiv:2402.13753); empty: by nothing.
  std::vector<double> short_divisors = {}, long_divisors = {};
  double amplitude = 1;  ///< times cosine and sine
  auto operator<=>(const RopeScaling&) const = default;
};

/// Shape and kind of an attention.
struct AttentionShape {
  std::int64_t batch = 0;  ///< samples
  std::int64_t heads = 0;  ///< query heads
  std::int64_t kv_heads =
      0;  ///< key and value heads; each serves heads / kv_heads query heads (arXiv:2305.13245)
  std::int64_t head_dim = 0;
  /// Rows of qkv: all queries, all keys, all values; or, interleaved, query, key, value of one head
  /// after the other (BLOOM; then kv_heads = heads).
  bool interleaved = false;
  bool causal = false;    ///< a token sees itself and earlier ones
  double rope_theta = 0;  ///< base of rotary positions (Su et al. 2021, arXiv:2104.09864; halves,
                          ///< as Qwen2 has them); 0: none
  RopeScaling rope_scaling = {};
  std::int64_t rotary = 0;  ///< so many first elements of a head turn; 0: all
  /// Linear biases (Press et al. 2022, arXiv:2108.12409, sec. 3) with the slopes of the head count;
  /// causal only.
  bool alibi = false;
  /// A token sees itself and window - 1 earlier ones (Beltagy et al. 2020, arXiv:2004.05150); 0:
  /// all; causal only.
  std::int64_t window = 0;
  double scale = 0;    ///< of the scores; 0: 1/sqrt(head_dim)
  double softcap = 0;  ///< the largest score c: softmax of c tanh(scaled score / c); 0: none
                       ///< (Gemma Team 2024, arXiv:2408.00118, sec. 2)
  std::int64_t first_head = 0;   ///< of these query heads in the model
  std::int64_t model_heads = 0;  ///< of the model, whose slopes they have; 0: these are all
  [[nodiscard]] std::int64_t turning() const { return rotary > 0 ? rotary : head_dim; }
  [[nodiscard]] double score_scale() const {
    return scale > 0 ? scale : 1 / std::sqrt(static_cast<double>(head_dim));
  }
  [[nodiscard]] std::int64_t slopes_of() const { return model_heads > 0 ? model_heads : heads; }
  [[nodiscard]] std::int64_t width() const { return heads * head_dim; }
  [[nodiscard]] std::int64_t qkv_width() const { return (heads + 2 * kv_heads) * head_dim; }
};

/// RMS norm of each query and key head of qkv [M, qkv_width], not interleaved: weights [head_dim].
/// Works in place, so the caller must not read qkv again. Saves queries and keys. Henry et al.
/// 2020, arXiv:2010.04245, with the norm of Zhang & Sennrich.
[[nodiscard]] at::Tensor norm_query_key(const at::Tensor& qkv, const AttentionShape& shape,
                                        Parameter& query_weight, Parameter& key_weight, double eps,
                                        RmsWeight hold = RmsWeight::factor);
/// Bytes that it keeps for backward, for `rows` rows.
[[nodiscard]] std::int64_t norm_query_key_saved_bytes(const AttentionShape& shape,
                                                      std::int64_t rows, int element_bytes);

/// Softmax attention within each sequence. qkv [B * T, qkv_width] -> [B * T, width]. May overwrite
/// qkv (rotary positions are applied in place), so the caller must not read it again. bf16/fp16 on
/// a GPU: cuDNN, packed sequences flash, short ones without a mask our own kernels; fp32 on a GPU:
/// memory-efficient attention; CPU: ATen; soft caps anywhere: products, some queries at a time.
[[nodiscard]] at::Tensor attention(const at::Tensor& qkv, const AttentionShape& shape,
                                   const Sequences& sequences = {});

/// Width of the heads that a GPU's kernel sees: wider than head_dim where linear biases stand in
/// them (16-bit types).
[[nodiscard]] std::int64_t attention_head_width(const AttentionShape& shape, int element_bytes);
/// Elements of a head that attention takes on a GPU with these limits. Flash attention, which has
/// the wide heads of 16-bit types, has a widest one.
[[nodiscard]] TakenSizes attention_head_dims(const AttentionShape& shape, int element_bytes,
                                             const GpuLimits& limits);
/// Whether attention of samples of so many tokens, in heads of `width`, runs by our own kernels
/// (short_attention.h): 16-bit types on a GPU, without packed sequences.
[[nodiscard]] bool attends_by_own_kernels(const AttentionShape& shape, std::int64_t tokens,
                                          std::int64_t width);
/// Bytes of scores, and of what is made of them, that attention with soft caps holds at once, for
/// `batch` samples of `tokens` tokens; of others 0.
[[nodiscard]] std::int64_t attention_score_bytes(const AttentionShape& shape, std::int64_t batch,
                                                 std::int64_t tokens, int compute_bytes);
/// Bytes that attention keeps for backward, for `rows` rows: qkv, its output, a log-sum-exp per row
/// and head, and of wider heads the output that the kernel made.
[[nodiscard]] std::int64_t attention_saved_bytes(const AttentionShape& shape, std::int64_t rows,
                                                 int element_bytes);

/// Backward of attention runs so many equal groups of heads one after the other, so that what a
/// library adds up in fp32 and returns apart does not grow with `rows`. 1 where that is little, and
/// for heads of our own kernels or with linear biases.
[[nodiscard]] std::int64_t attention_head_groups(const AttentionShape& shape, std::int64_t rows);

/// Patches along a side of the images for which positions were made, and of those that come. Where
/// they differ, the positions of patches are interpolated bicubically in fp32, as ATen's
/// upsample_bicubic2d does without aligned corners.
struct PositionGrid {
  std::int64_t from = 0, to = 0;
  [[nodiscard]] bool resizes() const { return from != to; }
};

/// Puts F tokens that all samples share before the N patches of each and adds positions: patches
/// [B * N, D], first_tokens of F * D elements or null, positions of (F + P) * D elements, where P
/// is N or grid.from^2 -> [B * (F + N), D]. Dosovitskiy et al. 2021, arXiv:2010.11929, eq. 1.
[[nodiscard]] at::Tensor embed_sequence(const at::Tensor& patches, std::int64_t batch,
                                        Parameter* first_tokens, Parameter& positions,
                                        const PositionGrid& grid = {});

/// Row 0 of each sample: x [B * T, D] -> [B, D].
[[nodiscard]] at::Tensor first_token(const at::Tensor& x, std::int64_t batch);

/// The mean over the rows of each sample from row `first` on: x [B * T, D] -> [B, D]; with
/// `row_too` row 0 before it -> [B, 2 D]. Sums in fp32.
[[nodiscard]] at::Tensor mean_token(const at::Tensor& x, std::int64_t batch, std::int64_t first,
                                    bool row_too = false);

/// What samples that were mixed with others are as well (mixup, cutmix).
struct SecondLabels {
  at::Tensor labels = {};  ///< [B] int64; undefined: samples have one label
  at::Tensor shares = {};  ///< [B] fp32 in [0, 1], of the first label; the second has the rest
};

/// Sum over samples of weight * cross entropy with label smoothing (Szegedy et al. 2016,
/// arXiv:1512.00567, sec. 7), fp32 scalar. logits [B, classes]; labels [B] int64; weights [B] fp32.
/// Adds [loss, top-1, top-5, samples] to `totals` (a sample counts as top-k when fewer than k
/// classes score higher; ties broken by the lower index). With second labels the loss of a sample
/// is that of both labels by their shares, and the first one counts as right.
[[nodiscard]] at::Tensor softmax_cross_entropy(const at::Tensor& logits, const at::Tensor& labels,
                                               const at::Tensor& weights, double label_smoothing,
                                               const at::Tensor& totals,
                                               const SecondLabels& second = {});

/// How many rows of logits are held at once: up to 4096 in 1.25 GiB, or 8192 in 4 GiB, so that the
/// gradient of the table is read and written less often.
enum class LogitRows { few, many };

/// Cross entropy of the tokens that follow: sum over rows of weight * -log softmax(x
/// table^T)[label], fp32 scalar, in chunks of rows so that the logits are never whole. x [M, D],
/// table [V, D], labels [M] int64, weights [M] fp32. Adds [loss, top-1, 0, targets] to `totals`.
/// While gradients are recorded nothing is computed here: the scalar is only where backward starts,
/// and backward computes loss (into `totals`), gradient of x and of `table` chunk by chunk from the
/// same logits. `softcap` as of attention's scores.
[[nodiscard]] at::Tensor linear_cross_entropy(const at::Tensor& x_MD, Parameter& table,
                                              const at::Tensor& labels, const at::Tensor& weights,
                                              const at::Tensor& totals,
                                              LogitRows at_once = LogitRows::few,
                                              double softcap = 0);
/// Bytes of logits that it holds at once on a GPU in training, twice as many where they are
/// `capped`, and of sums of x's gradient beside them; without gradients 256 MiB at most.
[[nodiscard]] std::int64_t linear_cross_entropy_bytes(std::int64_t rows, std::int64_t width,
                                                      std::int64_t classes, int element_bytes,
                                                      LogitRows at_once = LogitRows::few,
                                                      bool capped = false);

}  // namespace dstrain::ops
