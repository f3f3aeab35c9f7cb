#include "engine/infer/sampler.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <limits>
#include <set>

#include "engine/base/philox.h"

namespace dstrain {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

at::Tensor penalised(const at::Tensor& logits, double penalty,
                     std::span<const std::span<const std::int64_t>> before) {
  at::Tensor scores = logits.clone();
  for (std::size_t row = 0; row < before.size(); ++row) {
    const std::set<std::int64_t> unique(before[row].begin(), before[row].end());
    if (unique.empty()) continue;
    const at::Tensor tokens =
        at::tensor(std::vector<std::int64_t>(unique.begin(), unique.end()), at::kLong)
            .to(scores.device());
    at::Tensor own = scores.select(0, static_cast<std::int64_t>(row));
    const at::Tensor found = own.index_select(0, tokens);
    own.index_copy_(0, tokens, at::where(found < 0, found * penalty, found / penalty));
  }
  return scores;
}

std::vector<std::int64_t> host_tokens(const at::Tensor& tokens) {
  const at::Tensor host = tokens.to(at::kCPU, at::kLong).contiguous();
  const auto* data = host.const_data_ptr<std::int64_t>();
  return {data, data + host.numel()};
}

/// Logarithms of the probabilities of `tokens` [rows, 1]. Not by log_softmax, which on a GPU gives
/// one row to one block.
at::Tensor logarithms_of(const at::Tensor& logits, const at::Tensor& tokens) {
  return logits.gather(1, tokens) - at::logsumexp(logits, {1}, /*keepdim=*/true);
}

}  // namespace

SortedScores allowed_scores(const at::Tensor& scores, const SamplingOptions& options) {
  auto [sorted, tokens] = at::sort(scores / options.temperature, /*dim=*/1, /*descending=*/true);
  const auto forbid = [&sorted](const at::Tensor& where) {
    sorted = sorted.masked_fill(where, kNever);
  };
  if (options.top_k > 0 && options.top_k < sorted.size(1))
    forbid(sorted < sorted.narrow(1, options.top_k - 1, 1));
  if (options.top_p < 1) {
    const at::Tensor likely = at::softmax(sorted, 1);
    at::Tensor enough = at::cumsum(likely, 1) - likely >= options.top_p;
    enough.select(1, 0).fill_(false);
    forbid(enough);
  }
  if (options.min_p > 0) {
    const at::Tensor likely = at::softmax(sorted, 1);
    forbid(likely < likely.narrow(1, 0, 1) * options.min_p);
  }
  return {sorted, tokens};
}

Chosen choose_tokens(const at::Tensor& own_logits, const SamplingOptions& options,
                     std::span<const std::span<const std::int64_t>> before,
                     std::span<const float> draws) {
  const at::Tensor logits = own_logits.to(at::kFloat);
  const at::Tensor scores = options.repetition_penalty == 1
                                ? logits
                                : penalised(logits, options.repetition_penalty, before);
  at::Tensor chosen;
  if (options.temperature == 0) {
    chosen = at::argmax(scores, 1, /*keepdim=*/true);
  } else {
    const SortedScores sorted = allowed_scores(scores, options);
    const at::Tensor sums = at::cumsum(at::softmax(sorted.scores, 1), 1);
    const at::Tensor wanted = at::tensor(draws, at::kFloat).to(sums.device()).unsqueeze(1) *
                              sums.narrow(1, sums.size(1) - 1, 1);
    const at::Tensor place = (sums <= wanted).sum(1, /*keepdim=*/true);
    // Rounding may leave the last sum below the number that was drawn.
    const at::Tensor last = (sorted.scores > kNever).sum(1, /*keepdim=*/true) - 1;
    chosen = sorted.tokens.gather(1, at::where(place < last, place, last));
  }
  const at::Tensor found = logarithms_of(logits, chosen).cpu();
  const float* data = found.const_data_ptr<float>();
  return {.tokens = host_tokens(chosen), .log_probabilities = {data, data + found.numel()}};
}

float draw_for(std::uint64_t seed, std::uint64_t prompt, std::uint32_t sample,
               std::uint32_t token) {
  const Philox random = Philox::at(seed, prompt, std::uint64_t{sample} << 32 | token);
  // 24 bits, so that the number is exact in fp32 and below 1.
  return (static_cast<float>(random.word[0] >> 8) + 0.5F) * 0x1p-24F;
}

}  // namespace dstrain
