#include "engine/kernels/optimizer_cpu.h"

#include <ATen/Parallel.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "engine/kernels/control.h"
#include "engine/kernels/stochastic_rounding.h"

namespace dstrain::kernels::cpu {
namespace {

using namespace dstrain::optimizer;

constexpr std::int64_t kChunk = 32768;

/// Calls body(begin, end) for chunks of [0, count).
template <typename Body>
void for_chunks(std::int64_t count, const Body& body) {
  at::parallel_for(0, (count + kChunk - 1) / kChunk, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t chunk = first; chunk < last; ++chunk) {
      body(chunk * kChunk, std::min(count, (chunk + 1) * kChunk));
    }
  });
}

template <typename T>
void round_to(const float* __restrict from, T* __restrict to, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<T>(from[i]);
}

void write_compute(void* compute, DType dtype, const float* master, std::int64_t begin,
                   std::int64_t end) {
  if (compute == nullptr) return;
  switch (dtype) {
    case DType::f32:
      return round_to(master + begin, static_cast<float*>(compute) + begin, end - begin);
    case DType::bf16:
      return round_to(master + begin, static_cast<c10::BFloat16*>(compute) + begin, end - begin);
    case DType::f16:
      return round_to(master + begin, static_cast<c10::Half*>(compute) + begin, end - begin);
  }
}

/// Calls body(i, bits) for i in [begin, end), where bits(state) are the random bits of element
/// first_element + i.
template <int States, typename Body>
void for_rounded(std::uint64_t key, std::uint64_t step, std::int64_t first_element,
                 std::int64_t begin, std::int64_t end, const Body& body) {
  for (std::int64_t i = begin; i < end;) {
    const std::int64_t element = first_element + i, group = element / RoundingBits::kTogether;
    RoundingBits bits[States];
    for (int s = 0; s < States; ++s)
      bits[s] = RoundingBits::at(key, step, group, static_cast<RoundedState>(s));
    int k = static_cast<int>(element % RoundingBits::kTogether);
    for (; k < RoundingBits::kTogether && i < end; ++k, ++i) {
      body(i, [&](RoundedState state) { return bits[static_cast<int>(state)].of(k); });
    }
  }
}

}  // namespace

void add_squares(const AddSquares& args) {
  std::vector<double> chunks(static_cast<std::size_t>((args.count + kChunk - 1) / kChunk));
  for_chunks(args.count, [&](std::int64_t begin, std::int64_t end) {
    constexpr std::int64_t kLanes = 16;  // a fixed order that vector units can follow
    double lanes[kLanes] = {};
    std::int64_t i = begin;
    for (; i + kLanes <= end; i += kLanes) {
      for (std::int64_t k = 0; k < kLanes; ++k) {
        const double x = args.x[i + k];
        lanes[k] += x * x;
      }
    }
    for (; i < end; ++i)
      lanes[0] += static_cast<double>(args.x[i]) * static_cast<double>(args.x[i]);
    double sum = 0;
    for (const double lane : lanes) sum += lane;
    chunks[static_cast<std::size_t>(begin / kChunk)] = sum;
  });
  double sum = 0;
  for (const double chunk : chunks) sum += chunk;
  *args.sum += static_cast<float>(static_cast<double>(args.factor) * sum);
}

void adamw(const AdamWStep& args) {
  if (args.control[kSkip] != 0) return;
  const double t = static_cast<double>(args.control[kAppliedSteps]);
  const float factor = args.control[kGradientFactor];
  const float step_size = static_cast<float>(args.lr / (1 - std::pow(args.beta1, t)));
  const float rsqrt_correction = static_cast<float>(1 / std::sqrt(1 - std::pow(args.beta2, t)));
  const float beta2 = static_cast<float>(args.beta2), eps = static_cast<float>(args.eps);
  const float rest1 = static_cast<float>(1 - args.beta1),
              rest2 = static_cast<float>(1 - args.beta2);
  const float keep = static_cast<float>(1 - args.lr * args.weight_decay);
  for_chunks(args.count, [&](std::int64_t begin, std::int64_t end) {
    float* __restrict master = args.master;
    float* __restrict average = args.exp_avg;
    float* __restrict square = args.exp_avg_sq;
    const float* __restrict gradient = args.gradient;
    for (std::int64_t i = begin; i < end; ++i) {
      const float g = gradient[i] * factor;
      average[i] += rest1 * (g - average[i]);
      square[i] = beta2 * square[i] + rest2 * g * g;
      master[i] = master[i] * keep -
                  step_size * average[i] / (std::sqrt(square[i]) * rsqrt_correction + eps);
    }
    write_compute(args.compute, args.dtype, args.master, begin, end);
  });
}

