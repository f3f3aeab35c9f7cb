#include "engine/kernels/optimizer/optimizer_cpu.h"

#include <ATen/Parallel.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "engine/kernels/optimizer/control.h"
#include "engine/kernels/optimizer/kernels.h"
#include "engine/kernels/optimizer/stochastic_rounding.h"

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

template <class Rule, class Element>
void update_exact(const OptimizerUpdate& args, const Element& element, std::int64_t begin,
                  std::int64_t end) {
  constexpr int kMoments = Rule::kMoments;
  auto* const master = static_cast<float*>(args.parameters);
  float* __restrict parameters = master;
  float* __restrict first = static_cast<float*>(args.moments[0]);
  float* __restrict second = static_cast<float*>(args.moments[1]);
  const float* __restrict gradient = args.gradient;
  [[maybe_unused]] const bool wide = args.compute_type == DType::f32;
  for (std::int64_t i = begin; i < end; ++i) {
    float parameter = parameters[i];
    float moments[OptimizerUpdate::kMaxMoments];
    if constexpr (kMoments > 0) moments[0] = first[i];
    if constexpr (kMoments > 1) moments[1] = second[i];
    const float copy = element.template update<false>(gradient[i], parameter, moments);
    if constexpr (Rule::kDirection) {
      if (wide) {
        static_cast<float*>(args.compute)[i] = copy;
      } else {
        static_cast<c10::BFloat16*>(args.compute)[i] = copy;
      }
    }
    parameters[i] = parameter;
    if constexpr (kMoments > 0) first[i] = moments[0];
    if constexpr (kMoments > 1) second[i] = moments[1];
  }
  if constexpr (!Rule::kDirection)
    write_compute(args.compute, args.compute_type, master, begin, end);
}

template <class Rule, class Element>
void update_rounded(const OptimizerUpdate& args, const Element& element, std::int64_t begin,
                    std::int64_t end) {
  constexpr int kMoments = Rule::kMoments;
  const std::uint64_t key = random_key(args.seed, RandomStream::rounding);
  const auto step = static_cast<std::uint64_t>(args.control[kAppliedSteps]);
  auto* const parameters = static_cast<std::uint16_t*>(args.parameters);
  for_rounded<1 + kMoments>(
      key, step, args.first_element, begin, end, [&](std::int64_t i, const auto& bits) {
        float parameter = bf16_value(parameters[i]);
        float moments[OptimizerUpdate::kMaxMoments];
        for (int m = 0; m < kMoments; ++m)
          moments[m] = bf16_value(static_cast<const std::uint16_t*>(args.moments[m])[i]);
        const float copy = element.template update<true>(args.gradient[i], parameter, moments);
        if constexpr (Rule::kDirection) static_cast<c10::BFloat16*>(args.compute)[i] = copy;
        for (int m = 0; m < kMoments; ++m)
          static_cast<std::uint16_t*>(args.moments[m])[i] =
              round_stochastically(moments[m], bits(rounded_moment(m)));
        parameters[i] = round_stochastically(parameter, bits(RoundedState::parameter));
      });
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

void update(const OptimizerUpdate& args) {
  if (args.control[kSkip] != 0) return;
  std::visit(
      [&](const auto& rule) {
        using Rule = std::decay_t<decltype(rule)>;
        const auto element = rule.element(args.control);
        for_chunks(args.count, [&](std::int64_t begin, std::int64_t end) {
          if (args.states == DType::bf16) {
            update_rounded<Rule>(args, element, begin, end);
          } else {
            update_exact<Rule>(args, element, begin, end);
          }
        });
      },
      args.rule);
}

}  // namespace dstrain::kernels::cpu
