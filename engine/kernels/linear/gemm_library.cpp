#include "engine/kernels/linear/gemm_library.h"

#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAStream.h>
#include <cublasLt.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/product_workspace.h"
#include "engine/device/graph_zeros.h"
#include "engine/kernels/linear/shipped_choices.h"

namespace dstrain::ops {
namespace {

constexpr int kCandidates = 40;
constexpr double kClose = 1.1;     // candidates so much slower than the best are not timed again
constexpr int kRepetitions = 3;    // of those that are
constexpr double kMinTime = 2e-4;  // seconds of a timing, against the clock's steps
constexpr double kInfinite = std::numeric_limits<double>::infinity();

cudaDataType_t library_type(c10::ScalarType type) {
  switch (type) {
    case c10::kFloat:
      return CUDA_R_32F;
    case c10::kBFloat16:
      return CUDA_R_16BF;
    case c10::kHalf:
      return CUDA_R_16F;
    case c10::kFloat8_e4m3fn:
      return CUDA_R_8F_E4M3;
    case c10::kFloat8_e5m2:
      return CUDA_R_8F_E5M2;
    default:
      throw Error(ErrorKind::internal, fmt::format("product of {}", c10::toString(type)));
  }
}

[[noreturn]] void fail(const GemmKey& key, cublasStatus_t status) {
  const bool fp8 = c10::isFloat8Type(key.a_type);
  throw Error(ErrorKind::internal,
              fmt::format("product {}: {}", key.text(), cublasLtGetStatusString(status)),
              fp8 ? "FP8 needs a GPU of compute capability 8.9 or higher" : "");
}

void require(const GemmKey& key, cublasStatus_t status) {
  if (status != CUBLAS_STATUS_SUCCESS) fail(key, status);
}

struct Workspace {
  void* memory = nullptr;
  std::size_t bytes = 0;
};

/// How parts of a sum may be added up. Parts are fp32 while they are added: rounded to 16 bits, a
/// sum would be off by what its largest part loses.
std::uint32_t reductions(const GemmKey& key) {
  return key.out_type == c10::kFloat ? CUBLASLT_REDUCTION_SCHEME_MASK
                                     : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
}

/// A call in the library's words. It is column-major: our rows are its columns, so it multiplies
/// out^T [n, m] = b^T a^T.
class Description {
 public:
  explicit Description(const GemmCall& call) {
    const GemmKey& key = call.key;
    require(key, cublasLtMatmulDescInit(&product_, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    set(key, CUBLASLT_MATMUL_DESC_TRANSA, key.b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(key, CUBLASLT_MATMUL_DESC_TRANSB, key.a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (key.bias || key.row_sums) {
      set(key, CUBLASLT_MATMUL_DESC_EPILOGUE,
          key.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_BGRADB);
      const cudaDataType_t type = key.bias ? library_type(key.out_type) : CUDA_R_32F;
      set(key, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type);
      set(key, CUBLASLT_MATMUL_DESC_BIAS_POINTER, call.vector);
    }
    if (call.b_scale != nullptr) set(key, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, call.b_scale);
    if (call.a_scale != nullptr) set(key, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, call.a_scale);
    if (key.fast) set(key, CUBLASLT_MATMUL_DESC_FAST_ACCUM, std::int8_t{1});
    layout(key, a_, key.a_type, key.m, key.k, key.a_stride, key.a_transposed);
    layout(key, b_, key.b_type, key.k, key.n, key.b_stride, key.b_transposed);
    layout(key, out_, key.out_type, key.m, key.n, key.out_stride, false);
  }

  [[nodiscard]] std::vector<cublasLtMatmulAlgo_t> candidates(cublasLtHandle_t library,
                                                             const GemmKey& key) {
    cublasLtMatmulPreferenceOpaque_t preference;
    require(key, cublasLtMatmulPreferenceInit(&preference));
    const auto want = [&](cublasLtMatmulPreferenceAttributes_t what, auto value) {
      require(key, cublasLtMatmulPreferenceSetAttribute(&preference, what, &value, sizeof(value)));
    };
    want(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::size_t>(kProductWorkspace));
    want(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions(key));
    for (const auto operand :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      want(operand, static_cast<std::uint32_t>(key.alignment));
    }
    cublasLtMatmulHeuristicResult_t results[kCandidates];
    int found = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        library, &product_, &b_, &a_, &out_, &out_, &preference, kCandidates, results, &found);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || (key.row_sums && status != CUBLAS_STATUS_SUCCESS))
      return {};
    require(key, status);
    std::vector<cublasLtMatmulAlgo_t> algorithms;
    for (int i = 0; i < found; ++i) {
      if (results[i].state == CUBLAS_STATUS_SUCCESS) algorithms.push_back(results[i].algo);
    }
    return algorithms;
  }

  /// Bytes of workspace that the algorithm needs; nothing where it does not run.
  [[nodiscard]] std::optional<std::size_t> needed(cublasLtHandle_t library,
                                                  const cublasLtMatmulAlgo_t& algorithm) {
    cublasLtMatmulHeuristicResult_t result;
    if (cublasLtMatmulAlgoCheck(library, &product_, &b_, &a_, &out_, &out_, &algorithm, &result) !=
        CUBLAS_STATUS_SUCCESS)
      return std::nullopt;
    return result.workspaceSize;
  }

  [[nodiscard]] cublasStatus_t launch(cublasLtHandle_t library, const GemmCall& call,
                                      const cublasLtMatmulAlgo_t& algorithm,
                                      const Workspace& workspace, cudaStream_t stream) {
    return cublasLtMatmul(library, &product_, &call.alpha, call.b, &b_, call.a, &a_, &call.beta,
                          call.out, &out_, call.out, &out_, &algorithm, workspace.memory,
                          workspace.bytes, stream);
  }

 private:
  template <typename Value>
  void set(const GemmKey& key, cublasLtMatmulDescAttributes_t what, Value value) {
    const auto* address = static_cast<const void*>(&value);
    require(key, cublasLtMatmulDescSetAttribute(&product_, what, address, sizeof(value)));
  }
  static void layout(const GemmKey& key, cublasLtMatrixLayoutOpaque_t& layout, c10::ScalarType type,
                     std::int64_t rows, std::int64_t cols, std::int64_t stride, bool transposed) {
    const auto fast = static_cast<std::uint64_t>(transposed ? rows : cols),
               slow = static_cast<std::uint64_t>(transposed ? cols : rows);
    require(key, cublasLtMatrixLayoutInit(&layout, library_type(type), fast, slow, stride));
  }

  cublasLtMatmulDescOpaque_t product_{};
  cublasLtMatrixLayoutOpaque_t a_{}, b_{}, out_{};
};

/// What is known about products on one device.
struct Device {
  struct Plan {
    std::optional<cublasLtMatmulAlgo_t> algorithm;  ///< nothing: cuBLASLt has none
    double time_s = 0;                              ///< 0: not measured
  };
  explicit Device(std::string_view gpu)
      : cache(gemm_cache_file(gpu, cublasLtGetVersion()),
              shipped_choices(gemm_cache_name(gpu, cublasLtGetVersion()))) {
    const cublasStatus_t status = cublasLtCreate(&library);
    if (status != CUBLAS_STATUS_SUCCESS) {
      throw Error(ErrorKind::internal,
                  fmt::format("cuBLASLt does not start: status {}", static_cast<int>(status)));
    }
  }

  std::mutex mutex;
  /// A handle of our own: PyTorch's comes with two workspaces of 32 MiB.
  cublasLtHandle_t library = nullptr;
  GemmCache cache;
  std::map<GemmKey, Plan> plans;
  std::map<cudaStream_t, at::Tensor> workspaces;
};

Device& current_device() {
  static std::mutex mutex;
  // Never destroyed: at exit the driver may be gone before the workspaces.
  static auto& devices = *new std::map<c10::DeviceIndex, std::unique_ptr<Device>>;
  const c10::DeviceIndex index = c10::cuda::current_device();
  const std::lock_guard lock(mutex);
  auto& device = devices[index];
  if (!device) device = std::make_unique<Device>(at::cuda::getDeviceProperties(index)->name);
  return *device;
}

bool tuning_wanted() {
  static const bool wanted = [] {
    const char* value = std::getenv("DSTRAIN_GEMM_TUNE");
    return value == nullptr || std::string_view(value) != "0";
  }();
  return wanted;
}

bool capturing() {
  return c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
}

/// What the call's algorithm is chosen and kept for.
GemmKey tuned_key(const GemmCall& call) {
  GemmKey key = call.key;
  if (!call.rows_vary) return key;
  std::int64_t& rows = key.a_transposed ? key.k : key.m;
  rows = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(rows)));
  return key;
}

/// One call with the device locked.
class Session {
 public:
  Session(Device& device, const GemmCall& call)
      : device_(device),
        call_(call),
        key_(tuned_key(call)),
        library_(device.library),
        stream_(c10::cuda::getCurrentCUDAStream()),
        description_(call) {
    at::Tensor& workspace = device.workspaces[stream_.stream()];
    if (!workspace.defined()) {
      workspace = at::empty({kProductWorkspace},
                            at::TensorOptions(at::kByte).device(at::kCUDA, stream_.device_index()));
    }
    workspace_ = {workspace.mutable_data_ptr(), static_cast<std::size_t>(kProductWorkspace)};
  }

