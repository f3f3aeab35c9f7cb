#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/zeros.h>

#include <optional>

#include "engine/kernels/kernels.h"
#include "engine/kernels/ops.h"
#include "test/kernels/bounds.h"
#include "test/kernels/reference/reference.h"
#include "test/kernels/tensors.h"
#include "test/support/catch.h"

namespace dstrain {
namespace {

using test::Bounded;
using test::exact;
using test::far;
using test::leaf;

constexpr double kEps = 1e-6;

/// As transformers' Qwen2RMSNorm computes: statistics in fp32, the weight after rounding.
at::Tensor transformers_norm(const at::Tensor& x, const at::Tensor& weight) {
  const at::Tensor wide = x.scalar_type() == at::kDouble ? x : x.to(at::kFloat);
  const at::Tensor variance = wide.pow(2).mean(-1, true);
  return weight * (wide * at::rsqrt(variance + kEps)).to(x.scalar_type());
}

TEST_CASE("add_rms_norm is transformers' Qwen2RMSNorm of the sum, bit for bit", "[kernels]") {
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  const std::int64_t dim = GENERATE(8, 40, 896);
  CAPTURE(c10::toString(dtype), dim);
  test::Random random(1);
  const at::Tensor x = random({23, dim}, dtype), delta = random({23, dim}, dtype);
  Parameter weight = random.parameter({dim}, dtype);
  const auto [sum, y] = ops::add_rms_norm(x, delta, weight, kEps);
  REQUIRE(sum.equal(x + delta));
  REQUIRE(y.equal(transformers_norm(x + delta, weight.value)));
  const auto [same, alone] = ops::add_rms_norm(x, std::nullopt, weight, kEps);
  REQUIRE(same.equal(x));
  REQUIRE(alone.equal(transformers_norm(x, weight.value)));
}

TEST_CASE("add_rms_norm's gradients are those of the formula, residual included", "[kernels]") {
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  const bool with_delta = GENERATE(false, true);
  CAPTURE(c10::toString(dtype), with_delta);
  test::Random random(2);
  const std::int64_t rows = 23, dim = 40;
  const at::Tensor x = leaf(random({rows, dim}, dtype)), delta = leaf(random({rows, dim}, dtype));
  const at::Tensor dsum = random({rows, dim}, dtype), dy = random({rows, dim}, dtype);
  Parameter weight = random.parameter({dim}, dtype);
  const at::Tensor x64 = exact(x), delta64 = exact(delta), weight64 = exact(weight.value);

  const auto step = [&] {
    const auto [sum, y] =
        ops::add_rms_norm(x, with_delta ? std::optional(delta) : std::nullopt, weight, kEps);
    ((sum * dsum).sum() + (y * dy).sum()).backward();
  };
  step();
  const at::Tensor sum64 = with_delta ? x64 + delta64 : x64;
  const at::Tensor y64 = transformers_norm(sum64, weight64);
  ((sum64 * dsum.to(at::kDouble)).sum() + (y64 * dy.to(at::kDouble)).sum()).backward();
  const Bounded exact_sum = with_delta ? rounded(Bounded(x) + delta, dtype) : Bounded(x);
  const test::NormBounds norm = test::rms_norm(exact_sum, weight.value, kEps, dy, dtype);
  const Bounded dx = rounded(norm.dx + dsum, dtype);
  REQUIRE(far(x.grad(), x64.grad(), dx) == "");
  if (with_delta) REQUIRE(far(delta.grad(), delta64.grad(), dx) == "");
  REQUIRE(far(weight.gradient, weight64.grad(), norm.dweight) == "");

  step();  // gradients add up
  REQUIRE(far(weight.gradient, weight64.grad() * 2, norm.dweight + norm.dweight) == "");
  weight.gradient.fill_(1e30);  // until the buffer is said to hold nothing
  weight.gradient_state = GradientState::empty;
  step();
  REQUIRE(far(weight.gradient, weight64.grad(), norm.dweight) == "");
  REQUIRE(weight.gradient_state == GradientState::added);
}

TEST_CASE("add_rms_norm works when only one of its results is used", "[kernels]") {
  test::Random random(3);
  const at::Tensor x = leaf(random({4, 16})), x64 = exact(x);
  Parameter weight = random.parameter({16}, at::kFloat);
  const at::Tensor dy = random({4, 16});
  ops::add_rms_norm(x, std::nullopt, weight, kEps).second.backward(dy);
  transformers_norm(x64, weight.value.to(at::kDouble)).backward(dy.to(at::kDouble));
  REQUIRE(far(x.grad(), x64.grad(), test::rms_norm(x, weight.value, kEps, dy, at::kFloat).dx) ==
          "");

  const at::Tensor z = leaf(random({4, 16}));
  ops::add_rms_norm(z, std::nullopt, weight, kEps).first.sum().backward();
  REQUIRE(z.grad().eq(1).all().item<bool>());
}

TEST_CASE("a norm's frozen weights get no gradient and change nobody else's", "[kernels]") {
  test::Random random(4);
  const at::Tensor x = random({7, 16}), dy = random({7, 16});
  Parameter weight = random.parameter({16}, at::kFloat), bias = random.parameter({16}, at::kFloat);
  const at::Tensor trained = leaf(x);
  ops::add_rms_norm(trained, std::nullopt, weight, kEps).second.backward(dy);
  const at::Tensor layer_trained = leaf(x);
  Parameter layer_weight = weight, layer_bias = bias;
  layer_weight.gradient = at::zeros({16});
  ops::add_layer_norm(layer_trained, std::nullopt, layer_weight, layer_bias, kEps)
      .second.backward(dy);

  weight.trainable = false;
  weight.gradient = at::Tensor();  // a frozen weight has none
  const at::Tensor frozen = leaf(x);
  ops::add_rms_norm(frozen, std::nullopt, weight, kEps).second.backward(dy);
  REQUIRE(frozen.grad().equal(trained.grad()));
  REQUIRE_FALSE(ops::add_rms_norm(x, std::nullopt, weight, kEps).second.requires_grad());

  const at::Tensor half_frozen = leaf(x);
  Parameter other_bias = random.parameter({16}, at::kFloat);
  other_bias.value = bias.value;
  ops::add_layer_norm(half_frozen, std::nullopt, weight, other_bias, kEps).second.backward(dy);
  REQUIRE(half_frozen.grad().equal(layer_trained.grad()));
  REQUIRE(other_bias.gradient.equal(layer_bias.gradient));
  other_bias.trainable = false;
  other_bias.gradient = at::Tensor();
  const at::Tensor all_frozen = leaf(x);
  ops::add_layer_norm(all_frozen, std::nullopt, weight, other_bias, kEps).second.backward(dy);
  REQUIRE(all_frozen.grad().equal(layer_trained.grad()));
  REQUIRE_FALSE(
      ops::add_layer_norm(x, std::nullopt, weight, other_bias, kEps).second.requires_grad());
}

TEST_CASE("norm_query_key norms each head of query and key and leaves values alone", "[kernels]") {
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16);
  // One row is where a copy of heads could be left out.
  const std::int64_t rows = GENERATE(1, 13);
  CAPTURE(c10::toString(dtype), rows);
  const ops::AttentionShape shape{.heads = 4, .kv_heads = 2, .head_dim = 16};
  test::Random random(6);
  const at::Tensor x = leaf(random({rows, shape.qkv_width()}, dtype));
  const at::Tensor dy = random({rows, shape.qkv_width()}, dtype);
  Parameter query = random.parameter({16}, dtype), key = random.parameter({16}, dtype);
  ops::norm_query_key(x.clone(), shape, query, key, kEps).backward(dy);
  const at::Tensor grad = x.grad();

