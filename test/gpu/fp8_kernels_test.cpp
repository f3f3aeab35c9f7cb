#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sigmoid.h>

#include "engine/kernels/activation/swiglu.h"
#include "engine/kernels/kernels.h"
#include "engine/kernels/linear/fp8.h"
#include "engine/kernels/ops.h"
#include "test/gpu/compare.h"
#include "test/kernels/reference/reference.h"
#include "test/kernels/tensors.h"

/// Codes and largest values that are found while a tensor is written: equal to what one kernel
/// after the other gives, bit for bit.
namespace dstrain {
namespace {

using kernels::Fp8Format;
using ops::Sides;
using test::normal, test::Tensors;

struct MatrixSize {
  std::int64_t rows, cols;
};

at::Tensor empty_maxima() {
  return at::full({kernels::kAbsMaxPartials}, -1, at::TensorOptions(at::kCUDA).dtype(at::kFloat));
}

bool same_codes(const at::Tensor& a, const at::Tensor& b) {
  if (a.defined() != b.defined()) return false;
  return !a.defined() || a.view(at::kByte).equal(b.view(at::kByte));
}

TEST_CASE("GPU: a gated product leaves its largest values and writes the same h",
          "[gpu][kernels][fp8]") {
  const auto kind = GENERATE(ops::GateActivation::silu, ops::GateActivation::gelu);
  const auto type = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  const MatrixSize s =
      GENERATE(MatrixSize{1, 8}, MatrixSize{7, 264}, MatrixSize{591, 1000}, MatrixSize{16, 135'176},
               MatrixSize{2048, 4864}, MatrixSize{16384, 11008});
  CAPTURE(c10::toString(type), s.rows, s.cols);
  const at::Tensor gate_up = normal({s.rows, 2 * s.cols}, type) * 3;
  // The largest value may be anywhere, the last pack included.
  if (GENERATE(false, true)) gate_up[s.rows - 1].slice(0, s.cols - 1, s.cols).fill_(40);
  const at::Tensor maxima = empty_maxima(), gains = empty_maxima(),
                   h = ops::swiglu_of(gate_up, kind),
                   measured = ops::swiglu_of(gate_up, kind, maxima, gains);
  REQUIRE(measured.equal(h));
  const at::Tensor gate = gate_up.narrow(1, 0, s.cols).to(at::kFloat),
                   up = gate_up.narrow(1, s.cols, s.cols).to(at::kFloat);
  const at::Tensor opened =
      kind == ops::GateActivation::silu ? gate * at::sigmoid(gate) : at::gelu(gate, "tanh");
  const at::Tensor gain = (up.abs().max() * kernels::gate_slope(kind)).maximum(opened.abs().max());
  REQUIRE(gains.ge(0).all().item<bool>());
  REQUIRE(test::far(gains.max(), gain.cpu(), at::kFloat, 64) == "");
  REQUIRE(maxima.ge(0).all().item<bool>());
  REQUIRE(maxima.max().item<float>() == h.abs().max().to(at::kFloat).item<float>());
}

TEST_CASE("GPU: norms leave their largest values and write the same output",
          "[gpu][kernels][fp8]") {
  const auto type = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  const MatrixSize s =
      GENERATE(MatrixSize{1, 8}, MatrixSize{7, 264}, MatrixSize{591, 768}, MatrixSize{4001, 896},
               MatrixSize{300, 1032}, MatrixSize{16448, 1280}, MatrixSize{16384, 2048},
               MatrixSize{301, 3584}, MatrixSize{40, 6136}, MatrixSize{267, 8192});
  const bool residual = GENERATE(false, true), centered = GENERATE(false, true);
  CAPTURE(c10::toString(type), s.rows, s.cols, residual, centered);
  const c10::AutoGradMode off(false);
  Parameter weight, bias;
  for (Parameter* parameter : {&weight, &bias}) {
    parameter->shape = {s.cols};
    parameter->value = normal({s.cols}, type);
  }
  // The largest value may be in any row and column.
  weight.value[s.cols - 1].fill_(30);
  const at::Tensor x = normal({s.rows, s.cols}, type);
  const auto delta = residual ? std::optional(normal({s.rows, s.cols}, type)) : std::nullopt;
  const auto norm = [&](const at::Tensor& maxima) {
    return centered ? ops::add_layer_norm(x, delta, weight, bias, 1e-6, maxima)
                    : ops::add_rms_norm(x, delta, weight, 1e-6, maxima);
  };
  const at::Tensor maxima = empty_maxima();
  const auto [sum, y] = norm({});
  const auto [measured_sum, measured] = norm(maxima);
  REQUIRE(measured_sum.equal(sum));
  REQUIRE(measured.equal(y));
  REQUIRE(maxima.ge(0).all().item<bool>());
  REQUIRE(maxima.max().item<float>() == y.abs().max().to(at::kFloat).item<float>());
}

TEST_CASE("GPU: sums beside codes equal the reference, and change no code", "[gpu][kernels][fp8]") {
  const auto type = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  const auto format = GENERATE(Fp8Format::e4m3, Fp8Format::e5m2);
  const Sides sides = GENERATE(Sides::rows, Sides::columns, Sides::both);
  const MatrixSize s = GENERATE(MatrixSize{16, 16}, MatrixSize{144, 272}, MatrixSize{1040, 48},
                                MatrixSize{4096, 2560});
  CAPTURE(c10::toString(type), s.rows, s.cols, static_cast<int>(sides));
  const at::Tensor x = normal({s.rows, s.cols}, type);
  const auto plain = ops::quantize(x, format, sides),
             summed = ops::quantize_and_sum(x, format, sides),
             again = ops::quantize_and_sum(x, format, sides);
  REQUIRE(summed.scale.equal(plain.scale));
  REQUIRE(same_codes(summed.rows, plain.rows));
  REQUIRE(same_codes(summed.columns, plain.columns));
  REQUIRE(summed.sums.equal(again.sums));
  const at::Tensor host = x.cpu(), expected = at::empty(summed.sums.sizes()),
                   scale = at::empty({1});
  kernels::reference::quantize({.x = test::in(host),
                                .out = nullptr,
                                .out_t = nullptr,
                                .partial = nullptr,
                                .scale = test::fp32(scale.fill_(1)),
                                .rows = s.rows,
                                .cols = s.cols,
                                .format = format,
                                .dtype = ops::kernel_dtype(host),
                                .sums = test::fp32(expected)});
  REQUIRE(test::far(summed.sums, expected, at::kFloat, kernels::kQuantizeRows) == "");
}

TEST_CASE("GPU: codes of a tensor whose largest values are known are the same",
          "[gpu][kernels][fp8]") {
  const auto type = GENERATE(at::kBFloat16, at::kHalf);
  const MatrixSize s = GENERATE(MatrixSize{16, 16}, MatrixSize{592, 1008}, MatrixSize{2048, 4864});
  CAPTURE(c10::toString(type), s.rows, s.cols);
  const at::Tensor gate_up = normal({s.rows, 2 * s.cols}, type) * 3, maxima = empty_maxima(),
                   h = ops::swiglu_of(gate_up, ops::GateActivation::silu, maxima);
  const auto found = ops::quantize(h, Fp8Format::e4m3, Sides::both),
             known = ops::quantize(h, Fp8Format::e4m3, Sides::both, {.maxima = maxima});
  REQUIRE(known.scale.equal(found.scale));
  REQUIRE(same_codes(known.rows, found.rows));
  REQUIRE(same_codes(known.columns, found.columns));
}

TEST_CASE("GPU: a gated product's gradients in codes equal backward and quantize bit for bit",
          "[gpu][kernels][fp8]") {
  const auto gate = GENERATE(ops::GateActivation::silu, ops::GateActivation::gelu);
  const auto type = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  const MatrixSize s =
      GENERATE(MatrixSize{16, 16}, MatrixSize{144, 272}, MatrixSize{592, 1008},
               MatrixSize{1040, 48}, MatrixSize{2048, 4864}, MatrixSize{16384, 11008});
  const Sides sides = GENERATE(Sides::rows, Sides::columns, Sides::both);
  const bool again = GENERATE(true, false);
  CAPTURE(c10::toString(type), s.rows, s.cols, static_cast<int>(sides), again);
  const at::Tensor gate_up = normal({s.rows, 2 * s.cols}, type) * 2,
                   dh = normal({s.rows, s.cols}, type) * 1e-3;
  const ops::SwigluGradients plain = ops::swiglu_gradients(gate_up, gate, dh, true);
  const at::Tensor maxima = empty_maxima(), gains = empty_maxima();
  (void)ops::swiglu_of(gate_up, gate, maxima, gains);
  const at::Tensor bound = ops::maxima_of(dh).max() * gains.max();
  REQUIRE(bound.ge(plain.gate_up.abs().max() * (1 - 0x1p-7)).item<bool>());  // rounded, too
  const auto both =
                 ops::quantize(plain.gate_up, Fp8Format::e5m2, sides,
                               {.maxima = bound.expand({kernels::kAbsMaxPartials}).contiguous()}),
             h = ops::quantize(plain.h, Fp8Format::e4m3, Sides::columns);
  for (int run = 0; run < 2; ++run) {
    const ops::SwigluCodes codes =
        ops::swiglu_codes(gate_up, gate, gains, dh, sides, again ? h.scale : at::Tensor());
    REQUIRE(codes.gate_up.scale.equal(both.scale));
    REQUIRE(same_codes(codes.gate_up.rows, both.rows));
    REQUIRE(same_codes(codes.gate_up.columns, both.columns));
    REQUIRE(same_codes(codes.h, again ? h.columns : at::Tensor()));
  }
}

TEST_CASE("GPU: a gated product's gradients in codes are near their reference",
          "[gpu][kernels][fp8]") {
  const auto gate = GENERATE(kernels::GateActivation::silu, kernels::GateActivation::gelu);
  const MatrixSize s = GENERATE(MatrixSize{16, 16}, MatrixSize{144, 272});
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  CAPTURE(c10::toString(type), s.rows, s.cols);
  test::Random random(7);
  const auto codes = [](at::ScalarType of) { return at::TensorOptions(of); };
  const Tensors host = {random({s.rows, 2 * s.cols}, type) * 2,
                        random({s.rows, s.cols}, type),
                        at::empty({kernels::kAbsMaxPartials}),
                        at::empty({kernels::kAbsMaxPartials}),
                        at::empty({1}),
                        at::empty({s.rows, 2 * s.cols}, codes(at::kFloat8_e5m2)),
                        at::empty({2 * s.cols, s.rows}, codes(at::kFloat8_e5m2)),
                        at::full({1}, 0.02, at::kFloat),
                        at::empty({s.cols, s.rows}, codes(at::kFloat8_e4m3fn)),
                        at::empty({s.rows, s.cols}, codes(type))};
  const Tensors gpu = test::clones(host, at::kCUDA);
  const auto forward = [&](const Tensors& t) {
    return kernels::Swiglu{.gate_up = test::in(t[0]),
                           .h = test::out(t[9]),
                           .rows = s.rows,
                           .cols = s.cols,
                           .dtype = ops::kernel_dtype(t[0]),
                           .partial = test::fp32(t[2]),
                           .gains = test::fp32(t[3]),
                           .gate = gate};
  };
  const auto max = [&](const Tensors& t) {
    return kernels::AbsMax{.x = test::in(t[1]),
                           .partial = test::fp32(t[2]),
                           .count = t[1].numel(),
                           .dtype = ops::kernel_dtype(t[1])};
  };
  const auto args = [&](const Tensors& t) {
    return kernels::SwigluCodes{.gate_up = test::in(t[0]),
                                .grad_h = test::in(t[1]),
                                .maxima = test::fp32(t[2]),
                                .gains = test::fp32(t[3]),
                                .scale = test::fp32(t[4]),
                                .out = ops::code_bytes(t[5]),
                                .out_t = ops::code_bytes(t[6]),
                                .h_scale = test::fp32(t[7]),
                                .h_t = ops::code_bytes(t[8]),
                                .rows = s.rows,
                                .cols = s.cols,
                                .dtype = ops::kernel_dtype(t[0]),
                                .gate = gate};
  };
  kernels::reference::swiglu(forward(host));
  kernels::reference::abs_max(max(host));
  kernels::reference::swiglu_codes(args(host));
  kernels::cuda::swiglu(forward(gpu), ops::current_stream());
  kernels::cuda::abs_max(max(gpu), ops::current_stream());
  kernels::cuda::swiglu_codes(args(gpu), ops::current_stream());
  REQUIRE(gpu[2].max().cpu().equal(host[2].max()));
  REQUIRE(test::far(gpu[3].max(), host[3].max(), at::kFloat, 64) == "");
  REQUIRE(gpu[4].cpu().equal(host[4]));  // a power of two
  // An element may round to the code beside: a step is 1/4 of a value in e5m2, 1/8 in e4m3.
  for (const auto& [i, step] : {std::pair{5u, 0.25}, {6u, 0.25}, {8u, 0.125}}) {
    CAPTURE(i);
    const at::Tensor got = gpu[i].cpu().to(at::kFloat), expected = host[i].to(at::kFloat);
    const at::Tensor apart = (got - expected).abs();
    REQUIRE(apart.le(expected.abs().maximum(got.abs()) * step + 0x1p-9).all().item<bool>());
    REQUIRE(apart.gt(0).to(at::kFloat).mean().item<float>() < 0.02f);
  }
}

}  // namespace
}  // namespace dstrain
