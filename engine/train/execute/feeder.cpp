#include "engine/train/execute/feeder.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <chrono>

#include "engine/data/images/plain_augment.h"
#include "engine/kernels/copy/copy.h"
#include "engine/kernels/image/mix.h"
#include "engine/train/execute/compute_type.h"

namespace dstrain {

FeederOptions image_feeder_options(const Recipe& recipe, int channels, int image_size,
                                   c10::Device device, bool training) {
  const auto trains_with = [&](Augmentation wanted) {
    return training && std::ranges::find(recipe.data.augment, wanted) != recipe.data.augment.end();
  };
  FeederOptions options{.device = device,
                        .compute = scalar_type(recipe.precision.compute),
                        .channels = channels,
                        .augment = plain_augment(recipe.data.normalize, channels, image_size)};
  options.augment.seed = recipe.run.seed;
  options.augment.random_crop = trains_with(Augmentation::random_crop);
  options.augment.horizontal_flip = trains_with(Augmentation::horizontal_flip);
  options.augment.crop_padding = options.augment.random_crop ? recipe.data.crop_padding : 0;
  options.erase_noise = recipe.data.erase_fill == EraseFill::noise;
  return options;
}

Feeder::Feeder(std::unique_ptr<Loader> loader, const FeederOptions& options)
    : loader_(std::move(loader)), options_(options), slots_(options.buffers) {}

void Feeder::copy(const at::Tensor& from, at::Tensor& to) const {
  if (!from.defined()) return;
  if (!to.defined())
    to = at::empty(from.sizes(), from.options().pinned_memory(false).device(options_.device));
  if (options_.beside_copies)
    copy_beside(to, from);
  else
    to.copy_(from, /*non_blocking=*/true);
}

void Feeder::load_images(const HostBatch& host, Slot& slot) const {
  AugmentOptions augmentation = options_.augment;
  augmentation.epoch = host.epoch;
  if (!slot.batch.images.defined()) {
    slot.batch.images = at::empty(
        {host.pixels.size(0), options_.channels, augmentation.image_size, augmentation.image_size},
        at::TensorOptions().device(options_.device).dtype(options_.compute));
  }
  copy(host.pixels, slot.pixels);
  augment(slot.pixels, slot.samples, augmentation, slot.batch.images);
  if (host.erased.defined()) {
    copy(host.erased, slot.erased);
    erase(slot.batch.images, slot.erased, slot.samples,
          {.noise = options_.erase_noise, .seed = augmentation.seed, .epoch = host.epoch});
  }
  if (host.mixed_shares.defined()) {
    copy(host.mixed_shares, slot.mixed_shares);
    copy(host.mixed_windows, slot.mixed_windows);
    mix(slot.batch.images, slot.mixed_shares, slot.mixed_windows, slot.batch.valid);
    copy(host.second_labels, slot.batch.second.labels);
    copy(host.label_shares, slot.batch.second.shares);
  }
}

std::size_t Feeder::load(const Stream& stream) {
  const auto begin = std::chrono::steady_clock::now();
  const HostBatch host = loader_->next();
  waited_s_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const std::size_t buffer = next_;
  next_ = (next_ + 1) % slots_.size();
  Slot& slot = slots_[buffer];
  const StreamScope scope(stream);
  copy(host.labels, slot.batch.labels);
  copy(host.weights, slot.batch.weights);
  copy(host.samples, slot.samples);
  if (!slot.batch.valid.defined())
    slot.batch.valid = at::empty({}, slot.batch.labels.options().dtype(at::kInt));
  slot.batch.valid.fill_(host.samples.ge(0).sum().item<std::int64_t>());
  copy(host.tokens, slot.batch.tokens);
  copy(host.lengths, slot.batch.lengths);
  copy(host.references, slot.batch.references);
  copy(host.starts, slot.batch.sequences.starts);
  copy(host.positions, slot.batch.sequences.positions);
  slot.batch.sequences.longest = host.longest;
  copy(host.own_rows, slot.batch.own.rows);
  copy(host.own_positions, slot.batch.own.positions);
  if (host.pixels.defined()) load_images(host, slot);
  return buffer;
}

}  // namespace dstrain
