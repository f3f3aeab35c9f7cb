#include "engine/device/stream.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <chrono>

#include "engine/base/error.h"

namespace dstrain {
namespace {

c10::cuda::CUDAStream cuda_stream(const std::optional<c10::Stream>& stream) {
  return c10::cuda::CUDAStream(*stream);
}

}  // namespace

Stream::Stream(c10::Device device) : device_(device) {
  if (device.is_cuda()) stream_ = c10::cuda::getDefaultCUDAStream(device.index()).unwrap();
}

Stream Stream::from_pool(c10::Device device, StreamPriority priority) {
  if (!device.is_cuda()) return Stream(device, std::nullopt);
  return {device,
          c10::cuda::getStreamFromPool(priority == StreamPriority::high, device.index()).unwrap()};
}

Stream Stream::current(c10::Device device) {
  if (!device.is_cuda()) return Stream(device, std::nullopt);
  return {device, c10::cuda::getCurrentCUDAStream(device.index()).unwrap()};
}

bool Stream::query() const { return !stream_ || cuda_stream(stream_).query(); }

void Stream::synchronize() const {
  if (stream_) cuda_stream(stream_).synchronize();
}

void* Stream::handle() const { return stream_ ? cuda_stream(stream_).stream() : nullptr; }

StreamScope::StreamScope(const Stream& stream) {
  if (!stream.stream_) return;
  previous_device_ = c10::cuda::current_device();
  previous_ = c10::cuda::getCurrentCUDAStream(stream.device_.index()).unwrap();
  c10::cuda::set_device(stream.device_.index());
  c10::cuda::setCurrentCUDAStream(cuda_stream(stream.stream_));
}

StreamScope::~StreamScope() {
  if (!previous_) return;
  c10::cuda::setCurrentCUDAStream(cuda_stream(previous_));
  // MaybeSetDevice reports by its return value: a destructor must not throw.
  (void)c10::cuda::MaybeSetDevice(previous_device_);
}

struct Event::State {
  cudaEvent_t event = nullptr;
  std::chrono::steady_clock::time_point recorded;  ///< on the CPU
  c10::Device device{c10::kCPU};
  ~State() {
    if (event != nullptr) (void)cudaEventDestroy(event);
  }
};

Event::Event(c10::Device device, Timing timing) : state_(std::make_unique<State>()) {
  state_->device = device;
  if (!device.is_cuda()) return;
  const c10::DeviceIndex previous = c10::cuda::current_device();
  c10::cuda::set_device(device.index());
  C10_CUDA_CHECK(cudaEventCreateWithFlags(
      &state_->event, timing == Timing::yes ? cudaEventDefault : cudaEventDisableTiming));
  c10::cuda::set_device(previous);
}
Event::~Event() = default;
Event::Event(Event&& other) noexcept = default;
Event& Event::operator=(Event&& other) noexcept = default;

void Event::record(const Stream& stream) {
  DSTRAIN_CHECK(
      stream.device_ == state_->device,
      "event of " + state_->device.str() + " recorded on a stream of " + stream.device_.str());
  if (state_->event == nullptr) {
    state_->recorded = std::chrono::steady_clock::now();
    return;
  }
  C10_CUDA_CHECK(cudaEventRecord(state_->event, cuda_stream(stream.stream_)));
}

void Event::wait(const Stream& stream) const {
  if (state_->event == nullptr || !stream.stream_) return;
  C10_CUDA_CHECK(cudaStreamWaitEvent(cuda_stream(stream.stream_), state_->event));
}

bool Event::query() const {
  if (state_->event == nullptr) return true;
  const cudaError_t answer = cudaEventQuery(state_->event);
  if (answer == cudaErrorNotReady) {
    (void)cudaGetLastError();  // an answer, not an error to be found by the next check
    return false;
  }
  C10_CUDA_CHECK(answer);
  return true;
}

void Event::synchronize() const {
  if (state_->event != nullptr) C10_CUDA_CHECK(cudaEventSynchronize(state_->event));
}

double Event::seconds_since(const Event& earlier) const {
  if (state_->event == nullptr) {
    return std::chrono::duration<double>(state_->recorded - earlier.state_->recorded).count();
  }
  float milliseconds = 0;
  C10_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, earlier.state_->event, state_->event));
  return milliseconds * 1e-3;
}

}  // namespace dstrain
