#include "engine/kernels/linear/gemm_trials.h"

#include <ATen/TensorOperators.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <numeric>
#include <string_view>

namespace dstrain::ops {
namespace {

constexpr double kClose = 1.1;       // candidates so much slower than the best are not timed again
constexpr int kRepetitions = 3;      // of those that are
constexpr double kLeastTime = 2e-4;  // seconds of a timing, against the clock's steps
constexpr double kInfinite = std::numeric_limits<double>::infinity();
// Sustained runs, of candidates that take as long as kShortest; what is shorter waits for memory or
// for its launch.
constexpr std::size_t kSustained = 18;
constexpr double kShortest = 3e-5;
constexpr double kWarmUp = 0.03, kRun = 0.05;  // seconds
constexpr int kRuns = 2;

/// One product with its candidates.
class Trials {
 public:
  Trials(cublasLtHandle_t library, GemmDescription& description, const GemmCall& call,
         const std::vector<cublasLtMatmulAlgo_t>& candidates, const GemmWorkspace& workspace,
         const c10::cuda::CUDAStream& stream)
      : library_(library),
        description_(description),
        call_(call),
        candidates_(candidates),
        workspace_(workspace),
        stream_(stream) {}

  /// Seconds of one launch of each candidate; infinite where it does not run, or is much slower
  /// than others.
  [[nodiscard]] std::vector<double> quick() {
    std::vector<double> times;
    for (const auto& candidate : candidates_) {
      const bool loaded = time_of(candidate, 1) < kInfinite;
      times.push_back(loaded ? time_of(candidate, 1) : kInfinite);
    }
    const double least = *std::ranges::min_element(times);
    std::vector<double> finals(candidates_.size(), kInfinite);
    if (least == kInfinite) return finals;
    const int launches = std::clamp(static_cast<int>(std::ceil(kLeastTime / least)), 1, 20);
    for (int repetition = 0; repetition < kRepetitions; ++repetition) {
      for (std::size_t i = 0; i < candidates_.size(); ++i) {
        if (times[i] <= kClose * least)
          finals[i] = std::min(finals[i], time_of(candidates_[i], launches));
      }
    }
    return finals;
  }

  /// The same of the fastest ones by `quick`, in runs that are long enough for the clock to settle;
  /// all of them before any runs again, as the GPU's heat counts too.
  [[nodiscard]] std::vector<double> sustained(const std::vector<double>& quick) {
    std::vector<std::size_t> order(candidates_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::sort(order, {}, [&](std::size_t i) { return quick[i]; });
    order.resize(std::min(order.size(), kSustained));
    std::erase_if(order, [&](std::size_t i) { return quick[i] == kInfinite; });
    std::vector<double> times(candidates_.size(), kInfinite);
    for (const std::size_t i : order) times[i] = 0;
    for (int run = 0; run < kRuns; ++run) {
      for (const std::size_t i : order) {
        const auto launches = [&](double seconds) {
          return std::max(1, static_cast<int>(seconds / quick[i]));
        };
        (void)time_of(candidates_[i], launches(kWarmUp));
        times[i] += time_of(candidates_[i], launches(kRun)) / kRuns;
      }
    }
    return times;
  }

 private:
  [[nodiscard]] double time_of(const cublasLtMatmulAlgo_t& algorithm, int launches) {
    at::cuda::CUDAEvent start(cudaEventDefault), stop(cudaEventDefault);
    start.record(stream_);
    for (int i = 0; i < launches; ++i) {
      if (description_.launch(library_, call_, algorithm, workspace_, stream_.stream()) !=
          CUBLAS_STATUS_SUCCESS)
        return kInfinite;
    }
    stop.record(stream_);
    stop.synchronize();
    return 1e-3 * static_cast<double>(start.elapsed_time(stop)) / launches;
  }

  cublasLtHandle_t library_;
  GemmDescription& description_;
  const GemmCall& call_;
  const std::vector<cublasLtMatmulAlgo_t>& candidates_;
  const GemmWorkspace& workspace_;
  c10::cuda::CUDAStream stream_;
};

}  // namespace

GemmTuning gemm_tuning() {
  static const GemmTuning wanted = [] {
    const char* value = std::getenv("DSTRAIN_GEMM_TUNE");
    if (value == nullptr) return GemmTuning::quick;
    if (std::string_view(value) == "0") return GemmTuning::none;
    return std::string_view(value) == "sustained" ? GemmTuning::sustained : GemmTuning::quick;
  }();
  return wanted;
}

std::optional<GemmChoice> fastest_algorithm(cublasLtHandle_t library, GemmDescription& description,
                                            const GemmCall& call,
                                            const std::vector<cublasLtMatmulAlgo_t>& candidates,
                                            const GemmWorkspace& workspace,
                                            const c10::cuda::CUDAStream& stream) {
  at::Tensor trial_out;
  GemmCall trial = call;
  if (call.beta != 0) {  // what is added to must be added to once
    try {
      trial_out =
          at::empty({call.key.m * call.key.out_stride},
                    at::TensorOptions(call.key.out_type).device(at::kCUDA, stream.device_index()));
    } catch (const c10::OutOfMemoryError&) {
      return std::nullopt;
    }
    trial.out = trial_out.mutable_data_ptr();
  }
  Trials trials(library, description, trial, candidates, workspace, stream);
  std::vector<double> times = trials.quick();
  const auto fastest = [&] {
    return static_cast<std::size_t>(std::ranges::min_element(times) - times.begin());
  };
  const std::size_t by_quick = fastest();
  if (times[by_quick] == kInfinite) return std::nullopt;
  if (gemm_tuning() == GemmTuning::sustained && times[by_quick] >= kShortest) {
    times = trials.sustained(times);
    fmt::print(stderr, "product {}: {:.1f} us, {:.1f} by what is fastest alone; {} algorithms\n",
               call.key.text(), 1e6 * times[fastest()], 1e6 * times[by_quick], candidates.size());
  }
  const std::size_t best = fastest();
  GemmChoice choice{.time_s = times[best]};
  std::memcpy(choice.algorithm.data(), candidates[best].data, sizeof(choice.algorithm));
  return choice;
}

cublasLtMatmulAlgo_t algorithm_of(const GemmChoice& choice) {
  cublasLtMatmulAlgo_t algorithm;
  static_assert(sizeof(algorithm.data) == sizeof(choice.algorithm));
  std::memcpy(algorithm.data, choice.algorithm.data(), sizeof(algorithm.data));
  return algorithm;
}

}  // namespace dstrain::ops
