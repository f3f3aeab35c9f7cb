#include <ATen/ops/empty.h>

#include <algorithm>
#include <optional>

#include "engine/kernels/kernels.h"
#include "engine/kernels/ops.h"
#include "test/gpu/compare.h"
#include "test/kernels/reference/reference.h"
#include "test/kernels/tensors.h"

/// RMS norm, and layer norm over widths of language models.
namespace dstrain {
namespace {

using namespace test;

at::Tensor partials(const RowsSize& s, std::int64_t sums) {
  return at::empty({kernels::norm_partials(s.rows), sums, s.dim},
                   at::TensorOptions(at::kCUDA).dtype(at::kFloat));
}

TEST_CASE("GPU: RMS norm equals its reference", "[gpu][kernels]") {
  const auto type = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  const RowsSize s =
      GENERATE(RowsSize{1, 8}, RowsSize{7, 264}, RowsSize{9, 768}, RowsSize{4001, 896},
               RowsSize{300, 1032}, RowsSize{601, 1536}, RowsSize{2200, 2048}, RowsSize{33, 3072},
               RowsSize{301, 3584}, RowsSize{7, 4096}, RowsSize{40, 6136}, RowsSize{267, 8192});
  const bool residual = GENERATE(false, true), frozen = GENERATE(false, true);
  CAPTURE(c10::toString(type), s.rows, s.dim, residual, frozen);
  test::Random random(1);
  const at::Tensor partial = partials(s, 1);
  const at::Tensor x = random({s.rows, s.dim}, type), weight = random({s.dim}, type);
  compare(
      {x, random({s.rows, s.dim}, type), weight, x, x, at::empty({s.rows})}, 3, s.dim,
      [&](const Tensors& t) {
        return kernels::AddRmsNorm{.x = in(t[0]),
                                   .delta = residual ? in(t[1]) : nullptr,
                                   .weight = in(t[2]),
                                   .sum = residual ? out(t[3]) : nullptr,
                                   .y = out(t[4]),
                                   .rstd = fp32(t[5]),
                                   .rows = s.rows,
                                   .dim = s.dim,
                                   .eps = 1e-6f,
                                   .dtype = ops::kernel_dtype(t[0])};
      },
      kernels::cuda::add_rms_norm, kernels::reference::add_rms_norm);
  const at::Tensor rstd = (x.to(at::kFloat).pow(2).mean(1) + 1e-6).rsqrt();
  compare(
      {x, weight, random({s.rows, s.dim}, type), random({s.rows, s.dim}, type), rstd, x,
       random({s.dim})},
      5, std::max(s.rows, s.dim),
      [&](const Tensors& t) {
        return kernels::AddRmsNormBackward{.sum = in(t[0]),
                                           .weight = in(t[1]),
                                           .grad_y = in(t[2]),
                                           .grad_sum = residual ? in(t[3]) : nullptr,
                                           .rstd = fp32(t[4]),
                                           .grad_x = out(t[5]),
                                           .grad_weight = frozen ? nullptr : fp32(t[6]),
                                           .partial = frozen ? nullptr : fp32(partial),
                                           .rows = s.rows,
                                           .dim = s.dim,
                                           .dtype = ops::kernel_dtype(t[0])};
      },
      kernels::cuda::add_rms_norm_backward, kernels::reference::add_rms_norm_backward);
}

TEST_CASE("GPU: layer norm equals its reference up to 8192 elements", "[gpu][kernels]") {
  const auto type = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  const RowsSize s = GENERATE(RowsSize{1, 8}, RowsSize{4001, 1024}, RowsSize{300, 1536},
                              RowsSize{2200, 2048}, RowsSize{301, 2560}, RowsSize{33, 3584},
                              RowsSize{540, 4096}, RowsSize{7, 6136}, RowsSize{267, 8192});
  const bool residual = GENERATE(false, true), frozen = GENERATE(false, true);
  CAPTURE(c10::toString(type), s.rows, s.dim, residual, frozen);
  test::Random random(2);
  const at::Tensor partial = partials(s, 2);
  const at::Tensor x = random({s.rows, s.dim}, type), weight = random({s.dim}, type);
  const at::Tensor wide = x.to(at::kFloat), mean = wide.mean(1),
                   rstd = (wide.var(1, false) + 1e-6).rsqrt();
  compare(
      {x, random({s.rows, s.dim}, type), weight, random({s.dim}, type), x, x, mean, rstd}, 4, s.dim,
      [&](const Tensors& t) {
        return kernels::AddLayerNorm{.x = in(t[0]),
                                     .delta = residual ? in(t[1]) : nullptr,
                                     .weight = in(t[2]),
                                     .bias = in(t[3]),
                                     .sum = residual ? out(t[4]) : nullptr,
                                     .y = out(t[5]),
                                     .mean = fp32(t[6]),
                                     .rstd = fp32(t[7]),
                                     .rows = s.rows,
                                     .dim = s.dim,
                                     .eps = 1e-6f,
                                     .dtype = ops::kernel_dtype(t[0])};
      },
      kernels::cuda::add_layer_norm, kernels::reference::add_layer_norm);
  compare(
      {x, weight, random({s.rows, s.dim}, type), random({s.rows, s.dim}, type), mean, rstd, x,
       random({s.dim}), random({s.dim})},
      6, std::max(s.rows, s.dim),
      [&](const Tensors& t) {
        return kernels::AddLayerNormBackward{.sum = in(t[0]),
                                             .weight = in(t[1]),
                                             .grad_y = in(t[2]),
                                             .grad_sum = residual ? in(t[3]) : nullptr,
                                             .mean = fp32(t[4]),
                                             .rstd = fp32(t[5]),
                                             .grad_x = out(t[6]),
                                             .grad_weight = frozen ? nullptr : fp32(t[7]),
                                             .grad_bias = frozen ? nullptr : fp32(t[8]),
                                             .partial = frozen ? nullptr : fp32(partial),
                                             .rows = s.rows,
                                             .dim = s.dim,
                                             .dtype = ops::kernel_dtype(t[0])};
      },
      kernels::cuda::add_layer_norm_backward, kernels::reference::add_layer_norm_backward);
}

TEST_CASE("GPU: the norms' operators equal those on the CPU, frozen weights included",
          "[gpu][kernels]") {
  const auto type = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  const bool train_weight = GENERATE(false, true), train_bias = GENERATE(false, true);
  CAPTURE(c10::toString(type), train_weight, train_bias);
  const std::int64_t rows = 37, dim = 896;
  const auto run = [&](at::Device device) {
    test::Random random(3);
    const at::Tensor x = leaf(random({rows, dim}, type).to(device));
    Tensors results;
    const auto parameter = [&](bool trainable) {
      Parameter made = random.parameter({dim}, type);
      made.trainable = trainable;
      made.value = made.value.to(device);
      made.gradient = trainable ? made.gradient.to(device) : at::Tensor();
      return made;
    };
    Parameter rms = parameter(train_weight), weight = parameter(train_weight),
              bias = parameter(train_bias);
    const auto [sum, y] = ops::add_rms_norm(x, x * 2, rms, 1e-6);
    const auto [total, z] = ops::add_layer_norm(sum, y, weight, bias, 1e-6);
    (total * 3 + z * z).sum().backward();
    results = {total, z, x.grad()};
    for (const Parameter* p : {&rms, &weight, &bias})
      if (p->trainable) results.push_back(p->gradient);
    return results;
  };
  const Tensors gpu = run(at::kCUDA), cpu = run(at::kCPU);
  for (std::size_t i = 0; i < gpu.size(); ++i) {
    CAPTURE(i);
    REQUIRE(far(gpu[i], cpu[i], type, 4096) == "");
  }
}

TEST_CASE("GPU: norms of query and key heads equal those on the CPU", "[gpu][kernels]") {
  const auto type = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  const std::int64_t rows = GENERATE(1, 37), head_dim = GENERATE(64, 128);
  CAPTURE(c10::toString(type), rows, head_dim);
  const ops::AttentionShape shape{.heads = 6, .kv_heads = 2, .head_dim = head_dim};
  const auto run = [&](at::Device device) {
    test::Random random(5);
    const at::Tensor x = leaf(random({rows, shape.qkv_width()}, type).to(device));
    const at::Tensor dy = random({rows, shape.qkv_width()}, type).to(device);
    const auto parameter = [&] {
      Parameter made = random.parameter({head_dim}, type);
      made.value = made.value.to(device);
      made.gradient = made.gradient.to(device);
      return made;
    };
    Parameter query = parameter(), key = parameter();
    const at::Tensor y = ops::norm_query_key(x * 1, shape, query, key, 1e-6);
    y.backward(dy);
    return Tensors{y, x.grad(), query.gradient, key.gradient};
  };
  const Tensors gpu = run(at::kCUDA), cpu = run(at::kCPU);
  for (std::size_t i = 0; i < gpu.size(); ++i) {
    CAPTURE(i);
    REQUIRE(far(gpu[i], cpu[i], type, 4096) == "");
  }
}

}  // namespace
}  // namespace dstrain
