#pragma once

#include <array>
#include <memory>

#include "engine/data/loader.h"
#include "engine/device/device.h"
#include "engine/device/stream.h"
#include "engine/kernels/augment.h"
#include "engine/nn/block.h"

namespace dstrain {

struct FeederOptions {
  c10::Device device{c10::kCPU};
  at::ScalarType compute = at::kFloat;
  std::int64_t micro_batch = 0;
  int channels = 3;
  AugmentOptions augment;  ///< the epoch comes with each batch
};

/// Brings micro-batches to the device, augmented, into two buffers in turn: one is filled while the
/// other is in use.
class Feeder {
 public:
  Feeder(std::unique_ptr<Loader> loader, const FeederOptions& options);

  /// Fills the next buffer on `stream`, once the work that used it has ended there; returns its
  /// number.
  std::size_t load(const Stream& stream);
  [[nodiscard]] const Batch& batch(std::size_t buffer) const { return slots_[buffer].batch; }
  /// Time that the host has waited for decoded samples so far.
  [[nodiscard]] double waited_s() const { return waited_s_; }
  /// The work that uses the buffer is enqueued on `stream` up to here.
  void used(std::size_t buffer, const Stream& stream);

 private:
  struct Slot {
    Batch batch;
    at::Tensor pixels;
    at::Tensor samples;
    std::unique_ptr<Event> free;
  };
  std::unique_ptr<Loader> loader_;
  FeederOptions options_;
  std::array<Slot, 2> slots_;
  std::size_t next_ = 0;
  double waited_s_ = 0;
};

}  // namespace dstrain
