#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <vector>

#include "engine/kernels/experts/experts.h"
#include "engine/kernels/kernels.h"
#include "test/gpu/compare.h"
#include "test/kernels/reference/reference.h"
#include "test/kernels/tensors.h"

namespace dstrain {
namespace {

using namespace test;

std::int32_t* int32(const at::Tensor& tensor) { return tensor.mutable_data_ptr<std::int32_t>(); }

TEST_CASE("GPU: the router equals its reference", "[gpu][kernels][experts]") {
  const auto type = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  const std::int64_t samples = 3, tokens = GENERATE(1, 255, 600);
  const std::int64_t experts = GENERATE(1, 8, 60, 128, 512), rows = samples * tokens;
  const std::int64_t chosen = std::min<std::int64_t>(experts, GENERATE(1, 4, 32));
  const bool normalize = GENERATE(false, true);
  CAPTURE(c10::toString(type), tokens, experts, chosen, normalize);
  test::Random random(1);
  const at::Tensor logits = random({rows, experts}, type);
  const at::Tensor choices = at::zeros({rows, chosen}, at::kInt),
                   weights = at::zeros({rows, chosen}), log_sum = at::zeros({rows});
  const auto route = [&](const Tensors& t) {
    return kernels::Route{.logits = in(t[0]),
                          .choices = int32(t[1]),
                          .weights = fp32(t[2]),
                          .log_sum = fp32(t[3]),
                          .rows = rows,
                          .experts = experts,
                          .chosen = chosen,
                          .normalize = normalize,
                          .dtype = ops::kernel_dtype(t[0])};
  };
  compare({logits, choices, weights, log_sum}, 1, experts, route, kernels::cuda::route,
          kernels::reference::route);
  const Tensors routed = {logits, choices, weights, log_sum};
  kernels::reference::route(route(routed));
  // The rows of a rank may begin in the middle of a sample, and miss some samples.
  const std::int64_t first_row = GENERATE(0, 1) * (tokens + tokens / 2), here = rows - first_row;
  const at::Tensor sums = at::zeros({2, samples, experts});
  // A part of each sample has every second one of 2 * tokens, and any of them may be padding.
  const bool part = GENERATE(false, true);
  const std::int64_t whole = part ? 2 * tokens : tokens;
  const at::Tensor lengths = at::tensor(
                       {static_cast<int>(whole), static_cast<int>(whole / 3 + 1), 0}, at::kInt),
                   places = at::arange(rows, at::kInt).flip(0) * 2;
  const auto places_of = [&](const at::Tensor& t) { return part ? int32(t) : nullptr; };
  const at::Tensor partial = at::empty({kernels::expert_sums_scratch(samples, tokens, experts)},
                                       at::TensorOptions(at::kCUDA));
  const auto sum = [&](const Tensors& t) {
    return kernels::ExpertSums{.logits = in(t[0]),
                               .log_sum = fp32(t[1]),
                               .choices = int32(t[2]),
                               .lengths = int32(t[3]),
                               .places = places_of(t[4]),
                               .sums = fp32(t[5]),
                               .partial = fp32(partial),
                               .rows = here,
                               .first_row = first_row,
                               .sample_rows = tokens,
                               .samples = samples,
                               .tokens = whole,
                               .experts = experts,
                               .chosen = chosen,
                               .dtype = ops::kernel_dtype(t[0])};
  };
  compare({logits, log_sum, choices, lengths, places, sums}, 5, rows, sum,
          kernels::cuda::expert_sums, kernels::reference::expert_sums);
  kernels::reference::expert_sums(sum({logits, log_sum, choices, lengths, places, sums}));
  const at::Tensor share = at::zeros({samples, experts}), loss_sum = at::full({1}, 0.5, at::kFloat);
  const auto shares = [&](const Tensors& t) {
    return kernels::ExpertShares{.sums = fp32(t[0]),
                                 .lengths = int32(t[1]),
                                 .share = fp32(t[2]),
                                 .loss_sum = fp32(t[3]),
                                 .factor = 0.25f,
                                 .samples = samples,
                                 .tokens = whole,
                                 .experts = experts};
  };
  compare({sums, lengths, share, loss_sum}, 2, rows, shares, kernels::cuda::expert_shares,
          kernels::reference::expert_shares);
  kernels::reference::expert_shares(shares({sums, lengths, share, loss_sum}));
  compare(
      {logits, choices, weights, log_sum, random({rows, chosen}), at::full({1}, 3.0, at::kFloat),
       share, lengths, places, at::zeros({rows, experts}, type)},
      9, experts,
      [&](const Tensors& t) {
        return kernels::RouteBackward{.logits = in(t[0]),
                                      .choices = int32(t[1]),
                                      .weights = fp32(t[2]),
                                      .log_sum = fp32(t[3]),
                                      .grad_weights = fp32(t[4]),
                                      .seed = fp32(t[5]),
                                      .share = fp32(t[6]),
                                      .lengths = int32(t[7]),
                                      .places = places_of(t[8]),
                                      .grad_logits = out(t[9]),
                                      .balance = 0.5f,
                                      .z = 0.1f,
                                      .rows = here,
                                      .first_row = first_row,
                                      .sample_rows = tokens,
                                      .tokens = whole,
                                      .experts = experts,
                                      .chosen = chosen,
                                      .normalize = normalize,
                                      .dtype = ops::kernel_dtype(t[0])};
      },
      kernels::cuda::route_backward, kernels::reference::route_backward);
}

}  // namespace
}  // namespace dstrain