  // Head by head by the operator for rows.
  const at::Tensor y = ops::norm_query_key(x.detach().clone(), shape, query, key, kEps);
  Parameter own_query = query, own_key = key;
  own_query.gradient = at::zeros({16}), own_key.gradient = at::zeros({16});
  for (std::int64_t head = 0; head < 8; ++head) {
    CAPTURE(head);
    const auto part = [&](const at::Tensor& all) { return all.narrow(1, 16 * head, 16); };
    if (head >= 6) {
      REQUIRE(part(y).equal(part(x.detach())));
      REQUIRE(part(grad).equal(part(dy)));
      continue;
    }
    Parameter& weight = head < 4 ? own_query : own_key;
    const at::Tensor one = leaf(part(x.detach()).contiguous());
    const at::Tensor normed = ops::add_rms_norm(one, std::nullopt, weight, kEps).second;
    REQUIRE(part(y).equal(normed));
    normed.backward(part(dy));
    REQUIRE(part(grad).equal(one.grad()));
  }
  // Sums over heads in another order.
  for (const auto& [whole, by_head] : {std::pair(&query, &own_query), std::pair(&key, &own_key)}) {
    const double far = (whole->gradient - by_head->gradient).abs().max().item<double>();
    REQUIRE(far <= 1e-5 * by_head->gradient.abs().max().item<double>());
  }