void sgd(const SgdStep& args) {
  if (args.control[kSkip] != 0) return;
  const float factor = args.control[kGradientFactor], lr = static_cast<float>(args.lr);
  const float momentum = static_cast<float>(args.momentum),
              decay = static_cast<float>(args.weight_decay);
  for_chunks(args.count, [&](std::int64_t begin, std::int64_t end) {
    float* __restrict master = args.master;
    float* __restrict buffer = args.momentum_buffer;
    const float* __restrict gradient = args.gradient;
    for (std::int64_t i = begin; i < end; ++i) {
      buffer[i] = momentum * buffer[i] + (gradient[i] * factor + decay * master[i]);
      master[i] -= lr * buffer[i];
    }
    write_compute(args.compute, args.dtype, args.master, begin, end);
  });
}

void adamw_bf16(const AdamWBf16Step& args) {
  if (args.control[kSkip] != 0) return;
  const double t = static_cast<double>(args.control[kAppliedSteps]);
  const float factor = args.control[kGradientFactor];
  const float step_size = static_cast<float>(args.lr / (1 - std::pow(args.beta1, t)));
  const float rsqrt_correction = static_cast<float>(1 / std::sqrt(1 - std::pow(args.beta2, t)));
  const float beta2 = static_cast<float>(args.beta2), eps = static_cast<float>(args.eps);
  const float rest1 = static_cast<float>(1 - args.beta1),
              rest2 = static_cast<float>(1 - args.beta2);
  const float keep = static_cast<float>(1 - args.lr * args.weight_decay);
  const std::uint64_t key = random_key(args.seed, RandomStream::rounding);
  auto* const parameters = static_cast<std::uint16_t*>(args.parameters);
  auto* const averages = static_cast<std::uint16_t*>(args.exp_avg);
  auto* const squares = static_cast<std::uint16_t*>(args.exp_avg_sq);
  for_chunks(args.count, [&](std::int64_t begin, std::int64_t end) {
    for_rounded<3>(key, static_cast<std::uint64_t>(t), args.first_element, begin, end,
                   [&](std::int64_t i, const auto& bits) {
                     const float g = args.gradient[i] * factor;
                     float average = bf16_value(averages[i]), square = bf16_value(squares[i]),
                           parameter = bf16_value(parameters[i]);
                     average += rest1 * (g - average);
                     square = beta2 * square + rest2 * g * g;
                     parameter = parameter * keep -
                                 step_size * average / (std::sqrt(square) * rsqrt_correction + eps);
                     averages[i] = round_stochastically(average, bits(RoundedState::first_moment));
                     squares[i] = round_stochastically(square, bits(RoundedState::second_moment));
                     parameters[i] = round_stochastically(parameter, bits(RoundedState::parameter));
                   });
  });
}

void sgd_bf16(const SgdBf16Step& args) {
  if (args.control[kSkip] != 0) return;
  const auto step = static_cast<std::uint64_t>(args.control[kAppliedSteps]);
  const float factor = args.control[kGradientFactor], lr = static_cast<float>(args.lr);
  const float momentum = static_cast<float>(args.momentum),
              decay = static_cast<float>(args.weight_decay);
  const std::uint64_t key = random_key(args.seed, RandomStream::rounding);
  auto* const parameters = static_cast<std::uint16_t*>(args.parameters);
  auto* const buffers = static_cast<std::uint16_t*>(args.momentum_buffer);
  for_chunks(args.count, [&](std::int64_t begin, std::int64_t end) {
    for_rounded<2>(
        key, step, args.first_element, begin, end, [&](std::int64_t i, const auto& bits) {
          const float parameter = bf16_value(parameters[i]);
          const float buffer =
              momentum * bf16_value(buffers[i]) + (args.gradient[i] * factor + decay * parameter);
          buffers[i] = round_stochastically(buffer, bits(RoundedState::first_moment));
          parameters[i] =
              round_stochastically(parameter - lr * buffer, bits(RoundedState::parameter));
        });
  });
}

}  // namespace dstrain::kernels::cpu
