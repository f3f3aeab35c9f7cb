#include <cstdint>
#include <cstdio>
#include <cstring>
#include <type_traits>
#include <vector>

#include "engine/base/philox.h"
#include "engine/data/images/resize_loops.h"
#include "engine/kernels/optimizer/control.h"
#include "engine/kernels/optimizer/optimizer_cpu.h"

/// Prints hashes of what the loops without vector units compute, which are to be the same on every
/// kind of processor: the optimizer's rules with fp32 and bf16 states, and the resize of images. It
/// needs neither LibTorch nor CUDA, so that it can be compiled for another processor and run there
/// by qemu (processor_bits_test.py).
namespace dstrain {
namespace {

constexpr std::int64_t kCount = 5000;

/// Usual numbers, and one in 16 of any bits.
float number(std::uint64_t seed, std::int64_t i) {
  const Philox random = Philox::at(seed, 0, static_cast<std::uint64_t>(i));
  std::uint32_t bits = random.word[1];
  if (random.below(0, 16) != 0) bits = (bits & 0x807fffffu) | (110 + random.below(2, 24)) << 23;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

std::vector<unsigned char> numbers(std::uint64_t seed, kernels::DType type) {
  const std::size_t width = type == kernels::DType::f32 ? 4 : 2;
  std::vector<unsigned char> bytes(kCount * width);
  for (std::int64_t i = 0; i < kCount; ++i) {
    const float value = number(seed, i);
    // The upper half of an fp32 number is a bf16 number.
    std::memcpy(&bytes[static_cast<std::size_t>(i) * width],
                reinterpret_cast<const unsigned char*>(&value) + (4 - width), width);
  }
  return bytes;
}

std::uint64_t hash_of(const std::vector<unsigned char>& bytes, std::uint64_t hash) {
  for (const unsigned char byte : bytes) hash = (hash ^ byte) * 0x100000001b3u;
  return hash;
}

template <class Rule>
void show_rule(const char* name, const Rule& rule) {
  float control[optimizer::kControlSize] = {};
  for (float& value : control) value = 1;
  control[optimizer::kSkip] = 0;
  control[optimizer::kCorrection1] = 0.271F;
  control[optimizer::kCorrection2] = 0.0297F;
  control[optimizer::kGradientFactor] = 0.37F;
  control[optimizer::kAppliedSteps] = 3;
  for (const kernels::DType states : {kernels::DType::f32, kernels::DType::bf16}) {
    for (const kernels::DType copy : {kernels::DType::bf16, kernels::DType::f16}) {
      if (states == kernels::DType::bf16 && copy == kernels::DType::f16) continue;
      std::vector<unsigned char> parameters = numbers(1, states), first = numbers(2, states),
                                 second = numbers(3, states),
                                 made = numbers(5, kernels::DType::bf16);
      const std::vector<unsigned char> gradient = numbers(4, kernels::DType::f32);
      const kernels::OptimizerUpdate update{
          .states = states,
          .parameters = parameters.data(),
          .moments = {first.data(), second.data()},
          .gradient = gradient.data(),
          .compute = states == kernels::DType::f32 || Rule::kDirection ? made.data() : nullptr,
          .compute_type = copy,
          .control = control,
          .count = kCount,
          .rule = rule,
          .seed = 42,
          .first_element = 8};
      kernels::cpu::run_loop<kernels::cpu::VectorUnit::none, Rule>(update, rule.element(control), 0,
                                                                   kCount);
      std::uint64_t hash = 0xcbf29ce484222325u;
      for (const auto* bytes : {&parameters, &first, &second, &made}) hash = hash_of(*bytes, hash);
      std::printf("%s %d %d %016llx\n", name, static_cast<int>(states), static_cast<int>(copy),
                  static_cast<unsigned long long>(hash));
    }
  }
}

void show_resize() {
  constexpr int kWidth = 37, kOutputs = 23;
  constexpr std::size_t kRows = 5;
  resize::Taps taps;
  for (int i = 0; i < kOutputs; ++i) {
    taps.first.push_back(i);
    std::int32_t left = 1 << resize::kWeightBits;
    for (int t = 0; t < 3; ++t) {
      taps.weights.push_back((1 << 20) - 12345 * (i + t));
      left -= taps.weights.back();
    }
    taps.weights.push_back(left);
    taps.begin.push_back(static_cast<int>(taps.weights.size()));
  }
  std::vector<unsigned char> from(kRows * kWidth * 3 + resize::kSlack), to(kRows * kOutputs * 3),
      line(kWidth * 3);
  for (std::size_t i = 0; i < from.size(); ++i)
    from[i] = static_cast<unsigned char>(Philox::at(9, 0, i).word[0]);
  resize::Loops<resize::Plain>::rgb_columns(from.data(), kWidth, kRows, taps, to.data());
  resize::Loops<resize::Plain>::rows(from.data(), kWidth * 3, taps.of(0), 4, kWidth * 3,
                                     line.data());
  std::printf("resize %016llx\n",
              static_cast<unsigned long long>(hash_of(line, hash_of(to, 0xcbf29ce484222325u))));
}

}  // namespace
}  // namespace dstrain

int main() {
  using namespace dstrain;
  show_rule("adamw", optimizer::AdamW{.lr = 1e-3, .weight_decay = 0.1});
  show_rule("sgd", optimizer::Sgd{.lr = 1e-2, .weight_decay = 0.1, .nesterov = true});
  show_rule("lion", optimizer::Lion{.lr = 1e-4});
  show_rule("rmsprop", optimizer::Rmsprop{.lr = 1e-3});
  show_rule("rmsprop_tensorflow", optimizer::RmspropTensorflow{.lr = 1e-3});
  show_rule("average", optimizer::Average{});
  show_resize();
  return 0;
}
