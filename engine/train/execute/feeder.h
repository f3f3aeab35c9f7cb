#pragma once

#include <memory>
#include <vector>

#include "engine/data/loader.h"
#include "engine/device/device.h"
#include "engine/device/stream.h"
#include "engine/kernels/image/augment.h"
#include "engine/nn/block.h"
#include "engine/recipe/recipe.h"

namespace dstrain {

struct FeederOptions {
  c10::Device device{c10::kCPU};
  at::ScalarType compute = at::kFloat;
  int channels = 3;            ///< of images
  AugmentOptions augment;      ///< of images; the epoch comes with each batch
  bool erase_noise = false;    ///< what erased rectangles are filled with
  std::size_t buffers = 2;     ///< that the program fills in turn
  bool beside_copies = false;  ///< of states, behind which a batch must not wait (copy_beside)
};

/// How a recipe's images are prepared for a model of so many channels and pixels.
[[nodiscard]] FeederOptions image_feeder_options(const Recipe& recipe, int channels, int image_size,
                                                 c10::Device device, bool training);

/// Where a program's micro-batches come from.
class BatchSource {
 public:
  virtual ~BatchSource() = default;
  /// Fills the next buffer on `stream`, where all work that used it must have been waited for;
  /// returns its number.
  virtual std::size_t load(const Stream& stream) = 0;
  [[nodiscard]] virtual const Batch& batch(std::size_t buffer) const = 0;
};

/// Brings micro-batches to the device, augmented, into its buffers in turn.
class Feeder final : public BatchSource {
 public:
  Feeder(std::unique_ptr<Loader> loader, const FeederOptions& options);

  std::size_t load(const Stream& stream) override;
  [[nodiscard]] const Batch& batch(std::size_t buffer) const override {
    return slots_[buffer].batch;
  }
  /// Time that the host has waited for decoded samples so far.
  [[nodiscard]] double waited_s() const { return waited_s_; }

 private:
  struct Slot {
    Batch batch;
    at::Tensor pixels;
    at::Tensor samples;
    at::Tensor erased, mixed_shares, mixed_windows;  ///< as those of the host's batch
  };
  void load_images(const HostBatch& host, Slot& slot) const;
  /// Copies into `to`, which is made when it is not there yet.
  void copy(const at::Tensor& from, at::Tensor& to) const;
  std::unique_ptr<Loader> loader_;
  FeederOptions options_;
  std::vector<Slot> slots_;
  std::size_t next_ = 0;
  double waited_s_ = 0;
};

}  // namespace dstrain
