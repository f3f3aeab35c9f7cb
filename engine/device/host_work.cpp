#include "engine/device/host_work.h"

#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <utility>

#include "engine/base/error.h"
#include "engine/device/job_line.h"
#include "engine/device/pinned.h"

namespace dstrain {
namespace {

using WaitValue = PFN_cuStreamWaitValue32_v11070;

/// Null without it.
WaitValue find_wait_value() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  if (cudaGetDriverEntryPointByVersion("cuStreamWaitValue32", &function, 12000, cudaEnableDefault,
                                       &found) != cudaSuccess) {
    (void)cudaGetLastError();
    return nullptr;
  }
  return found == cudaDriverEntryPointSuccess ? reinterpret_cast<WaitValue>(function) : nullptr;
}

/// Some drivers have the function and refuse its work: tried with a flag that is there already.
bool can_wait(WaitValue wait_value, CUdeviceptr flag) {
  if (wait_value == nullptr) return false;
  cudaStream_t stream = nullptr;
  C10_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  const bool taken = wait_value(stream, flag, 0, CU_STREAM_WAIT_VALUE_GEQ) == CUDA_SUCCESS;
  const bool done = cudaStreamSynchronize(stream) == cudaSuccess;
  C10_CUDA_CHECK(cudaStreamDestroy(stream));
  return taken && done;
}

}  // namespace

struct HostWork::State {
  struct Ticket {
    std::shared_ptr<JobLine> line;
    JobLine::Turn turn;
    Job job;
  };

  c10::Device device{c10::kCPU};
  at::Tensor flags;  ///< page-locked
  CUdeviceptr device_flags = 0;
  WaitValue wait_value = nullptr;      ///< null: jobs run inside the host function
  std::vector<cudaStream_t> streams;   ///< that may wait for flags
  std::shared_ptr<JobLine> line = {};  ///< tickets that come late keep it

  /// CUDA's host function. It must not call CUDA, and nothing may leave it.
  static void take_over(void* pointer) noexcept {
    const std::unique_ptr<Ticket> ticket(static_cast<Ticket*>(pointer));
    ticket->line->hand_over(ticket->turn, std::move(ticket->job));
  }

  /// No stream can look at the flags any more. False where the context is broken.
  [[nodiscard]] bool idle() const {
    try {
      const c10::cuda::CUDAGuard guard(device);
      return std::ranges::all_of(streams, [](cudaStream_t stream) {
        if (cudaStreamQuery(stream) == cudaSuccess) return true;
        (void)cudaGetLastError();
        return false;
      });
    } catch (const std::exception&) {
      return false;
    }
  }
};

HostWork::HostWork(c10::Device device, Options options) : state_(std::make_unique<State>()) {
  state_->device = device;
  std::uint32_t* flags = nullptr;
  if (device.is_cuda() && options.wait_on_device) {
    const c10::cuda::CUDAGuard guard(device);
    constexpr std::size_t kFlags = JobLine::kMaxLanes * JobLine::kFlagStride;
    state_->flags = host_tensor({kFlags}, c10::kInt, device);
    flags = static_cast<std::uint32_t*>(state_->flags.mutable_data_ptr());
    std::fill_n(flags, kFlags, 0U);
    void* on_device = nullptr;
    C10_CUDA_CHECK(cudaHostGetDevicePointer(&on_device, flags, 0));
    state_->device_flags = reinterpret_cast<CUdeviceptr>(on_device);
    const WaitValue wait_value = find_wait_value();
    if (can_wait(wait_value, state_->device_flags)) state_->wait_value = wait_value;
  }
  state_->line = std::make_shared<JobLine>(
      HostPool::Options{.threads = options.threads, .cores = std::move(options.cores)},
      state_->wait_value != nullptr ? flags : nullptr);
}

HostWork::~HostWork() {
  state_->line->close();
  // Memory that a stream may still look at is never given away.
  if (state_->wait_value != nullptr && !state_->idle()) new at::Tensor(state_->flags);
}

void HostWork::enqueue(const Stream& stream, Job job) {
  State& state = *state_;
  DSTRAIN_CHECK(
      stream.device() == state.device,
      fmt::format("host work of {} on a stream of {}", state.device.str(), stream.device().str()));
  if (!state.device.is_cuda()) return state.line->perform(std::move(job));
  auto* handle = static_cast<cudaStream_t>(stream.handle());
  const auto turn = state.line->issue(handle);
  if (!turn) return;
  if (turn->lane == state.streams.size()) state.streams.push_back(handle);
  auto ticket = std::make_unique<State::Ticket>(
      State::Ticket{.line = state.line, .turn = *turn, .job = std::move(job)});
  const c10::cuda::CUDAGuard guard(state.device);
  C10_CUDA_CHECK(cudaLaunchHostFunc(handle, State::take_over, ticket.get()));
  (void)ticket.release();  // CUDA's now
  if (state.wait_value == nullptr) return;
  const CUdeviceptr flag =
      state.device_flags + turn->lane * JobLine::kFlagStride * sizeof(std::uint32_t);
  const CUresult answer = state.wait_value(handle, flag, turn->number, CU_STREAM_WAIT_VALUE_GEQ);
  DSTRAIN_CHECK(answer == CUDA_SUCCESS,
                fmt::format("cuStreamWaitValue32 fails ({})", static_cast<int>(answer)));
}

bool HostWork::failed() const { return state_->line->failed(); }
void HostWork::rethrow() const { state_->line->rethrow(); }
HostPool& HostWork::pool() { return state_->line->pool(); }
bool HostWork::waits_on_device() const { return state_->wait_value != nullptr; }

}  // namespace dstrain
