#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "engine/kernels/ops.h"
#include "engine/kernels/parameter.h"

namespace dstrain::ops {

/// What is learnt of a pair of answers; formulas: engine/kernels/README.md.
struct PairLoss {
  enum class Kind {
    none,   ///< there are no pairs
    dpo,    ///< Rafailov et al. 2023, arXiv:2305.18290, eq. 7, with label smoothing
    ipo,    ///< Azar et al. 2023, arXiv:2310.12036, eq. 17, of means over tokens
    simpo,  ///< Meng et al. 2024, arXiv:2405.14734, eq. 6
    orpo,   ///< Hong et al. 2024, arXiv:2403.07691, eq. 6 and 7
  };
  Kind kind = Kind::none;
  double beta = 0.1;
  double gamma = 0.5;
  double smoothing = 0;
};

/// Rows of pairs: M = B * T, the rows of pair b are [b * T, (b + 1) * T).
struct PairTargets {
  at::Tensor labels;   ///< [M] int64
  at::Tensor weights;  ///< [M] fp32: 1 where the label is of the chosen answer, -1 where it is of
                       ///< the rejected one, else 0; all 0 in a sample that only fills up
  at::Tensor references;  ///< [B, 2] fp32, log-probability of both answers in the reference
  double softcap = 0;     ///< of the logits, as of linear_cross_entropy
};

/// What linear_pair_loss adds to PairSums::figures, sums over pairs as TRL names their means:
/// rewards/chosen, rewards/rejected, logps/chosen, logps/rejected. Rewards are beta times the
/// log-probability, less that of the reference (dpo, ipo), or times its mean over tokens (simpo,
/// orpo), and so are logps.
inline constexpr int kPairFigures = 4;
/// Where sums of a micro-batch are added to.
struct PairSums {
  at::Tensor totals;   ///< [4] fp32: loss, pairs whose chosen answer has more reward, 0, pairs
  at::Tensor figures;  ///< [kPairFigures] fp32
};

/// Sum over pairs of their losses, fp32 scalar: as linear_cross_entropy nothing is computed while
/// gradients are recorded, and the logits are never whole. Backward goes through the rows twice:
/// for the log-probabilities of answers, and with the weights that these give each answer's rows
/// for the gradients.
[[nodiscard]] at::Tensor linear_pair_loss(const at::Tensor& x_MD, Parameter& table,
                                          const PairTargets& targets, const PairLoss& loss,
                                          const PairSums& sums, LogitRows at_once = LogitRows::few);

/// Log-probability of the chosen and of the rejected answer of each pair, [B, 2] fp32, with the
/// bits that linear_pair_loss finds in training. `references` is not read. No gradient.
[[nodiscard]] at::Tensor answer_log_probabilities(const at::Tensor& x_MD, const Parameter& table,
                                                  const PairTargets& targets,
                                                  LogitRows at_once = LogitRows::few);

}  // namespace dstrain::ops
