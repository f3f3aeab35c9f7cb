#include "engine/kernels/linear/gemm_library.h"

#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAStream.h>
#include <cublasLt.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/product_workspace.h"
#include "engine/device/graph_zeros.h"
#include "engine/kernels/linear/gemm_description.h"
#include "engine/kernels/linear/gemm_trials.h"
#include "engine/kernels/linear/shipped_choices.h"

namespace dstrain::ops {
namespace {

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
  /// Of our own: PyTorch's comes with two workspaces of 32 MiB.
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
  [[nodiscard]] GemmWorkspace workspace_for(const cublasLtMatmulAlgo_t& algorithm) {
    if (!capturing()) return workspace_;
    const std::optional<std::size_t> needed = description_.needed(library_, algorithm);
    if (!needed || *needed == 0 || *needed > GraphZeros::kMaxPart) return workspace_;
    void* const words = GraphZeros::take(stream_.stream());
    return words == nullptr ? workspace_ : GemmWorkspace{words, *needed};
  }

  static Device::Plan first(const std::vector<cublasLtMatmulAlgo_t>& candidates) {
    if (candidates.empty()) return {};
    return {.algorithm = candidates.front()};
  }

  [[nodiscard]] Device::Plan make() {
    const GemmTuning tuning = gemm_tuning();
    if (tuning == GemmTuning::none) return first(description_.candidates(library_, call_.key));
    const std::string key = key_.text();
    const auto saved = device_.cache.find(key);
    if (tuning == GemmTuning::quick && saved && usable(*saved)) return plan_of(*saved);
    auto candidates = description_.candidates(library_, call_.key);
    if (candidates.empty()) return {};
    if (tuning == GemmTuning::sustained)
      candidates = description_.variations(library_, std::move(candidates));
    const std::optional<GemmChoice> best =
        fastest_algorithm(library_, description_, call_, candidates, workspace_, stream_);
    if (!best) return first(candidates);
    if (saved) device_.cache.replace(key, *best);
    const GemmChoice chosen = device_.cache.add(key, *best);  // another rank's, if it came first
    return plan_of(usable(chosen) ? chosen : *best);
  }

  static Device::Plan plan_of(const GemmChoice& choice) {
    return {.algorithm = algorithm_of(choice), .time_s = choice.time_s};
  }
  [[nodiscard]] bool usable(const cublasLtMatmulAlgo_t& algorithm) {
    return description_.runs(library_, algorithm);
  }
  [[nodiscard]] bool usable(const GemmChoice& choice) { return usable(algorithm_of(choice)); }

  Device& device_;
  const GemmCall& call_;
  GemmKey key_;
  cublasLtHandle_t library_;
  c10::cuda::CUDAStream stream_;
  GemmDescription description_;
  GemmWorkspace workspace_;
};

}  // namespace

void run_gemm(const GemmCall& call) {
  Device& device = current_device();
  const std::lock_guard lock(device.mutex);
  Session session(device, call);
  const Device::Plan plan = session.plan();
  require_good(call.key, session.run(plan));
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
  require_good(call.key, session.run(summing));
  return true;
}

}  // namespace dstrain::ops