  [[nodiscard]] Device::Plan plan() {
    if (const auto known = device_.plans.find(key_); known != device_.plans.end())
      return known->second;
    if (capturing()) return first(description_.candidates(library_, call_.key));
    Device::Plan made = make();
    device_.plans.emplace(key_, made);
    return made;
  }

  [[nodiscard]] cublasStatus_t run(const Device::Plan& plan) {
    if (!plan.algorithm) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (!call_.rows_vary || usable(*plan.algorithm)) return launch(*plan.algorithm);
    // Chosen for another number of rows, it does not run with this one.
    const Device::Plan own = first(description_.candidates(library_, call_.key));
    return own.algorithm ? launch(*own.algorithm) : CUBLAS_STATUS_NOT_SUPPORTED;
  }

 private:
  [[nodiscard]] cublasStatus_t launch(const cublasLtMatmulAlgo_t& algorithm) {
    return description_.launch(library_, call_, algorithm, workspace_for(algorithm),
                               stream_.stream());
  }

  /// In a graph, an algorithm that only counts its tiles has words of its own.
  [[nodiscard]] Workspace workspace_for(const cublasLtMatmulAlgo_t& algorithm) {
    if (!capturing()) return workspace_;
    const std::optional<std::size_t> needed = description_.needed(library_, algorithm);
    if (!needed || *needed == 0 || *needed > GraphZeros::kMaxPart) return workspace_;
    void* const words = GraphZeros::take(stream_.stream());
    return words == nullptr ? workspace_ : Workspace{words, *needed};
  }

