#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <bit>
#include <cstdint>
#include <utility>
#include <vector>

#include "engine/base/philox.h"
#include "engine/kernels/optimizer/optimizer_rules.h"
#include "engine/kernels/optimizer/optimizer_update.h"
#include "engine/kernels/optimizer/split_weight.h"
#include "test/kernels/optimizer_control.h"

/// One update on numbers of every kind, for comparing its results bit by bit.
namespace dstrain::test {

/// Bits of fp32 numbers: usual ones, any bits at all, and those where conversions are delicate.
inline std::uint32_t delicate_bits(std::uint64_t seed, std::int64_t i) {
  constexpr std::uint32_t kSpecial[] = {
      0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007fffff, 0x00800000,   // zeros, denormals
      0x7f800000, 0xff800000, 0x7fc00000, 0xffc00000, 0x7f800001, 0xffffffff,   // infinities, nans
      0x3f808000, 0x3f818000, 0xbf808000, 0x00008000, 0x00018000, 0x7f7f8000,   // ties in bf16
      0x3f801000, 0x3f803000, 0x33000000, 0x33c00000, 0x38801000, 0x387fe000,   // ties in fp16
      0x477fefff, 0x477ff000, 0xc77ff000, 0x7f7fffff, 0x32ffffff, 0x3f800000};  // its largest; one
  constexpr std::uint32_t kCount = sizeof(kSpecial) / sizeof(kSpecial[0]);
  const Philox random = Philox::at(seed, 0, static_cast<std::uint64_t>(i));
  const std::uint32_t kind = random.below(0, 16), bits = random.word[1];
  if (kind == 0) return kSpecial[random.below(2, kCount)];
  if (kind == 1) return bits;
  return (bits & 0x807fffffu) | (100 + random.below(2, 32)) << 23;
}

/// The buffers of an update in their order: gradient, parameters, two moments, copy; bytes.
struct UpdateBits {
  optimizer::Rule rule;
  kernels::DType states, copy;
  bool has_copy;
  std::int64_t count, offset = 0;  ///< elements, and how many stand before the first and after all
  std::int64_t first_element = 0;
  kernels::DType gradient = kernels::DType::f32;
  bool split = false;  ///< parameters are lower halves, the copy is the upper ones

  [[nodiscard]] static std::int64_t width(kernels::DType type) {
    return type == kernels::DType::f32 ? 4 : 2;
  }
  [[nodiscard]] std::vector<at::Tensor> buffers() const {
    std::vector<at::Tensor> all;
    for (std::uint64_t b = 0; b < 4; ++b) {
      const bool wide =
          b == 0 ? gradient == kernels::DType::f32 : type_of(b) == kernels::DType::f32;
      const at::Tensor words = at::empty({count + 2 * offset}, wide ? at::kInt : at::kShort);
      for (std::int64_t i = 0; i < words.numel(); ++i) {
        std::uint32_t bits = delicate_bits(b, i);
        // Second moments are mostly squares.
        if (b == 3 && i % 8 != 0) bits &= 0x7fffffffu;
        if (wide) {
          words.mutable_data_ptr<std::int32_t>()[i] = std::bit_cast<std::int32_t>(bits);
        } else {
          words.mutable_data_ptr<std::int16_t>()[i] =
              static_cast<std::int16_t>(split && b == 1 ? halves_of(i).lower : bits >> 16);
        }
      }
      all.push_back(words.view(at::kByte));
    }
    all.push_back(at::zeros({(count + 2 * offset) * width(copy)}, at::kByte));
    if (!split) return all;
    const at::Tensor upper = all.back().view(at::kShort);
    for (std::int64_t i = 0; i < upper.numel(); ++i)
      upper.mutable_data_ptr<std::int16_t>()[i] = static_cast<std::int16_t>(halves_of(i).upper);
    return all;
  }
  /// Halves of weight i, which other updates have whole.
  [[nodiscard]] static kernels::SplitWeight halves_of(std::int64_t i) {
    return kernels::SplitWeight::of(std::bit_cast<float>(delicate_bits(1, i)));
  }
  [[nodiscard]] kernels::DType type_of(std::uint64_t buffer) const {
    return split && buffer == 1 ? kernels::DType::bf16 : states;
  }
  /// `buffers` on any device, `control` on the same.
  [[nodiscard]] kernels::OptimizerUpdate args(const std::vector<at::Tensor>& buffers,
                                              const at::Tensor& control) const {
    const auto at = [&](std::size_t b, kernels::DType type) -> void* {
      return static_cast<char*>(buffers[b].mutable_data_ptr()) + offset * width(type);
    };
    return {.states = states,
            .parameters = at(1, type_of(1)),
            .moments = {at(2, states), at(3, states)},
            .gradient = at(0, gradient),
            .gradient_type = gradient,
            .compute = has_copy ? at(4, copy) : nullptr,
            .compute_type = copy,
            .split = split,
            .control = control.const_data_ptr<float>(),
            .count = count,
            .rule = rule,
            .seed = 7,
            .first_element = first_element};
  }
};

/// Every rule with every type of states, copy and gradient that there is.
inline std::vector<UpdateBits> all_updates(std::int64_t count) {
  using enum kernels::DType;
  using namespace optimizer;
  std::vector<UpdateBits> all;
  const double lr = 1e-2, decay = 0.1;
  for (const Rule& rule :
       {Rule(AdamW{.lr = lr, .weight_decay = decay}), Rule(Sgd{.lr = lr, .weight_decay = decay}),
        Rule(Sgd{.lr = lr, .weight_decay = decay, .nesterov = true}),
        Rule(Rmsprop{.lr = lr, .weight_decay = decay}),
        Rule(RmspropTensorflow{.lr = lr, .weight_decay = decay}),
        Rule(Lion{.lr = lr, .weight_decay = decay}), Rule(MuonMomentum{}),
        Rule(MuonMomentum{.nesterov = false}), Rule(MuonStep{.step = lr, .shrink = 1e-3}),
        Rule(Average{.share = 0.3})}) {
    const bool direction = is_direction(rule);
    for (const auto copy : {f32, bf16, f16}) {
      if (direction && copy == f16) continue;
      all.push_back({.rule = rule, .states = f32, .copy = copy, .has_copy = true, .count = count});
    }
    all.push_back(
        {.rule = rule, .states = bf16, .copy = bf16, .has_copy = direction, .count = count});
    if (direction) continue;
    all.push_back({.rule = rule, .states = f32, .copy = bf16, .has_copy = true, .count = count});
    all.back().split = true;
  }
  const std::size_t in_fp32 = all.size();
  for (std::size_t i = 0; i < in_fp32; ++i) {
    if (all[i].copy != bf16) continue;
    all.push_back(all[i]);
    all.back().gradient = bf16;
  }
  return all;
}

/// The first buffer and byte that differ, or -1 and -1.
inline std::pair<int, std::int64_t> first_difference(const std::vector<at::Tensor>& a,
                                                     const std::vector<at::Tensor>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!a[i].equal(b[i]))
      return {static_cast<int>(i), a[i].ne(b[i]).nonzero()[0].item<std::int64_t>()};
  }
  return {-1, -1};
}

}  // namespace dstrain::test
