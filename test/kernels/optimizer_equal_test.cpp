#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/kernels/op_support.h"
#include "engine/kernels/optimizer/optimizer.h"
#include "engine/kernels/optimizer/optimizer_cpu.h"
#include "engine/kernels/optimizer/split_weight.h"
#include "engine/kernels/optimizer/stochastic_rounding.h"
#include "test/kernels/devices.h"
#include "test/kernels/optimizer_bits.h"
#include "test/kernels/optimizer_control.h"
#include "test/kernels/tensors.h"
#include "test/support/catch.h"

namespace dstrain {
namespace {

using kernels::cpu::VectorUnit;
using test::clones;
using test::first_difference;
using test::UpdateBits;

const std::pair<int, std::int64_t> kEqual{-1, -1};

/// The vector units of this CPU, other than none.
std::vector<VectorUnit> vector_units() {
  std::vector<VectorUnit> units;
  for (const VectorUnit unit : {VectorUnit::avx2, VectorUnit::avx512}) {
    if (kernels::cpu::has(unit)) {
      units.push_back(unit);
    } else {
      WARN("this CPU has no " << (unit == VectorUnit::avx2 ? "AVX2" : "AVX-512"));
    }
  }
  return units;
}

/// The buffers after elements [0, count) went through update_range in pieces of `piece`.
std::vector<at::Tensor> updated(const UpdateBits& update, const std::vector<at::Tensor>& buffers,
                                VectorUnit unit, std::int64_t piece) {
  const at::Tensor control = test::control_at(3, 0.5f);
  std::vector<at::Tensor> results = clones(buffers);
  const kernels::OptimizerUpdate args = update.args(results, control);
  for (std::int64_t i = 0; i < update.count; i += piece)
    kernels::cpu::update_range(args, i, std::min(update.count, i + piece), unit);
  return results;
}

TEST_CASE("scalars, AVX2 and AVX-512 give equal bits for every rule and type", "[kernels][cpu]") {
  const std::int64_t count = 200'003;
  for (const UpdateBits& update : test::all_updates(count)) {
    const auto buffers = update.buffers();
    const auto expected = updated(update, buffers, VectorUnit::none, count);
    CAPTURE(update.rule.index(), static_cast<int>(update.states), static_cast<int>(update.copy),
            static_cast<int>(update.gradient));
    REQUIRE(first_difference(expected, buffers) != kEqual);
    for (const VectorUnit unit : vector_units()) {
      CAPTURE(static_cast<int>(unit));
      REQUIRE(first_difference(updated(update, buffers, unit, count), expected) == kEqual);
    }
    std::vector<at::Tensor> threads = clones(buffers);
    const at::Tensor control = test::control_at(3, 0.5f);
    kernels::cpu::update(update.args(threads, control));
    REQUIRE(first_difference(threads, expected) == kEqual);
  }
}

TEST_CASE("a device updates with the bits of the CPU's loops, whatever the rule and the types",
          "[kernels]") {
  const auto device = GENERATE(from_range(test::devices()));
  // The small counts are for buffers that are not aligned and for groups of random bits cut in two.
  const auto [count, offset, first_element, skip] = GENERATE(
      std::tuple(10'000'000, 0, 0, 0), std::tuple(100'003, 1, 0, 0), std::tuple(100'003, 0, 5, 0),
      std::tuple(100'003, 1, 4096, 1), std::tuple(1003, 1, 5, 0), std::tuple(1003, 0, 4096, 0),
      std::tuple(1, 0, 0, 0), std::tuple(1, 1, 5, 1));
  if (device.is_cpu() && count > 1'000'000) return;  // as the case above
  const at::Tensor control = test::control_at(3, 0.5f, static_cast<float>(skip));
  for (UpdateBits& update : test::all_updates(count)) {
    // What differs is how the gradient is read, and made numbers take long.
    if (update.gradient == kernels::DType::bf16)
      update.count = std::min<std::int64_t>(count, 1'000'003);
    update.offset = offset;
    update.first_element = first_element;
    CAPTURE(device.str(), update.count, offset, first_element, skip, update.rule.index(),
            static_cast<int>(update.states), static_cast<int>(update.copy),
            static_cast<int>(update.gradient));
    const test::Tensors buffers = update.buffers(), host = clones(buffers),
                        found = clones(buffers, device);
    kernels::cpu::update(update.args(host, control));
    if (device.is_cuda()) {
      kernels::cuda::update(update.args(found, control.to(device)), ops::current_stream());
    } else {
      kernels::cpu::update_range(update.args(found, control), 0, update.count, VectorUnit::none);
    }
    REQUIRE(first_difference(clones(found), host) == kEqual);
  }
}

TEST_CASE("a gradient in bf16 updates as the same numbers in fp32 do", "[kernels][cpu]") {
  const std::int64_t count = 10'001;
  int seen = 0;
  for (const UpdateBits& narrow : test::all_updates(count)) {
    if (narrow.gradient != kernels::DType::bf16) continue;
    ++seen;
    CAPTURE(narrow.rule.index(), static_cast<int>(narrow.states));
    UpdateBits wide = narrow;
    wide.gradient = kernels::DType::f32;
    const auto buffers = narrow.buffers();
    auto widened = buffers;
    // By bits: a conversion would make other nans.
    widened[0] = buffers[0].view(at::kShort).to(at::kInt).mul(1 << 16).view(at::kByte);
    auto found = updated(narrow, buffers, VectorUnit::none, count),
         expected = updated(wide, widened, VectorUnit::none, count);
    found[0] = expected[0];
    REQUIRE(first_difference(found, expected) == kEqual);
  }
  REQUIRE(seen == 28);
}

/// Both halves of each weight of an update, together.
at::Tensor joined(const std::vector<at::Tensor>& buffers) {
  return optimizer::join(buffers[4].view(at::kBFloat16), buffers[1].view(at::kShort));
}

TEST_CASE("a weight in halves is that weight, and its upper half the nearest bf16", "[kernels]") {
  const auto device = GENERATE(from_range(test::devices()));
  const std::int64_t count = 300'000;
  const at::Tensor bits = at::empty({count}, at::kInt);
  for (std::int64_t i = 0; i < count; ++i)
    bits.mutable_data_ptr<std::int32_t>()[i] =
        std::bit_cast<std::int32_t>(test::delicate_bits(9, i));
  const at::Tensor weights = bits.view(at::kFloat);
  const optimizer::Halves halves = optimizer::split(weights.to(device));
  const at::Tensor upper = halves.upper.cpu(), lower = halves.lower.cpu();
  const at::Tensor found = optimizer::join(halves.upper, halves.lower).cpu(),
                   nearest = weights.to(at::kBFloat16);
  std::int64_t ties = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const float weight = weights.const_data_ptr<float>()[i];
    const float half = static_cast<float>(upper.const_data_ptr<at::BFloat16>()[i]);
    CAPTURE(i, weight, half);
    const auto one = kernels::SplitWeight::of(weight);
    REQUIRE(one.lower == static_cast<std::uint16_t>(lower.const_data_ptr<std::int16_t>()[i]));
    REQUIRE((kernels::bf16_value(one.upper) == half || std::isnan(half)));
    if (std::isnan(weight)) {
      REQUIRE(std::isnan(half));
      REQUIRE(std::isnan(found.const_data_ptr<float>()[i]));
      REQUIRE(std::isnan(one.join()));
      continue;
    }
    REQUIRE(std::bit_cast<std::uint32_t>(found.const_data_ptr<float>()[i]) ==
            std::bit_cast<std::uint32_t>(weight));
    REQUIRE(std::bit_cast<std::uint32_t>(one.join()) == std::bit_cast<std::uint32_t>(weight));
    const float even = static_cast<float>(nearest.const_data_ptr<at::BFloat16>()[i]);
    if (half == even) continue;
    ++ties;  // away from zero, where a cast takes the even one
    REQUIRE((std::bit_cast<std::uint32_t>(weight) & 0xffffu) == 0x8000u);
    REQUIRE(std::abs(half) > std::abs(even));
  }
  REQUIRE(ties > 100);
}

TEST_CASE("weights in halves are updated as whole ones, bit for bit", "[kernels]") {
  const auto device = GENERATE(from_range(test::devices()));
  const std::int64_t offset = GENERATE(0, 1);
  const at::Tensor control = test::control_at(3, 0.5f);
  int seen = 0;
  for (UpdateBits split : test::all_updates(50'003)) {
    if (!split.split) continue;
    ++seen;
    split.offset = offset;
    UpdateBits whole = split;
    whole.split = false;
    CAPTURE(device.str(), offset, split.rule.index(), static_cast<int>(split.gradient));
    const test::Tensors halves = clones(split.buffers(), device),
                        all = clones(whole.buffers(), device);
    const auto run = [&](const UpdateBits& update, const test::Tensors& buffers) {
      if (device.is_cuda())
        kernels::cuda::update(update.args(buffers, control.to(device)), ops::current_stream());
      else
        kernels::cpu::update(update.args(buffers, control));
    };
    run(split, halves);
    run(whole, all);
    const auto updated_part = [&](const at::Tensor& of) {
      return of.cpu().narrow(0, split.offset, split.count);
    };
    const at::Tensor found = updated_part(joined(halves)),
                     expected = updated_part(all[1].view(at::kFloat));
    // A nan is a nan.
    REQUIRE((found.view(at::kInt).eq(expected.view(at::kInt)) | (found.isnan() & expected.isnan()))
                .all()
                .item<bool>());
    for (const std::size_t moment : {2, 3}) REQUIRE(halves[moment].equal(all[moment]));
    // Parameters differ from a cast in ties alone.
    const at::Tensor other =
        updated_part(halves[4].view(at::kBFloat16)).ne(updated_part(all[4].view(at::kBFloat16)));
    const at::Tensor tie = expected.view(at::kInt).bitwise_and(0xffff).eq(0x8000);
    REQUIRE((other & ~tie & ~expected.isnan()).sum().item<std::int64_t>() == 0);
  }
  REQUIRE(seen == 16);
}

TEST_CASE("no length, place or cut of a range changes a bit of an update", "[kernels][cpu]") {
  const std::int64_t offset = GENERATE(0, 1), first_element = GENERATE(0, 5, 128);
  CAPTURE(offset, first_element);
  for (std::int64_t tail = 0; tail < 128; ++tail) {
    for (UpdateBits& update : test::all_updates(tail % 4 == 0 ? 384 + tail : tail)) {
      update.offset = offset;
      update.first_element = first_element;
      CAPTURE(update.count, update.rule.index(), static_cast<int>(update.states),
              static_cast<int>(update.copy), static_cast<int>(update.gradient));
      const auto buffers = update.buffers();
      const auto expected = updated(update, buffers, VectorUnit::none, 1 << 20);
      for (const VectorUnit unit : vector_units()) {
        CAPTURE(static_cast<int>(unit));
        for (const std::int64_t piece : {1 << 20, 128, 100})
          REQUIRE(first_difference(updated(update, buffers, unit, piece), expected) == kEqual);
      }
    }
  }
}

TEST_CASE("copies are the nearest numbers of their type, nans those of the GPU", "[kernels][cpu]") {
  // A step of nothing keeps the parameters, so the copy shows the conversion alone.
  const auto [type, dtype] = GENERATE(std::pair(kernels::DType::bf16, at::kBFloat16),
                                      std::pair(kernels::DType::f16, at::kHalf));
  const UpdateBits update{.rule = optimizer::MuonStep{},
                          .states = kernels::DType::f32,
                          .copy = type,
                          .has_copy = true,
                          .count = 1'000'000};
  auto buffers = update.buffers();
  buffers[0].zero_();
  std::vector<VectorUnit> units = vector_units();
  units.push_back(VectorUnit::none);
  const at::Tensor before = buffers[1].view(at::kFloat), nan = before.ne(before);
  REQUIRE(nan.any().item<bool>());
  for (const VectorUnit unit : units) {
    const auto results = updated(update, buffers, unit, update.count);
    const at::Tensor after = results[1].view(at::kFloat), copy = results[4].view(dtype);
    REQUIRE(after.view(at::kInt).masked_select(nan).eq(0x7fffffff).all().item<bool>());
    REQUIRE(copy.view(at::kShort).masked_select(nan).eq(0x7fff).all().item<bool>());
    const at::Tensor kept = nan.logical_not();
    REQUIRE(after.masked_select(kept).equal(before.masked_select(kept)));
    REQUIRE(copy.masked_select(kept)
                .view(at::kShort)
                .equal(before.masked_select(kept).to(dtype).view(at::kShort)));
  }
}

TEST_CASE("near quotients are as near as they say", "[kernels][cpu]") {
  double worst = 0;
  for (std::int64_t i = 0; i < 1'000'000; ++i) {
    const Philox random = Philox::at(1, 0, static_cast<std::uint64_t>(i));
    const float square = std::ldexp(1 + random.uniform(0), -100 + static_cast<int>(i % 150)),
                num = 1 + random.uniform(1), factor = 1 + 30 * random.uniform(2),
                offset = i % 2 == 0 ? 1e-8f : 1.0f;
    const float near = fixed_order::near_root_quotient(num, square, factor, offset);
    const double exact = static_cast<double>(num) /
                         (std::sqrt(static_cast<double>(square)) * static_cast<double>(factor) +
                          static_cast<double>(offset));
    worst = std::max(worst, std::abs(static_cast<double>(near) / exact - 1));
  }
  REQUIRE(worst < 3e-6);
  REQUIRE(fixed_order::near_root_quotient(0, 0, 1, 1e-8f) == 0);
  REQUIRE(fixed_order::near_root_quotient(1e-8f, 0, 1, 1e-8f) == Approx(1));
}

TEST_CASE("Adam's bias corrections are exact to the last bit of fp32 or the next",
          "[kernels][cpu]") {
  for (const double beta : {0.0, 0.9, 0.95, 0.999, 0.9999}) {
    for (const int t : {1, 2, 3, 10, 1000, 100'000, 10'000'000}) {
      const double exact = -std::expm1(t * std::log(beta));
      CAPTURE(beta, t);
      REQUIRE(
          std::abs(static_cast<double>(optimizer::bias_correction(beta, static_cast<float>(t))) -
                   exact) <= 0x1p-24 * exact);
    }
  }
}

}  // namespace
}  // namespace dstrain