  static Device::Plan first(const std::vector<cublasLtMatmulAlgo_t>& candidates) {
    if (candidates.empty()) return {};
    return {.algorithm = candidates.front()};
  }

  [[nodiscard]] Device::Plan make() {
    if (!tuning_wanted()) return first(description_.candidates(library_, call_.key));
    const std::string key = key_.text();
    const auto saved = device_.cache.find(key);
    if (saved && usable(*saved)) return plan_of(*saved);
    const auto candidates = description_.candidates(library_, call_.key);
    if (candidates.empty()) return {};
    const std::optional<GemmChoice> best = fastest(candidates);
    if (!best) return first(candidates);
    if (saved) device_.cache.replace(key, *best);
    const GemmChoice chosen = device_.cache.add(key, *best);  // another rank's, if it came first
    return plan_of(usable(chosen) ? chosen : *best);
  }

  static cublasLtMatmulAlgo_t algorithm_of(const GemmChoice& choice) {
    cublasLtMatmulAlgo_t algorithm;
    static_assert(sizeof(algorithm.data) == sizeof(choice.algorithm));
    std::memcpy(algorithm.data, choice.algorithm.data(), sizeof(algorithm.data));
    return algorithm;
  }
  static Device::Plan plan_of(const GemmChoice& choice) {
    return {.algorithm = algorithm_of(choice), .time_s = choice.time_s};
  }
  [[nodiscard]] bool usable(const cublasLtMatmulAlgo_t& algorithm) {
    std::uint32_t reduction = 0;
    std::size_t written = 0;
    if (cublasLtMatmulAlgoConfigGetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME,
                                             &reduction, sizeof(reduction),
                                             &written) != CUBLAS_STATUS_SUCCESS ||
        (reduction & ~reductions(key_)) != 0)
      return false;
    const std::optional<std::size_t> needed = description_.needed(library_, algorithm);
    return needed && *needed <= static_cast<std::size_t>(kProductWorkspace);
  }
  [[nodiscard]] bool usable(const GemmChoice& choice) { return usable(algorithm_of(choice)); }

