#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <optional>

#include "engine/kernels/kernels.h"
#include "engine/kernels/op_support.h"
#include "engine/kernels/ops.h"
#include "test/kernels/bounds.h"
#include "test/kernels/devices.h"
#include "test/kernels/reference/reference.h"
#include "test/kernels/tensors.h"
#include "test/support/catch.h"
#include "test/support/near.h"

namespace dstrain {
namespace {

using test::Bounded;
using test::exact;
using test::far;
using test::leaf;
using test::RowsSize;

constexpr double kEps = 1e-6;

/// As transformers' Qwen2RMSNorm computes: statistics in fp32, the weight after rounding.
at::Tensor transformers_norm(const at::Tensor& x, const at::Tensor& weight) {
  const at::Tensor wide = x.scalar_type() == at::kDouble ? x : x.to(at::kFloat);
  const at::Tensor variance = wide.pow(2).mean(-1, true);
  return weight * (wide * at::rsqrt(variance + kEps)).to(x.scalar_type());
}

TEST_CASE("add_rms_norm is transformers' Qwen2RMSNorm of the sum, bit for bit", "[kernels][cpu]") {
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

TEST_CASE("weights that lack one make transformers' Gemma3RMSNorm", "[kernels][cpu]") {
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  test::Random random(1);
  const at::Tensor x = random({23, 40}, dtype), wide = x.to(at::kFloat);
  Parameter weight = random.parameter({40}, dtype);
  const at::Tensor y =
      ops::add_rms_norm(x, std::nullopt, weight, kEps, {}, ops::RmsWeight::less_one).second;
  const at::Tensor normed = wide * at::rsqrt(wide.pow(2).mean(-1, true) + kEps);
  REQUIRE(y.equal((normed * (1.0 + weight.value.to(at::kFloat))).to(dtype)));
}

TEST_CASE("add_rms_norm's gradients are those of the formula, residual included", "[kernels]") {
  const auto device = GENERATE(from_range(test::devices()));
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  const bool with_delta = GENERATE(false, true);
  CAPTURE(device.str(), c10::toString(dtype), with_delta);
  test::Random random(2, device);
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
  ((sum64 * exact(dsum)).sum() + (y64 * exact(dy)).sum()).backward();
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
  test::Random random(3, GENERATE(from_range(test::devices())));
  const at::Tensor x = leaf(random({4, 16})), x64 = exact(x);
  Parameter weight = random.parameter({16}, at::kFloat);
  const at::Tensor dy = random({4, 16});
  ops::add_rms_norm(x, std::nullopt, weight, kEps).second.backward(dy);
  transformers_norm(x64, exact(weight.value)).backward(exact(dy).detach());
  REQUIRE(far(x.grad(), x64.grad(), test::rms_norm(x, weight.value, kEps, dy, at::kFloat).dx) ==
          "");

  const at::Tensor z = leaf(random({4, 16}));
  ops::add_rms_norm(z, std::nullopt, weight, kEps).first.sum().backward();
  REQUIRE(z.grad().eq(1).all().item<bool>());
}

TEST_CASE("a norm's frozen weights get no gradient and change nobody else's", "[kernels][cpu]") {
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

TEST_CASE("norm_query_key norms each head of query and key and leaves values alone",
          "[kernels][cpu]") {
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

/// A norm of one size and its gradients; the numbers lie on the host.
struct NormInputs {
  RowsSize size;
  at::ScalarType type;
  at::Tensor x, delta, dsum, dy;  ///< delta and dsum are undefined without a residual
  Parameter weight, bias;         ///< their gradients are added to

  NormInputs(RowsSize s, at::ScalarType dtype, bool residual) : size(s), type(dtype) {
    test::Random random(1);
    x = random({s.rows, s.dim}, type);
    dy = random({s.rows, s.dim}, type);
    if (residual) delta = random({s.rows, s.dim}, type), dsum = random({s.rows, s.dim}, type);
    for (Parameter* parameter : {&weight, &bias}) {
      *parameter = random.parameter({s.dim}, type);
      parameter->gradient = random({s.dim});
    }
  }
};

/// sum, y, the gradients of x and of the weights, those of frozen ones undefined.
using NormResults = test::Tensors;

template <class Operator>
NormResults normed_on(at::Device device, const NormInputs& in, const Operator& apply) {
  Parameter weight = in.weight, bias = in.bias;
  for (Parameter* parameter : {&weight, &bias}) {
    parameter->value = parameter->value.to(device);
    parameter->gradient =
        parameter->trainable ? parameter->gradient.clone().to(device) : at::Tensor();
  }
  const at::Tensor x = leaf(in.x.to(device));
  std::optional<at::Tensor> delta;
  if (in.delta.defined()) delta = in.delta.to(device);
  const auto [sum, y] = apply(x, delta, weight, bias);
  if (delta) {
    torch::autograd::backward({sum, y}, {in.dsum.to(device), in.dy.to(device)});
  } else {
    y.backward(in.dy.to(device));
  }
  return {sum.detach(), y.detach(), x.grad(), weight.gradient, bias.gradient};
}

/// The operator's results, twice with the same bits, are near the reference's.
template <class Operator>
void require_near(at::Device device, const NormInputs& in, const NormResults& reference,
                  const Operator& apply) {
  const NormResults found = normed_on(device, in, apply), again = normed_on(device, in, apply);
  for (std::size_t i = 0; i < reference.size(); ++i) {
    CAPTURE(i);
    if (!found[i].defined()) continue;  // frozen
    REQUIRE(far(found[i], reference[i], reference[i].scalar_type(),
                i < 2 ? in.size.dim : std::max(in.size.rows, in.size.dim)) == "");
    REQUIRE(found[i].equal(again[i]));
  }
}

const void* data_or_null(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr() : nullptr;
}

TEST_CASE("RMS norm and its gradients equal their reference", "[kernels][reference]") {
  const auto device = GENERATE(from_range(test::devices()));
  const auto type = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  const RowsSize s = GENERATE(RowsSize{1, 8}, RowsSize{5, 24}, RowsSize{7, 264}, RowsSize{9, 768},
                              RowsSize{4001, 896}, RowsSize{300, 1032}, RowsSize{601, 1536},
                              RowsSize{2200, 2048}, RowsSize{33, 3072}, RowsSize{301, 3584},
                              RowsSize{7, 4096}, RowsSize{40, 6136}, RowsSize{267, 8192});
  const bool residual = GENERATE(false, true), frozen = GENERATE(false, true);
  const auto holds = GENERATE(ops::RmsWeight::factor, ops::RmsWeight::less_one);
  const bool less_one = holds == ops::RmsWeight::less_one;
  if (!test::worth_it(device, s.rows * s.dim)) return;
  CAPTURE(device.str(), c10::toString(type), s.rows, s.dim, residual, frozen, less_one);
  NormInputs in(s, type, residual);
  in.weight.trainable = !frozen;
  const at::Tensor sum = residual ? at::empty_like(in.x) : in.x, y = at::empty_like(in.x),
                   dx = at::empty_like(in.x), dweight = in.weight.gradient.clone(),
                   rstd = at::empty({s.rows}),
                   maxima = at::empty({kernels::norm_maxima(s.rows, s.dim)});
  kernels::reference::add_rms_norm({.x = in.x.const_data_ptr(),
                                    .delta = data_or_null(in.delta),
                                    .weight = in.weight.value.const_data_ptr(),
                                    .sum = residual ? sum.mutable_data_ptr() : nullptr,
                                    .y = y.mutable_data_ptr(),
                                    .rstd = rstd.mutable_data_ptr<float>(),
                                    .rows = s.rows,
                                    .dim = s.dim,
                                    .eps = static_cast<float>(kEps),
                                    .dtype = ops::kernel_dtype(in.x),
                                    .maxima = maxima.mutable_data_ptr<float>(),
                                    .less_one = less_one});
  REQUIRE(maxima.max().equal(y.abs().max().to(at::kFloat)));
  kernels::reference::add_rms_norm_backward({.sum = sum.const_data_ptr(),
                                             .weight = in.weight.value.const_data_ptr(),
                                             .grad_y = in.dy.const_data_ptr(),
                                             .grad_sum = data_or_null(in.dsum),
                                             .rstd = rstd.const_data_ptr<float>(),
                                             .grad_x = dx.mutable_data_ptr(),
                                             .grad_weight = dweight.mutable_data_ptr<float>(),
                                             .partial = nullptr,
                                             .rows = s.rows,
                                             .dim = s.dim,
                                             .dtype = ops::kernel_dtype(in.x),
                                             .less_one = less_one});
  require_near(device, in, {sum, y, dx, dweight},
               [&](const at::Tensor& x, const auto& delta, Parameter& weight, Parameter&) {
                 return ops::add_rms_norm(x, delta, weight, kEps, {}, holds);
               });
  if (s.rows * s.dim > 1000 || frozen || less_one) return;
  // The reference is within the bound of its formula, too.
  const Bounded in_sum = residual ? rounded(Bounded(in.x) + in.delta, type) : Bounded(in.x);
  const test::NormBounds norm = test::rms_norm(in_sum, in.weight.value, kEps, in.dy, type);
  REQUIRE(far(y, norm.y) == "");
  REQUIRE(far(dx, residual ? rounded(norm.dx + in.dsum, type) : rounded(norm.dx, type)) == "");
  REQUIRE(far(dweight, norm.dweight + in.weight.gradient) == "");
}

TEST_CASE("layer norm and its gradients equal their reference up to 8192 elements",
          "[kernels][reference]") {
  const auto device = GENERATE(from_range(test::devices()));
  const auto type = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  const RowsSize s =
      GENERATE(RowsSize{1, 8}, RowsSize{13, 896}, RowsSize{4001, 1024}, RowsSize{300, 1536},
               RowsSize{2200, 2048}, RowsSize{301, 2560}, RowsSize{33, 3584}, RowsSize{540, 4096},
               RowsSize{7, 6136}, RowsSize{267, 8192});
  const bool residual = GENERATE(false, true);
  const bool train_weight = GENERATE(false, true), train_bias = GENERATE(false, true);
  if (!test::worth_it(device, s.rows * s.dim)) return;
  CAPTURE(device.str(), c10::toString(type), s.rows, s.dim, residual, train_weight, train_bias);
  NormInputs in(s, type, residual);
  in.weight.trainable = train_weight;
  in.bias.trainable = train_bias;
  const at::Tensor sum = residual ? at::empty_like(in.x) : in.x, y = at::empty_like(in.x),
                   dx = at::empty_like(in.x), dweight = in.weight.gradient.clone(),
                   dbias = in.bias.gradient.clone(), mean = at::empty({s.rows}),
                   rstd = at::empty({s.rows});
  kernels::reference::add_layer_norm({.x = in.x.const_data_ptr(),
                                      .delta = data_or_null(in.delta),
                                      .weight = in.weight.value.const_data_ptr(),
                                      .bias = in.bias.value.const_data_ptr(),
                                      .sum = residual ? sum.mutable_data_ptr() : nullptr,
                                      .y = y.mutable_data_ptr(),
                                      .mean = mean.mutable_data_ptr<float>(),
                                      .rstd = rstd.mutable_data_ptr<float>(),
                                      .rows = s.rows,
                                      .dim = s.dim,
                                      .eps = static_cast<float>(kEps),
                                      .dtype = ops::kernel_dtype(in.x)});
  kernels::reference::add_layer_norm_backward({.sum = sum.const_data_ptr(),
                                               .weight = in.weight.value.const_data_ptr(),
                                               .grad_y = in.dy.const_data_ptr(),
                                               .grad_sum = data_or_null(in.dsum),
                                               .mean = mean.const_data_ptr<float>(),
                                               .rstd = rstd.const_data_ptr<float>(),
                                               .grad_x = dx.mutable_data_ptr(),
                                               .grad_weight = dweight.mutable_data_ptr<float>(),
                                               .grad_bias = dbias.mutable_data_ptr<float>(),
                                               .partial = nullptr,
                                               .rows = s.rows,
                                               .dim = s.dim,
                                               .dtype = ops::kernel_dtype(in.x)});
  require_near(device, in, {sum, y, dx, dweight, dbias},
               [](const at::Tensor& x, const auto& delta, Parameter& weight, Parameter& bias) {
                 return ops::add_layer_norm(x, delta, weight, bias, kEps);
               });
}

TEST_CASE("norms of query and key heads equal those on the CPU", "[kernels]") {
  const auto device = GENERATE(from_range(test::devices()));
  const auto type = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  const std::int64_t rows = GENERATE(1, 37), head_dim = GENERATE(64, 128);
  CAPTURE(device.str(), c10::toString(type), rows, head_dim);
  const ops::AttentionShape shape{.heads = 6, .kv_heads = 2, .head_dim = head_dim};
  const auto run = [&](at::Device where) {
    test::Random random(5, where);
    const at::Tensor x = leaf(random({rows, shape.qkv_width()}, type)),
                     dy = random({rows, shape.qkv_width()}, type);
    Parameter query = random.parameter({head_dim}, type), key = random.parameter({head_dim}, type);
    const at::Tensor y = ops::norm_query_key(x * 1, shape, query, key, kEps);
    y.backward(dy);
    return test::Tensors{y, x.grad(), query.gradient, key.gradient};
  };
  const test::Tensors found = run(device), cpu = run(at::kCPU);
  for (std::size_t i = 0; i < found.size(); ++i) {
    CAPTURE(i);
    REQUIRE(far(found[i], cpu[i], type, 4096) == "");
  }
}

}  // namespace
}  // namespace dstrain
