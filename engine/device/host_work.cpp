#include "engine/device/host_work.h"

#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/device/numa.h"
#include "engine/device/pinned.h"

namespace dstrain {
namespace {

using WaitValue = PFN_cuStreamWaitValue32_v11070;

/// Streams that one object serves at most: more than LibTorch has for a device.
constexpr std::size_t kMaxLanes = 128;
/// A cache line each: flags of different streams are polled and written at the same time.
constexpr std::size_t kFlagBytes = 64;

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
  /// Jobs of one stream come in its order; those of several streams in any.
  struct Lane {
    cudaStream_t stream = nullptr;
    std::uint32_t num_issued = 0;  ///< jobs, counted round: the driver's comparison is cyclic
  };
  struct Ticket {
    std::shared_ptr<State> state;
    std::size_t lane = 0;
    std::uint32_t number = 0;  ///< of the job in its lane, from 1
    Job job;
  };

  c10::Device device{c10::kCPU};
  std::optional<HostPool> pool;
  WaitValue wait_value = nullptr;  ///< null: jobs run inside the host function
  at::Tensor flags;                ///< page-locked; of each lane the number of jobs done
  CUdeviceptr device_flags = 0;

  mutable std::mutex mutex;  ///< over what follows
  std::condition_variable came;
  std::vector<Lane> lanes;
  std::deque<Ticket> due;  ///< their turn on their stream has come
  bool closed = false;
  std::exception_ptr error;

  std::mutex inside;  ///< held by a job inside the host function
  std::thread worker;

  /// With the mutex held.
  void set_flag(std::size_t lane, std::uint32_t number) {
    auto* flag = reinterpret_cast<std::uint32_t*>(flags.mutable_data_ptr<std::uint8_t>() +
                                                  lane * kFlagBytes);
    // The job's writes are seen by whatever sees the flag.
    std::atomic_ref(*flag).store(number, std::memory_order_release);
  }
  void release_all() {
    for (std::size_t lane = 0; lane < lanes.size() && wait_value != nullptr; ++lane)
      set_flag(lane, lanes[lane].num_issued);
  }

  [[nodiscard]] bool failed() const {
    const std::lock_guard lock(mutex);
    return error != nullptr;
  }

  /// The job is gone with what it holds when this returns.
  void perform(Job job) {
    if (failed()) return;
    try {
      job(*pool);
    } catch (...) {
      const std::lock_guard lock(mutex);
      error = std::current_exception();
      release_all();
    }
  }

  void work() {
    bind_this_thread(pool->cores());
    use_default_arithmetic();
    std::unique_lock lock(mutex);
    while (true) {
      came.wait(lock, [this] { return closed || !due.empty(); });
      if (due.empty()) return;
      Ticket ticket = std::move(due.front());
      due.pop_front();
      lock.unlock();
      perform(std::move(ticket.job));
      lock.lock();
      // After a failure the flags stand further already.
      if (!error) set_flag(ticket.lane, ticket.number);
    }
  }

  /// CUDA's host function. It must not call CUDA, and nothing may leave it.
  static void take_over(void* pointer) noexcept {
    const std::unique_ptr<Ticket> ticket(static_cast<Ticket*>(pointer));
    const std::shared_ptr<State> state = std::move(ticket->state);
    if (state->wait_value == nullptr) {
      const std::lock_guard turn(state->inside);
      if (!state->is_closed()) state->perform(std::move(ticket->job));
      return;
    }
    const std::lock_guard lock(state->mutex);
    if (state->closed) return;
    state->due.push_back(std::move(*ticket));
    state->came.notify_one();
  }
  [[nodiscard]] bool is_closed() const {
    const std::lock_guard lock(mutex);
    return closed;
  }

  /// With the mutex held.
  std::size_t lane_of(cudaStream_t stream) {
    for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
      if (lanes[lane].stream == stream) return lane;
    }
    DSTRAIN_CHECK(lanes.size() < kMaxLanes, "host work for too many streams");
    lanes.push_back({.stream = stream});
    return lanes.size() - 1;
  }

