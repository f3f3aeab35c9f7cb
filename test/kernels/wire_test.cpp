#include "engine/kernels/wire/wire.h"

#include <ATen/ops/full.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/kernels/op_support.h"
#include "test/kernels/reference/reference.h"
#include "test/kernels/wire_inputs.h"
#include "test/support/catch.h"
#include "test/support/roundoff.h"

/// Coded blocks on the CPU. Bounds: a is the largest magnitude of a block, q that of the codes, and
/// the scale is larger than a / q by 2^-7 at most, since it is rounded up to bf16.
namespace dstrain {
namespace {

using namespace test;

constexpr double kRoundedUp = 1 + 0x1p-7;
constexpr double kMin = 0x1p-100;  // the least scale

bool everywhere(const at::Tensor& condition) { return condition.all().item<bool>(); }
at::Tensor as_double(const at::Tensor& x) { return x.to(at::kDouble); }
std::uint8_t* bytes(const at::Tensor& coded) {
  return static_cast<std::uint8_t*>(coded.mutable_data_ptr());
}

/// The largest that the scale of each element's block may be.
at::Tensor scale_bound(const at::Tensor& x, CodeFormat format) {
  return (block_largest(x) * (kRoundedUp / largest_of(format))).clamp_min(kMin);
}

/// How far a value may lie from its code: half a step, a step at random.
at::Tensor code_bound(const at::Tensor& x, CodeFormat format, bool randomly = false) {
  const at::Tensor scale = scale_bound(x, format);
  if (format == CodeFormat::fp8)
    return as_double(x).abs() * (0x1p-4 * (1 + 0x1p-20)) + scale * 0x1p-10;
  return scale * (randomly ? 1.0 + 0x1p-16 : 0.5);
}

TEST_CASE("a coded value is half a step from its own at most, and one rounding of the slot",
          "[kernels][wire]") {
  const CodeFormat format = GENERATE(from_range(kCodeFormats));
  const std::string kind = GENERATE(from_range(kFiniteInputs));
  const std::int64_t elements = GENERATE(128, 384, 128 * 301);
  const auto type = GENERATE(at::kFloat, at::kBFloat16, at::kHalf),
             slot = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  if (slot == at::kHalf && type != at::kHalf) return;  // too narrow
  CAPTURE(static_cast<int>(format), kind, elements, c10::toString(type), c10::toString(slot));
  const at::Tensor w = wire_input(kind, 2, elements, type);
  const at::Tensor decoded = as_double(dequantized(quantized(w, format), elements, format, slot));
  const double rounding = slot == at::kFloat ? 0 : unit_roundoff(slot);
  REQUIRE(everywhere((decoded - as_double(w)).abs() <=
                     code_bound(w, format) + decoded.abs() * rounding + min_rounding(slot)));
}

TEST_CASE("fp16 slots hold what fits", "[kernels][wire]") {
  const CodeFormat format = GENERATE(from_range(kCodeFormats));
  const at::Tensor w = wire_input("random", 1, 384), coded = quantized(w, format);
  REQUIRE(dequantized(coded, 384, format, at::kHalf)
              .equal(dequantized(coded, 384, format).to(at::kHalf)));
}

TEST_CASE("what the codes can say is exact, ties go to even", "[kernels][wire]") {
  const CodeFormat format = GENERATE(from_range(kCodeFormats));
  const double largest = largest_of(format);
  const at::Tensor x = at::zeros({1, 128});
  const std::vector<float> values = {
      static_cast<float>(largest),  0.5F, 1.5F, 2.5F, -0.5F, -1.5F, -3,
      static_cast<float>(-largest), 4};
  for (std::size_t i = 0; i < values.size(); ++i) x[0][static_cast<std::int64_t>(i)] = values[i];
  const at::Tensor decoded = dequantized(quantized(x, format), 128, format);
  if (format == CodeFormat::fp8) {
    REQUIRE(decoded.equal(x));
    return;
  }
  const std::vector<float> rounded = {static_cast<float>(largest),  0, 2, 2, 0, -2, -3,
                                      static_cast<float>(-largest), 4};
  for (std::size_t i = 0; i < rounded.size(); ++i)
    REQUIRE(decoded[0][static_cast<std::int64_t>(i)].item<float>() == rounded[i]);
  REQUIRE(everywhere(decoded.narrow(1, 9, 119).eq(0)));
}

TEST_CASE("codes lie in order, two of four bits to a byte, then the scales", "[kernels][wire]") {
  const at::Tensor x = at::zeros({1, 256});
  x[0][0] = 7;
  x[0][1] = -7;
  x[0][127] = 3;
  x[0][128] = 14;
  const at::Tensor coded = quantized(x, CodeFormat::int4);
  REQUIRE(coded.size(1) == 144);  // 128 codes, two scales, to a multiple of 16
  const std::uint8_t* byte = bytes(coded);
  CHECK(byte[0] == 0x97);
  CHECK(byte[63] == 0x30);
  CHECK(byte[64] == 0x07);
  CHECK((byte[128] == 0x80 && byte[129] == 0x3f));  // bf16 1
  CHECK((byte[130] == 0x00 && byte[131] == 0x40));  // bf16 2
  CHECK(coded_bytes(CodeFormat::int8, 128) == 144);
  CHECK(coded_bytes(CodeFormat::fp8, 1280) == 1312);
}

TEST_CASE("the CPU codes as the definition in double does", "[kernels][wire]") {
  const CodeFormat format = GENERATE(from_range(kCodeFormats));
  const bool randomly = GENERATE(false, true);
  const auto type = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  if (randomly && format != CodeFormat::int4) return;
  const std::int64_t rows = 2, elements = 128 * 100;
  std::int64_t differ = 0, in_all = 0;
  std::vector<std::string> kinds = kFiniteInputs;
  kinds.insert(kinds.end(), kNonFiniteInputs.begin(), kNonFiniteInputs.end());
  for (const std::string& kind : kinds) {
    CAPTURE(static_cast<int>(format), kind, randomly);
    const at::Tensor x = wire_input(kind, rows, elements, type);
    const at::Tensor own = coded_rows(x, format), defined = coded_rows(x, format);
    kernels::QuantizeBlocks args{.x = x.const_data_ptr(),
                                 .coded = bytes(own),
                                 .parts = rows,
                                 .elements = elements,
                                 .x_stride = elements,
                                 .coded_stride = own.size(1),
                                 .format = format,
                                 .dtype = ops::kernel_dtype(x),
                                 .stochastic = randomly,
                                 .key = 5,
                                 .counter = 6,
                                 .first_element = 384};
    kernels::cpu::quantize_blocks(args);
    args.coded = bytes(defined);
    kernels::reference::quantize_blocks(args);
    differ += own.ne(defined).sum().item<std::int64_t>();
    in_all += own.numel();

    const at::Tensor out = dequantized(own, elements, format), out_defined = at::zeros_like(out);
    kernels::reference::dequantize_blocks({.coded = bytes(own),
                                           .out = out_defined.mutable_data_ptr(),
                                           .parts = rows,
                                           .elements = elements,
                                           .coded_stride = own.size(1),
                                           .out_stride = elements,
                                           .format = format,
                                           .dtype = kernels::DType::f32});
    REQUIRE(everywhere(
        out.eq(out_defined).logical_or(at::isnan(out).logical_and(at::isnan(out_defined)))));

    const at::Tensor sum = at::zeros({elements}), sum_defined = at::zeros({elements});
    wire::sum(own, sum, format, false);
    kernels::reference::sum_blocks({.coded = bytes(own),
                                    .sum = sum_defined.mutable_data_ptr<float>(),
                                    .parts = rows,
                                    .elements = elements,
                                    .coded_stride = own.size(1),
                                    .format = format,
                                    .add = false});
    REQUIRE(everywhere(
        sum.eq(sum_defined).logical_or(at::isnan(sum))));  // of two numbers: one rounding
    REQUIRE(at::isnan(sum).equal(at::isnan(sum_defined)));
  }
  // Where a quotient in fp32 and one in double lie on two sides of a limit.
  REQUIRE(static_cast<double>(differ) < 1e-3 * static_cast<double>(in_all));
}

TEST_CASE("a value that is not finite makes its block nan and no other", "[kernels][wire]") {
  const CodeFormat format = GENERATE(from_range(kCodeFormats));
  const std::string kind = GENERATE(from_range(kNonFiniteInputs));
  const bool randomly = GENERATE(false, true);
  if (randomly && format != CodeFormat::int4) return;
  const at::Tensor x = wire_input(kind, 1, 384);
  const at::Tensor coded = randomly ? randomly_quantized(x, {}) : quantized(x, format);
  const at::Tensor decoded = dequantized(coded, 384, format);
  REQUIRE(everywhere(at::isnan(decoded.narrow(1, 128, 128))));  // the second holds it
  REQUIRE(everywhere(decoded.narrow(1, 0, 128).isfinite()));
  REQUIRE(everywhere(decoded.narrow(1, 256, 128).isfinite()));
  const at::Tensor sum = at::zeros({384});
  wire::sum(coded, sum, format, true);
  REQUIRE(at::isnan(sum).equal(at::isnan(decoded[0])));
}

TEST_CASE("parts of something larger are coded as each alone, and nothing else is written",
          "[kernels][wire]") {
  const CodeFormat format = GENERATE(from_range(kCodeFormats));
  const std::int64_t elements = GENERATE(128, 640);
  const at::Tensor whole = wire_input("random", 3, 2 * elements + 128);
  const at::Tensor x = whole.narrow(1, 128, elements);
  const std::int64_t needed = coded_bytes(format, elements);
  const at::Tensor room = at::full({3, needed + 32}, 0xa5, at::kByte),
                   coded = room.narrow(1, 16, needed);
  wire::quantize(x, coded, format);
  REQUIRE(everywhere(room.narrow(1, 0, 16).eq(0xa5)));
  REQUIRE(everywhere(room.narrow(1, 16 + needed, 16).eq(0xa5)));
  const at::Tensor slot = at::full({3, 2 * elements}, 99, at::kFloat);
  wire::dequantize(coded, slot.narrow(1, elements, elements), format);
  REQUIRE(everywhere(slot.narrow(1, 0, elements).eq(99)));
  for (std::int64_t row = 0; row < 3; ++row) {
    const at::Tensor alone = x[row].contiguous().unsqueeze(0);
    REQUIRE(dequantized(quantized(alone, format), elements, format)
                .equal(slot.narrow(0, row, 1).narrow(1, elements, elements)));
  }
}

TEST_CASE("a sum adds the decoded parts in their order, and lies within the bound",
          "[kernels][wire]") {
  const CodeFormat format = GENERATE(from_range(kCodeFormats));
  const std::string kind = GENERATE(from_range(kFiniteInputs));
  const std::int64_t parts = GENERATE(1, 2, 5);
  const bool randomly = GENERATE(false, true), add = GENERATE(false, true);
  if (randomly && format != CodeFormat::int4) return;
  CAPTURE(static_cast<int>(format), kind, parts, randomly, add);
  const std::int64_t elements = 384;
  const at::Tensor x = wire_input(kind, parts, elements);
  const at::Tensor coded =
      randomly ? randomly_quantized(x, {.seed = 3, .step = 2}) : quantized(x, format);
  const at::Tensor decoded = dequantized(coded, elements, format);
  Random random(4);
  const at::Tensor before = random({elements}), sum = before.clone();
  wire::sum(coded, sum, format, add);
  at::Tensor expected = decoded[0].clone();
  for (std::int64_t part = 1; part < parts; ++part) expected += decoded[part];
  if (add) expected = before + expected;
  REQUIRE(sum.equal(expected));
  if (add) return;
  const at::Tensor exact = as_double(x).sum(0);
  const at::Tensor fp32 = as_double(decoded).abs().sum(0) * gamma(parts);
  REQUIRE(
      everywhere((as_double(sum) - exact).abs() <= code_bound(x, format, randomly).sum(0) + fp32));
}

TEST_CASE("random rounding is right on average", "[kernels][wire]") {
  const std::string kind =
      GENERATE("random", "of all magnitudes", "constant", "one outlier", "zero");
  const std::int64_t elements = 128 * 64;
  const int steps = 400;
  const at::Tensor x = wire_input(kind, 1, elements);
  // A constant block decodes to seven times its scale.
  const at::Tensor largest = block_largest(x).to(at::kFloat);
  const at::Tensor scale =
      dequantized(quantized(largest, CodeFormat::int4), elements, CodeFormat::int4)
          .div(7)
          .clamp_min(kMin);
  at::Tensor sum = at::zeros({1, elements}, at::kDouble);
  for (int step = 0; step < steps; ++step) {
    sum += as_double(
        dequantized(randomly_quantized(x, {.seed = 1, .step = step}), elements, CodeFormat::int4));
  }
  // A value between two codes at the share f goes up with probability f: variance f (1 - f) steps.
  const at::Tensor in_steps = as_double(x) / as_double(scale), share = in_steps - in_steps.floor();
  const at::Tensor error = sum / as_double(scale) - in_steps * steps;
  const at::Tensor variance = share * (1 - share) * steps;
  const double own_rounding = steps * 0x1p-16;
  // Six deviations of each, four of the sum of all.
  REQUIRE(everywhere(error.abs() <= variance.sqrt() * 6 + own_rounding + 1));
  REQUIRE(std::abs(error.sum().item<double>()) <= 4 * std::sqrt(variance.sum().item<double>()) +
                                                      own_rounding * static_cast<double>(elements));
}

TEST_CASE("random bits follow the place of an element, not the cut", "[kernels][wire]") {
  const at::Tensor x = wire_input("random", 1, 1280);
  const wire::RandomPlace place{
      .seed = 9, .step = 70000, .micro_batch = 3, .node = 1, .first_element = 256};
  const at::Tensor whole = dequantized(randomly_quantized(x, place), 1280, CodeFormat::int4);
  REQUIRE(whole.equal(dequantized(randomly_quantized(x, place), 1280, CodeFormat::int4)));

  wire::RandomPlace later = place;
  later.first_element += 640;
  REQUIRE(dequantized(randomly_quantized(x.narrow(1, 640, 640).contiguous(), later), 640,
                      CodeFormat::int4)
              .equal(whole.narrow(1, 640, 640)));
  const at::Tensor halves = x.view({2, 640}), part = halves.narrow(1, 128, 256);
  wire::RandomPlace inside = place;
  inside.first_element += 128;
  REQUIRE(dequantized(randomly_quantized(part, inside), 256, CodeFormat::int4)
              .equal(whole.view({2, 640}).narrow(1, 128, 256)));

  // Any other place gives other bits.
  std::vector<wire::RandomPlace> others(5, place);
  others[0].seed = 10;
  others[1].step = 70001;
  others[2].micro_batch = 4;
  others[3].node = 2;
  others[4].first_element = 384;
  for (const wire::RandomPlace& other : others) {
    const at::Tensor rounded = dequantized(randomly_quantized(x, other), 1280, CodeFormat::int4);
    const double differ = rounded.ne(whole).to(at::kDouble).mean().item<double>();
    REQUIRE(differ > 0.1);
  }
}

TEST_CASE("wrong shapes of coded blocks are our own fault", "[kernels][wire]") {
  const at::Tensor x = wire_input("random", 2, 256), coded = coded_rows(x, CodeFormat::int8);
  CHECK_THROWS_AS(wire::quantize(x.to(at::kDouble), coded, CodeFormat::int8), Error);
  CHECK_THROWS_AS(wire::quantize(x[0], coded, CodeFormat::int8), Error);
  CHECK_THROWS_AS(wire::quantize(x.narrow(1, 0, 100), coded, CodeFormat::int8), Error);
  CHECK_THROWS_AS(wire::quantize(x.narrow(1, 1, 128), coded, CodeFormat::int8), Error);
  CHECK_THROWS_AS(wire::quantize(x, coded.narrow(1, 0, 256), CodeFormat::int8), Error);
  CHECK_THROWS_AS(wire::quantize(x, coded.narrow(0, 0, 1), CodeFormat::int8), Error);
  CHECK_THROWS_AS(wire::dequantize(coded, x.to(at::kDouble), CodeFormat::int8), Error);
  CHECK_THROWS_AS(wire::sum(coded, x, CodeFormat::int8, false), Error);
  CHECK_THROWS_AS(wire::quantize_randomly(x, coded, {.first_element = 8}), Error);
  CHECK_THROWS_AS(wire::quantize_randomly(x, coded, {.micro_batch = 65536}), Error);
}

}  // namespace
}  // namespace dstrain
