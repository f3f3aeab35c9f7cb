#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <memory>
#include <optional>

namespace dstrain {

enum class StreamPriority { normal, high };

/// An order of work on a device: a CUDA stream, or nothing on the CPU, where work is done when the
/// call returns. A value: copies name the same stream. Streams come from LibTorch's pool (32 per
/// device and priority), so that its allocator knows them.
class Stream {
 public:
  /// Names the device's default stream.
  explicit Stream(c10::Device device);
  [[nodiscard]] static Stream from_pool(c10::Device device,
                                        StreamPriority priority = StreamPriority::normal);
  /// The calling thread's current stream of `device`.
  [[nodiscard]] static Stream current(c10::Device device);

  [[nodiscard]] c10::Device device() const { return device_; }
  /// All work enqueued so far is done.
  [[nodiscard]] bool query() const;
  /// Waits until all work enqueued so far is done.
  void synchronize() const;
  /// The cudaStream_t for a kernel launch; null for the default stream and on the CPU.
  [[nodiscard]] void* handle() const;

  friend bool operator==(const Stream& a, const Stream& b) {
    return a.device_ == b.device_ && a.stream_ == b.stream_;
  }

 private:
  friend class StreamScope;
  friend class Event;
  Stream(c10::Device device, std::optional<c10::Stream> stream)
      : device_(device), stream_(stream) {}

  c10::Device device_;
  std::optional<c10::Stream> stream_;  ///< nothing on the CPU
};

/// Makes a stream (and its device) the calling thread's current one until the end of the scope.
class StreamScope {
 public:
  explicit StreamScope(const Stream& stream);
  ~StreamScope();
  StreamScope(const StreamScope&) = delete;
  StreamScope& operator=(const StreamScope&) = delete;

 private:
  std::optional<c10::Stream> previous_;  ///< of the stream's device
  c10::DeviceIndex previous_device_ = -1;
};

/// A point in a stream's order. Before the first record() it counts as reached. On the CPU it is
/// always reached.
class Event {
 public:
  enum class Timing { no, yes };
  explicit Event(c10::Device device, Timing timing = Timing::no);
  ~Event();
  Event(Event&& other) noexcept;
  Event& operator=(Event&& other) noexcept;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  /// Moves the point behind everything enqueued on `stream` so far. The stream must be of the
  /// event's device.
  void record(const Stream& stream);
  /// Later work on `stream` starts after this point; the host does not wait.
  void wait(const Stream& stream) const;
  [[nodiscard]] bool query() const;
  /// The host waits until the point is reached.
  void synchronize() const;
  /// Seconds from `earlier` to this point by the device's clock, on the CPU by the host's; both
  /// with Timing::yes, recorded and reached.
  [[nodiscard]] double seconds_since(const Event& earlier) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace dstrain