  /// No stream can look at the flags any more. False where the context is broken.
  [[nodiscard]] bool idle() const {
    try {
      const c10::cuda::CUDAGuard guard(device);
      return std::ranges::all_of(lanes, [](const Lane& lane) {
        if (cudaStreamQuery(lane.stream) == cudaSuccess) return true;
        (void)cudaGetLastError();
        return false;
      });
    } catch (const std::exception&) {
      return false;
    }
  }
};

HostWork::HostWork(c10::Device device, Options options) : state_(std::make_shared<State>()) {
  state_->device = device;
  state_->pool.emplace(
      HostPool::Options{.threads = options.threads, .cores = std::move(options.cores)});
  if (!device.is_cuda()) return;
  const c10::cuda::CUDAGuard guard(device);
  state_->flags =
      host_tensor({static_cast<std::int64_t>(kMaxLanes * kFlagBytes)}, c10::kByte, device);
  auto* flags = state_->flags.mutable_data_ptr<std::uint8_t>();
  std::memset(flags, 0, kMaxLanes * kFlagBytes);
  void* on_device = nullptr;
  C10_CUDA_CHECK(cudaHostGetDevicePointer(&on_device, flags, 0));
  state_->device_flags = reinterpret_cast<CUdeviceptr>(on_device);
  const WaitValue wait_value = options.wait_on_device ? find_wait_value() : nullptr;
  if (!can_wait(wait_value, state_->device_flags)) return;
  state_->wait_value = wait_value;
  state_->worker = std::thread([state = state_.get()] { state->work(); });
}

HostWork::~HostWork() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->closed = true;
  }
  state_->came.notify_all();
  if (state_->worker.joinable()) state_->worker.join();
  const std::lock_guard turn(state_->inside);
  const std::lock_guard lock(state_->mutex);
  state_->release_all();
  // Memory that a stream may still look at is never given to anybody else.
  if (state_->device.is_cuda() && !state_->idle()) new at::Tensor(state_->flags);
  state_->flags = at::Tensor();
  state_->pool.reset();
}

void HostWork::enqueue(const Stream& stream, Job job) {
  DSTRAIN_CHECK(stream.device() == state_->device,
                fmt::format("host work of {} on a stream of {}", state_->device.str(),
                            stream.device().str()));
  if (!state_->device.is_cuda()) return state_->perform(std::move(job));
  auto* handle = static_cast<cudaStream_t>(stream.handle());
  auto ticket = std::make_unique<State::Ticket>();
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->error) return;
    ticket->lane = state_->lane_of(handle);
    ticket->number = ++state_->lanes[ticket->lane].num_issued;
  }
  ticket->state = state_;
  ticket->job = std::move(job);
  const CUdeviceptr flag = state_->device_flags + ticket->lane * kFlagBytes;
  const std::uint32_t number = ticket->number;
  const c10::cuda::CUDAGuard guard(state_->device);
  C10_CUDA_CHECK(cudaLaunchHostFunc(handle, State::take_over, ticket.get()));
  (void)ticket.release();  // CUDA's now
  if (state_->wait_value == nullptr) return;
  const CUresult answer = state_->wait_value(handle, flag, number, CU_STREAM_WAIT_VALUE_GEQ);
  DSTRAIN_CHECK(answer == CUDA_SUCCESS,
                fmt::format("cuStreamWaitValue32 fails ({})", static_cast<int>(answer)));
}

bool HostWork::failed() const { return state_->failed(); }

void HostWork::rethrow() const {
  std::exception_ptr error;
  {
    const std::lock_guard lock(state_->mutex);
    error = state_->error;
  }
  if (error) std::rethrow_exception(error);
}

HostPool& HostWork::pool() { return *state_->pool; }
bool HostWork::waits_on_device() const { return state_->wait_value != nullptr; }

}  // namespace dstrain
