#include "engine/kernels/experts/experts.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <vector>

#include "engine/kernels/kernels.h"
#include "test/gpu/compare.h"
#include "test/kernels/reference/reference.h"
#include "test/kernels/tensors.h"

namespace dstrain {
namespace {

using namespace test;

std::int32_t* int32(const at::Tensor& tensor) { return tensor.mutable_data_ptr<std::int32_t>(); }

/// Choices of a batch: all sorts, or all of one expert.
at::Tensor make_choices(test::Random& random, bool same, std::int64_t number,
                        std::int64_t experts) {
  if (same) return at::full({number}, experts / 2, at::kInt);
  return (random({number}).abs() * 1e6).to(at::kLong).remainder(experts).to(at::kInt);
}

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

TEST_CASE("GPU: choices are sorted by expert as the reference sorts them",
          "[gpu][kernels][experts]") {
  const std::int64_t number = GENERATE(0, 1, 31, 512, 513, 20'000);
  const std::int64_t experts = GENERATE(1, 8, 60, 512);
  const bool same = GENERATE(false, true);
  CAPTURE(number, experts, same);
  test::Random random(2);
  const at::Tensor choices = make_choices(random, same, number, experts),
                   place = at::zeros({number}, at::kInt), counts = at::zeros({experts}, at::kInt);
  const at::Tensor scratch = at::empty({kernels::sort_by_expert_scratch(number, experts)},
                                       at::TensorOptions(at::kCUDA).dtype(at::kInt));
  const auto sort = [&](const at::Tensor& from, const at::Tensor& to, const at::Tensor& sums) {
    return kernels::SortByExpert{.choices = int32(from),
                                 .place = int32(to),
                                 .counts = int32(sums),
                                 .scratch = int32(scratch),
                                 .choices_count = number,
                                 .experts = experts};
  };
  kernels::reference::sort_by_expert(sort(choices, place, counts));
  const at::Tensor on_gpu = choices.to(at::kCUDA), gpu_place = place.to(at::kCUDA).zero_(),
                   gpu_counts = counts.to(at::kCUDA).zero_();
  kernels::cuda::sort_by_expert(sort(on_gpu, gpu_place, gpu_counts), ops::current_stream());
  CHECK(gpu_place.cpu().equal(place));
  CHECK(gpu_counts.cpu().equal(counts));
}

TEST_CASE("GPU: rows of several ranks are placed by expert as the reference places them",
          "[gpu][kernels][experts]") {
  const std::int64_t ranks = GENERATE(1, 2, 8), experts = GENERATE(1, 4, 64, 300);
  const int most = GENERATE(0, 1, 700);
  CAPTURE(ranks, experts, most);
  test::Random random(7);
  const at::Tensor counts =
      (random({ranks * experts}).abs() * 1e6).to(at::kLong).remainder(most + 1).to(at::kInt);
  const auto rows = counts.sum().item<std::int64_t>();
  CHECK(ops::place_by_expert(counts.to(at::kCUDA), experts, rows)
            .cpu()
            .equal(ops::place_by_expert(counts, experts, rows)));
}

TEST_CASE("GPU: rows by expert and their sums equal their references", "[gpu][kernels][experts]") {
  const auto type = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  const std::int64_t rows = GENERATE(1, 9, 300), chosen = GENERATE(1, 2, 8),
                     dim = GENERATE(8, 264, 2048);
  const bool has_shared = GENERATE(false, true);
  CAPTURE(c10::toString(type), rows, chosen, dim, has_shared);
  test::Random random(3);
  const at::Tensor place = at::randperm(rows * chosen, at::kLong).to(at::kInt),
                   x = random({rows, dim}, type), y = random({rows * chosen, dim}, type),
                   weights = random({rows, chosen}), shared = random({rows, dim}, type),
                   gate = random({rows}, type), dy = random({rows, dim}, type);
  compare(
      {x, place, at::zeros_like(y)}, 2, 1,
      [&](const Tensors& t) {
        return kernels::SpreadRows{.x = in(t[0]),
                                   .place = int32(t[1]),
                                   .out = out(t[2]),
                                   .rows = rows,
                                   .chosen = chosen,
                                   .dim = dim,
                                   .dtype = ops::kernel_dtype(t[0])};
      },
      kernels::cuda::spread_rows, kernels::reference::spread_rows);
  for (const bool weighted : {false, true}) {
    compare(
        {y, place, weights, shared, gate, at::zeros_like(x)}, 5, chosen,
        [&](const Tensors& t) {
          return kernels::CombineRows{.y = in(t[0]),
                                      .place = int32(t[1]),
                                      .weights = weighted ? fp32(t[2]) : nullptr,
                                      .shared = has_shared ? in(t[3]) : nullptr,
                                      .gate = in(t[4]),
                                      .out = out(t[5]),
                                      .rows = rows,
                                      .chosen = chosen,
                                      .dim = dim,
                                      .dtype = ops::kernel_dtype(t[0])};
        },
        kernels::cuda::combine_rows, kernels::reference::combine_rows);
  }
  compare(
      {y, place, weights, shared, gate, dy, at::zeros_like(y), at::zeros_like(weights),
       at::zeros_like(shared), at::zeros_like(gate)},
      6, dim,
      [&](const Tensors& t) {
        return kernels::CombineRowsBackward{.y = in(t[0]),
                                            .place = int32(t[1]),
                                            .weights = fp32(t[2]),
                                            .shared = has_shared ? in(t[3]) : nullptr,
                                            .gate = in(t[4]),
                                            .grad_out = in(t[5]),
                                            .grad_y = out(t[6]),
                                            .grad_weights = fp32(t[7]),
                                            .grad_shared = has_shared ? out(t[8]) : nullptr,
                                            .grad_gate = has_shared ? out(t[9]) : nullptr,
                                            .rows = rows,
                                            .chosen = chosen,
                                            .dim = dim,
                                            .dtype = ops::kernel_dtype(t[0])};
      },
      kernels::cuda::combine_rows_backward, kernels::reference::combine_rows_backward);
}

TEST_CASE("GPU: a mixture of experts equals that on the CPU", "[gpu][kernels][experts]") {
  constexpr std::int64_t kExperts = 5, kChosen = 2, kWidth = 64, kHidden = 32;
  const auto type = GENERATE(from_range(with_products({at::kFloat, at::kBFloat16})));
  const std::int64_t rows = GENERATE(1, 70, 1000);
  const bool same = GENERATE(false, true);
  CAPTURE(c10::toString(type), rows, same);
  const auto results = [&](at::Device device) -> Tensors {
    test::Random random(4);
    Parameter gate_up = random.parameter({kExperts * 2 * kHidden, kWidth}, type),
              down = random.parameter({kExperts * kWidth, kHidden}, type);
    for (Parameter* p : {&gate_up, &down}) {
      p->value = p->value.to(device);
      p->gradient = at::full_like(p->value, 9, at::kFloat);
      p->gradient_state = GradientState::empty;
    }
    const at::Tensor x = test::leaf(random({rows, kWidth}, type).to(device)),
                     weights = test::leaf(random({rows, kChosen}).abs().to(device)),
                     shared = test::leaf(random({rows, kWidth}, type).to(device)),
                     gate = test::leaf(random({rows, 1}, type).to(device)),
                     dy = random({rows, kWidth}, type).to(device);
    const at::Tensor choices =
        make_choices(random, same, rows * kChosen, kExperts).view({rows, kChosen}).to(device);
    const ops::ExpertOrder order = ops::sort_by_expert(choices, kExperts);
    const at::Tensor counts = order.counts.cpu().to(at::kLong);
    const std::vector<std::int64_t> numbers(counts.const_data_ptr<std::int64_t>(),
                                            counts.const_data_ptr<std::int64_t>() + kExperts);
    const at::Tensor y = ops::combine_rows(
        ops::expert_mlps(ops::spread_rows(x, order.place), numbers, gate_up, down), order.place,
        weights, shared, gate);
    y.backward(dy);
    return {y,           x.grad(),         weights.grad(), shared.grad(),
            gate.grad(), gate_up.gradient, down.gradient};
  };
  const Tensors gpu = results(at::kCUDA), cpu = results(at::kCPU);
  for (std::size_t i = 0; i < gpu.size(); ++i) {
    CAPTURE(i);
    CHECK(far(gpu[i], cpu[i], type, std::max<std::int64_t>(rows, kWidth)) == "");
  }
}

}  // namespace
}  // namespace dstrain
