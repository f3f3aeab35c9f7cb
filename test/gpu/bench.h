#pragma once

#include <ATen/cuda/CUDAEvent.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "engine/kernels/kernels.h"
#include "engine/kernels/op_support.h"
#include "engine/kernels/optimizer/optimizer.h"
#include "test/gpu/compare.h"
#include "test/kernels/optimizer_control.h"

/// How long a kernel takes on a GPU: what the benchmarks share.
namespace dstrain::test {

inline constexpr double kCopyBytesPerS = 4.29e12;   // what a copy between large buffers reaches
inline constexpr double kMemoryBytesPerS = 4.8e12;  // of the data sheet
inline constexpr double kRotatedBytes = 240e6;      // several times the L2 cache of 60 MB
inline constexpr double kRoundBytes = 1e9;          // so much that what stays in L2 hardly counts
inline constexpr auto kType = at::kBFloat16;
inline constexpr auto kDType = kernels::DType::bf16;

using Run = std::function<void()>;

struct Case {
  std::string name, shape;
  double bytes;
  std::function<Run()> make;  ///< fresh random tensors, and the launch on them
};

inline at::TensorOptions on_gpu(at::ScalarType type) {
  return at::TensorOptions(at::kCUDA).dtype(type);
}
inline at::Tensor random(at::IntArrayRef sizes, at::ScalarType type = kType) {
  return at::randn(sizes, on_gpu(type));
}
inline at::Tensor random32(at::IntArrayRef sizes) { return random(sizes, at::kFloat); }
inline void* data(const at::Tensor& tensor) { return tensor.mutable_data_ptr(); }

/// Seconds of one launch: the median over rounds of many launches, one after the other so that
/// writes are paid, each on other tensors than the last. A long read before a round empties L2 and
/// lets the host get ahead of the GPU.
inline double seconds_of(const std::function<Run()>& make, double bytes) {
  const at::Tensor large = random32({1 << 30});
  const auto count = [](double wanted, double min, double max) {
    return static_cast<std::size_t>(std::clamp(std::ceil(wanted), min, max));
  };
  const std::size_t num_launches = count(kRoundBytes / bytes, 8, 64);
  const std::size_t num_sets = count(kRotatedBytes / bytes, bytes < 2e9 ? 2 : 1, 64);
  std::vector<Run> sets;
  for (std::size_t i = 0; i < num_sets; ++i) sets.push_back(make());
  std::vector<double> times;
  std::size_t next = 0;
  for (int round = -1; round < 25; ++round) {  // round -1 warms up
    at::cuda::CUDAEvent start(cudaEventDefault), stop(cudaEventDefault);
    const at::Tensor sum = large.sum();
    start.record();
    for (std::size_t i = 0; i < num_launches; ++i) sets[next++ % num_sets]();
    stop.record();
    stop.synchronize();
    const double round_s = 1e-3 * static_cast<double>(start.elapsed_time(stop));
    if (round >= 0) times.push_back(round_s / static_cast<double>(num_launches));
  }
  std::nth_element(times.begin(), times.begin() + 12, times.end());
  return times[12];
}

/// A launch whose arguments point into `owned`.
template <typename Args>
Run launch(void (*kernel)(const Args&, cudaStream_t), const Args& args,
           std::vector<at::Tensor> owned) {
  return [kernel, args, kept = std::move(owned)] { kernel(args, ops::current_stream()); };
}

/// A step of `rule` on n elements, with fp32 states and a compute copy or with bf16 states.
inline Run optimizer_step(const optimizer::Rule& rule, std::int64_t n, at::ScalarType states) {
  optimizer::Step step{.master = random({n}, states),
                       .moments = {},
                       .gradient = random32({n}),
                       .compute = states == at::kFloat ? random({n}) : at::Tensor(),
                       .rule = rule};
  for (int m = 0; m < num_moments(rule); ++m) step.moments.push_back(random({n}, states).square_());
  return [step, control = control_at(1).to(at::kCUDA)] { optimizer::update(step, control); };
}

inline void print_head() {
  std::puts("| kernel | shape | us | GB/s | share of 4.29 TB/s |\n| --- | --- | --- | --- | --- |");
}

/// Times the cases and prints a row of the table for each.
inline void print_rows(const std::vector<Case>& cases, const char* model) {
  for (const Case& c : cases) {
    const double one_s = seconds_of(c.make, c.bytes), rate = c.bytes / one_s;
    std::printf("| %s | %s %s | %.1f | %.0f | %.0f %% |\n", c.name.c_str(), model, c.shape.c_str(),
                1e6 * one_s, 1e-9 * rate, 100 * rate / kCopyBytesPerS);
    std::fflush(stdout);
    CAPTURE(c.name, model);
    CHECK(rate < kMemoryBytesPerS);  // else data came from L2, or was not touched
  }
}

}  // namespace dstrain::test
