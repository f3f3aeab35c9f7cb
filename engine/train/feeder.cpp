#include "engine/train/feeder.h"

#include <ATen/ops/empty.h>

#include <chrono>

namespace dstrain {

Feeder::Feeder(std::unique_ptr<Loader> loader, const FeederOptions& options)
    : loader_(std::move(loader)), options_(options) {
  const auto device = at::TensorOptions().device(options.device);
  const std::int64_t size = options.augment.image_size;
  for (Slot& slot : slots_) {
    slot.batch.images = at::empty({options.micro_batch, options.channels, size, size},
                                  device.dtype(options.compute));
    slot.batch.labels = at::empty({options.micro_batch}, device.dtype(at::kLong));
    slot.batch.weights = at::empty({options.micro_batch}, device.dtype(at::kFloat));
    slot.samples = at::empty({options.micro_batch}, device.dtype(at::kLong));
    slot.free = std::make_unique<Event>(options.device);
  }
}

std::size_t Feeder::load(const Stream& stream) {
  const auto begin = std::chrono::steady_clock::now();
  const HostBatch host = loader_->next();
  waited_s_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const std::size_t buffer = next_;
  next_ = (next_ + 1) % slots_.size();
  Slot& slot = slots_[buffer];
  slot.free->wait(stream);
  const StreamScope scope(stream);
  if (!slot.pixels.defined()) {
    slot.pixels = at::empty(host.pixels.sizes(),
                            at::TensorOptions().dtype(at::kByte).device(options_.device));
  }
  slot.pixels.copy_(host.pixels, /*non_blocking=*/true);
  slot.batch.labels.copy_(host.labels, true);
  slot.batch.weights.copy_(host.weights, true);
  slot.samples.copy_(host.samples, true);
  AugmentOptions augmentation = options_.augment;
  augmentation.epoch = host.epoch;
  augment(slot.pixels, slot.samples, augmentation, slot.batch.images);
  return buffer;
}

void Feeder::used(std::size_t buffer, const Stream& stream) { slots_[buffer].free->record(stream); }

}  // namespace dstrain
