#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/gpu_limits.h"
#include "engine/kernels/attention/cached_attention.h"
#include "engine/kernels/loss/ops_linear_preference.h"
#include "engine/kernels/ops.h"
#include "engine/kernels/parameter.h"
#include "engine/program/comm.h"
#include "engine/program/cost.h"

namespace dstrain {

struct BlockState;
class Communicator;
class Linear;

using Tensors = std::vector<at::Tensor>;

/// One micro-batch as the model sees it. Its size never changes: a partial batch is filled up with
/// samples of weight 0, which add nothing to loss, gradients or counters. A batch has either images
/// or tokens.
///
/// Legend: B samples, T tokens of a sample (padded at the end), S sequences after unpacking.
struct Batch {
  at::Tensor images = {};         ///< [B, C, H, W], compute dtype, normalised; of clips, frame by
                                  ///< frame, [B * T, C, H, W]
  at::Tensor tokens = {};         ///< [B, T] int64
  at::Tensor labels = {};         ///< [B] int64; of text [B * T]: the token that follows each one
  at::Tensor weights = {};        ///< [B] or [B * T] fp32: 1 where the label counts, else 0; of
                                  ///< pairs -1 in the rejected answer
  at::Tensor references = {};     ///< of pairs, [B, 2] fp32: ops::PairTargets
  ops::SecondLabels second = {};  ///< of images that are mixed with others
  ops::Sequences sequences = {};  ///< of text: where sequences begin
  /// Text whose samples are spread over the sequence axis, in s parts each: the rows that are
  /// here; then tokens, labels and weights are of B * T / s rows, `sequences` of all.
  ops::OwnRows own = {};
  /// Text's [B] int32: tokens of each sample without those that fill it up at its end; of a
  /// filler 0. Undefined: all are tokens.
  at::Tensor lengths = {};
  /// [] int32: samples that are no fillers; these stand last and must not enter any statistic.
  /// Undefined: all are samples.
  at::Tensor valid = {};
};

/// Sums over the targets seen so far, on the device: [loss, top-1 correct, top-5 correct, targets,
/// balance loss], fp32. A target is a sample with a label, a labelled token or a pair; language
/// models leave top-5 at 0, and of pairs a better chosen answer is correct. The balance loss is a
/// sum over samples, in training, and a mean over the layers with experts; others leave it at 0.
inline constexpr int kNumTotals = 5;
inline constexpr int kBalanceTotal = 4;

/// Why a forward runs.
enum class Mode {
  train,      ///< of a training step, for the first time
  recompute,  ///< again for a step that has run it before, with the same result
  evaluate,
  generate,
};

/// Communicators by axes; null where there is one rank along them.
class Peers {
 public:
  [[nodiscard]] Communicator* along(CommAxis axis) const { return by_axes_[axis.axes().bits()]; }
  /// `axis` stands for all ranks along its axes.
  void set(CommAxis axis, Communicator* ranks) { by_axes_[axis.axes().bits()] = ranks; }

 private:
  std::array<Communicator*, kNumAxisSets> by_axes_{};
};

/// What blocks need beside their input. The samples that count are Batch::valid.
struct BlockContext {
  Mode mode = Mode::train;
  double label_smoothing = 0;
  /// [] int64 of this micro-batch, the same when it is computed again; undefined: nothing is
  /// dropped. On the device, as it differs from step to step while the work does not.
  at::Tensor dropout_seed = {};
  /// [kNumTotals] fp32, added to.
  at::Tensor totals = {};
  /// Samples are pairs of answers, unless its kind is none.
  ops::PairLoss pair_loss = {};
  /// [ops::kPairFigures] fp32, added to; undefined where there are no pairs.
  at::Tensor pair_figures = {};
  /// Evaluation of pairs: [B, 2] fp32, what the head writes the log-probabilities of the answers
  /// to, and no loss; undefined: nobody asks.
  at::Tensor answer_logps = {};
  /// [] fp32, gradient of a loss that is a mean over the samples of the global batch, for its sum
  /// over them; undefined: there are no such losses.
  at::Tensor sample_seed = {};
  /// Generation: [B] int64, position of the last token of each sample on entry, the most likely
  /// next token on return; undefined otherwise.
  at::Tensor next_tokens = {};
  /// Evaluation of images: what the head writes its scores of the classes to, [B, classes] fp32;
  /// undefined: nobody asks.
  at::Tensor class_scores = {};
  /// Mode::generate of a model that keeps what it has read: where the rows go. Else null.
  const ops::CachedRows* cached = nullptr;
  /// Outputs of activation functions are saved, and so on (ProgramOptions::keep_hidden).
  bool keep_hidden = false;
  /// Peers on the axes that exchanges of the model's blocks name; calls run on the current stream.
  Peers peers = {};
};

/// What a layer keeps of each token when it writes (ops::KeyValues), on this rank.
struct KeyValueShape {
  std::int64_t heads = 0, head_dim = 0;
};

struct BatchShape {
  std::int64_t micro_batch = 0;
  int compute_bytes = 2;          ///< bytes per element of activations
  GpuLimits limits = kCpuLimits;  ///< of the device that takes it
};

/// A model is a list of blocks: stem, layers, head. The executor runs them one by one; autograd
/// lives inside one block only, so that parameters can come and go between blocks.
class Block {
 public:
  virtual ~Block() = default;

  [[nodiscard]] virtual const std::string& name() const = 0;
  /// All that the block reads. A weight that an earlier block has listed too is shared with it (a
  /// tied head).
  [[nodiscard]] virtual std::vector<Parameter*> parameters() = 0;
  /// Its untrained tensors; the same objects at every call.
  [[nodiscard]] virtual std::vector<BlockState*> state() { return {}; }
  /// Linear maps that low-rank adapters may be added to.
  [[nodiscard]] virtual std::vector<Linear*> linears() { return {}; }
  /// Nothing where its output for a token depends on that token alone.
  [[nodiscard]] virtual std::optional<KeyValueShape> key_values() const { return std::nullopt; }
  /// `input` is what the block before returned (empty for the stem). The last block returns one
  /// scalar: the weighted sum of the samples' losses, fp32.
  [[nodiscard]] virtual Tensors forward(const Tensors& input, const Batch& batch,
                                        const BlockContext& context) = 0;
  /// Runs products whose size differs from call to call once in each way that they may take, in
  /// `compute`'s dtype on its device, with gradients of weights in `gradients`: on a GPU the first
  /// time may wait for the whole device.
  virtual void rehearse(const BatchShape& /*shape*/, const at::TensorOptions& /*compute*/,
                        at::ScalarType /*gradients*/) {}
  /// Cost of one micro-batch; `groups` and `state_bytes` are left to the caller.
  [[nodiscard]] virtual BlockCost cost(const BatchShape& shape) = 0;
};

using Blocks = std::vector<std::unique_ptr<Block>>;

}  // namespace dstrain
