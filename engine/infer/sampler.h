#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

namespace dstrain {

/// How the next token is chosen. The steps and their order are those of transformers 4.57:
/// repetition penalty, temperature, top-k, top-p, min-p.
struct SamplingOptions {
  double temperature = 0;  ///< 0: the most likely token
  int top_k = 0;           ///< only so many tokens; 0: all
  double top_p = 1;        ///< the fewest whose probabilities reach this sum
  double min_p = 0;        ///< those above this share of the largest probability
  /// Scores of tokens that came already are divided by it, negative ones multiplied. Keskar et al.
  /// 2019, arXiv:1909.05858, sec. 4.1.
  double repetition_penalty = 1;
};

struct Chosen {
  std::vector<std::int64_t> tokens;
  std::vector<float> log_probabilities;  ///< of the model, before any of the options
};

/// A token for each row of `logits` [rows, vocabulary]. `before`: the tokens of each row so
/// far. `draws`: a number in (0, 1) for each row, by which the sorted distribution is inverted.
[[nodiscard]] Chosen choose_tokens(const at::Tensor& logits, const SamplingOptions& options,
                                   std::span<const std::span<const std::int64_t>> before,
                                   std::span<const float> draws);

/// Scores [rows, vocabulary] sorted down, those that no option allows -inf, and the tokens that
/// they belong to. For temperatures above 0.
struct SortedScores {
  at::Tensor scores, tokens;
};
[[nodiscard]] SortedScores allowed_scores(const at::Tensor& scores, const SamplingOptions& options);

/// The number that decides one token: a pure function of these.
[[nodiscard]] float draw_for(std::uint64_t seed, std::uint64_t prompt, std::uint32_t sample,
                             std::uint32_t token);

}  // namespace dstrain
