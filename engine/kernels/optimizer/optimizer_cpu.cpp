#include "engine/kernels/optimizer/optimizer_cpu.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <type_traits>
#include <variant>
#include <vector>

#include "engine/kernels/optimizer/control.h"
#include "engine/kernels/optimizer/kernels.h"

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

bool has(VectorUnit unit) {
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
        switch (unit) {
          case VectorUnit::none:
            return run_loop<VectorUnit::none, Rule>(args, element, begin, end);
          case VectorUnit::avx2:
            return run_loop<VectorUnit::avx2, Rule>(args, element, begin, end);
          case VectorUnit::avx512:
            return run_loop<VectorUnit::avx512, Rule>(args, element, begin, end);
        }
      },
      args.rule);
}

void update(const OptimizerUpdate& args) {
  for_chunks(args.count,
             [&](std::int64_t begin, std::int64_t end) { update_range(args, begin, end); });
}

}  // namespace dstrain::kernels::cpu
