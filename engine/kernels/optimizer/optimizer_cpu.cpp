#include "engine/kernels/optimizer/optimizer_cpu.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <type_traits>
#include <variant>
#include <vector>

#include "engine/base/error.h"
#include "engine/kernels/gradient_format.h"
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

/// The widest vector unit of this CPU.
VectorUnit widest() {
  static const VectorUnit unit = has(VectorUnit::avx512) ? VectorUnit::avx512
                                 : has(VectorUnit::avx2) ? VectorUnit::avx2
                                                         : VectorUnit::none;
  return unit;
}

/// In a fixed order; `value`(i) is element i.
template <typename Value>
double sum_squares(std::int64_t count, const Value& value) {
  std::vector<double> chunks(static_cast<std::size_t>((count + kChunk - 1) / kChunk));
  for_chunks(count, [&](std::int64_t begin, std::int64_t end) {
    constexpr std::int64_t kLanes = 16;  // an order that vector units can follow
    double lanes[kLanes] = {};
    std::int64_t i = begin;
    for (; i + kLanes <= end; i += kLanes) {
      for (std::int64_t k = 0; k < kLanes; ++k) {
        const double x = value(i + k);
        lanes[k] += x * x;
      }
    }
    for (; i < end; ++i) lanes[0] += static_cast<double>(value(i)) * static_cast<double>(value(i));
    double sum = 0;
    for (const double lane : lanes) sum += lane;
    chunks[static_cast<std::size_t>(begin / kChunk)] = sum;
  });
  double sum = 0;
  for (const double chunk : chunks) sum += chunk;
  return sum;
}

}  // namespace

void add_squares(const AddSquares& args) {
  double sum = 0;
  with_gradient(args.type, [&]<DType kType>(GradientFormat<kType>) {
    sum = sum_squares(args.count,
                      [x = args.x](std::int64_t i) { return gradient_value<kType>(x, i); });
  });
  *args.sum += static_cast<float>(static_cast<double>(args.factor) * sum);
}

bool has(VectorUnit unit) {
  if (unit == VectorUnit::none) return true;
#if defined(__x86_64__)
  switch (unit) {
    case VectorUnit::none:
      return true;
    case VectorUnit::avx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
             __builtin_cpu_supports("f16c");
    case VectorUnit::avx512:
      return has(VectorUnit::avx2) && __builtin_cpu_supports("avx512f") &&
             __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512vl");
  }
#endif
  return false;
}

void update_range(const OptimizerUpdate& args, std::int64_t begin, std::int64_t end) {
  update_range(args, begin, end, widest());
}

void update_range(const OptimizerUpdate& args, std::int64_t begin, std::int64_t end,
                  VectorUnit unit) {
  if (args.control[kSkip] != 0) return;
  std::visit(
      [&](const auto& rule) {
        using Rule = std::decay_t<decltype(rule)>;
        const auto element = rule.element(args.control);
#if defined(__x86_64__)
        if (unit == VectorUnit::avx512)
          return run_loop<VectorUnit::avx512, Rule>(args, element, begin, end);
        if (unit == VectorUnit::avx2)
          return run_loop<VectorUnit::avx2, Rule>(args, element, begin, end);
#endif
        DSTRAIN_CHECK(has(unit) && unit == VectorUnit::none, "a vector unit that this CPU lacks");
        run_loop<VectorUnit::none, Rule>(args, element, begin, end);
      },
      args.rule);
}

void update(const OptimizerUpdate& args) {
  for_chunks(args.count,
             [&](std::int64_t begin, std::int64_t end) { update_range(args, begin, end); });
}

}  // namespace dstrain::kernels::cpu