  query.trainable = key.trainable = false;
  query.gradient = key.gradient = at::Tensor();
  const at::Tensor frozen = leaf(x);
  ops::norm_query_key(frozen.clone(), shape, query, key, kEps).backward(dy);
  REQUIRE(frozen.grad().equal(grad));
}

TEST_CASE("the RMS norm references agree with the operator", "[kernels][reference]") {
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16);
  test::Random random(5);
  const std::int64_t rows = 5, dim = 24;
  const at::Tensor x = leaf(random({rows, dim}, dtype)), delta = random({rows, dim}, dtype);
  const at::Tensor dsum = random({rows, dim}, dtype), dy = random({rows, dim}, dtype);
  Parameter weight = random.parameter({dim}, dtype);
  const auto [sum, y] = ops::add_rms_norm(x, delta, weight, kEps);
  ((sum * dsum).sum() + (y * dy).sum()).backward();

  const at::Tensor sum2 = at::empty_like(sum), y2 = at::empty_like(y), dx = at::empty_like(y);
  const at::Tensor rstd = at::empty({rows}), dweight = at::zeros({dim}),
                   maxima = at::empty({kernels::norm_maxima(rows, dim)});
  const auto type = dtype == at::kFloat ? kernels::DType::f32 : kernels::DType::bf16;
  kernels::reference::add_rms_norm({.x = x.const_data_ptr(),
                                    .delta = delta.const_data_ptr(),
                                    .weight = weight.value.const_data_ptr(),
                                    .sum = sum2.mutable_data_ptr(),
                                    .y = y2.mutable_data_ptr(),
                                    .rstd = rstd.mutable_data_ptr<float>(),
                                    .rows = rows,
                                    .dim = dim,
                                    .eps = static_cast<float>(kEps),
                                    .dtype = type,
                                    .maxima = maxima.mutable_data_ptr<float>()});
  REQUIRE(maxima.max().equal(y2.abs().max().to(at::kFloat)));
  kernels::reference::add_rms_norm_backward({.sum = sum2.const_data_ptr(),
                                             .weight = weight.value.const_data_ptr(),
                                             .grad_y = dy.const_data_ptr(),
                                             .grad_sum = dsum.const_data_ptr(),
                                             .rstd = rstd.const_data_ptr<float>(),
                                             .grad_x = dx.mutable_data_ptr(),
                                             .grad_weight = dweight.mutable_data_ptr<float>(),
                                             .partial = nullptr,
                                             .rows = rows,
                                             .dim = dim,
                                             .dtype = type});
  REQUIRE(sum2.equal(sum));
  const test::NormBounds norm =
      test::rms_norm(rounded(Bounded(x) + delta, dtype), weight.value, kEps, dy, dtype);
  const Bounded dx_bound = rounded(norm.dx + dsum, dtype);
  REQUIRE(far(y2, norm.y) == "");
  REQUIRE(far(dx, dx_bound) == "");
  REQUIRE(far(x.grad(), dx_bound) == "");
  REQUIRE(far(dweight, norm.dweight) == "");
  REQUIRE(far(weight.gradient, norm.dweight) == "");
}

}  // namespace
}  // namespace dstrain