  /// Nothing when there is no memory for a trial, or no candidate runs.
  [[nodiscard]] std::optional<GemmChoice> fastest(
      const std::vector<cublasLtMatmulAlgo_t>& candidates) {
    at::Tensor trial_out;
    GemmCall trial = call_;
    if (call_.beta != 0) {  // what is added to must be added to once
      try {
        trial_out = at::empty(
            {call_.key.m * call_.key.out_stride},
            at::TensorOptions(call_.key.out_type).device(at::kCUDA, stream_.device_index()));
      } catch (const c10::OutOfMemoryError&) {
        return std::nullopt;
      }
      trial.out = trial_out.mutable_data_ptr();
    }
    std::vector<double> times;
    for (const auto& candidate : candidates) {
      const bool loaded = time_of(trial, candidate, 1) < kInfinite;
      times.push_back(loaded ? time_of(trial, candidate, 1) : kInfinite);
    }
    const double min = *std::min_element(times.begin(), times.end());
    if (min == kInfinite) return std::nullopt;
    const int launches = std::clamp(static_cast<int>(std::ceil(kMinTime / min)), 1, 20);
    std::vector<double> finals(candidates.size(), kInfinite);
    for (int repetition = 0; repetition < kRepetitions; ++repetition) {
      for (std::size_t i = 0; i < candidates.size(); ++i) {
        if (times[i] <= kClose * min)
          finals[i] = std::min(finals[i], time_of(trial, candidates[i], launches));
      }
    }
    const auto best = std::min_element(finals.begin(), finals.end());
    GemmChoice choice{.time_s = *best};
    std::memcpy(choice.algorithm.data(),
                candidates[static_cast<std::size_t>(best - finals.begin())].data,
                sizeof(choice.algorithm));
    return choice;
  }

  /// Seconds of one launch; infinite if it does not run.
  [[nodiscard]] double time_of(const GemmCall& call, const cublasLtMatmulAlgo_t& algorithm,
                               int launches) {
    at::cuda::CUDAEvent start(cudaEventDefault), stop(cudaEventDefault);
    start.record(stream_);
    for (int i = 0; i < launches; ++i) {
      if (description_.launch(library_, call, algorithm, workspace_, stream_.stream()) !=
          CUBLAS_STATUS_SUCCESS)
        return kInfinite;
    }
    stop.record(stream_);
    stop.synchronize();
    return 1e-3 * static_cast<double>(start.elapsed_time(stop)) / launches;
  }

  Device& device_;
  const GemmCall& call_;
  GemmKey key_;
  cublasLtHandle_t library_;
  c10::cuda::CUDAStream stream_;
  Description description_;
  Workspace workspace_;
};

}  // namespace

void run_gemm(const GemmCall& call) {
  Device& device = current_device();
  const std::lock_guard lock(device.mutex);
  Session session(device, call);
  const Device::Plan plan = session.plan();
  require(call.key, session.run(plan));
}

bool run_gemm_if_cheap(const GemmCall& call, double extra_s) {
  Device& device = current_device();
  const std::lock_guard lock(device.mutex);
  Session session(device, call);
  const Device::Plan summing = session.plan();
  if (!summing.algorithm || summing.time_s == 0) return false;
  GemmCall plain = call;
  plain.key.row_sums = false;
  plain.vector = nullptr;
  const double plain_s = Session(device, plain).plan().time_s;
  if (plain_s == 0 || summing.time_s > plain_s + extra_s) return false;
  require(call.key, session.run(summing));
  return true;
}

}  // namespace dstrain::ops
