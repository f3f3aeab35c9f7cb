#include "engine/infer/image_classifier.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "engine/data/images/plain_augment.h"

namespace dstrain {

ImageClassifier::ImageClassifier(Model& model, c10::Device device, at::ScalarType dtype,
                                 const NormalizeConfig& normalize)
    : model_(model),
      device_(device),
      dtype_(dtype),
      stream_(device.is_cuda() ? Stream::from_pool(device) : Stream(device)),
      prepare_(plain_augment(normalize, model.channels, model.image_size)) {}

at::Tensor ImageClassifier::scores(const HostBatch& batch) {
  const at::NoGradGuard no_gradients;
  const StreamScope scope(stream_);
  const std::int64_t rows = batch.pixels.size(0);
  const auto on_device = at::TensorOptions().device(device_);
  const auto copy = [&](const at::Tensor& host) {
    return host.to(device_, host.scalar_type(), /*non_blocking=*/true);
  };
  Batch input{.images = at::empty({rows, model_.channels, model_.image_size, model_.image_size},
                                  on_device.dtype(dtype_)),
              .labels = copy(batch.labels),
              .weights = copy(batch.weights),
              .valid = at::full({}, batch.samples.ge(0).sum().item<std::int64_t>(),
                                on_device.dtype(at::kInt))};
  augment(copy(batch.pixels), copy(batch.samples), prepare_, input.images);
  BlockContext context{
      .mode = Mode::evaluate,
      .totals = at::zeros({kNumTotals}, on_device.dtype(at::kFloat)),
      .class_scores = at::empty({rows, model_.classes}, on_device.dtype(at::kFloat))};
  Tensors state;
  for (const auto& block : model_.blocks) state = block->forward(state, input, context);
  at::Tensor scores = context.class_scores.cpu();
  stream_.synchronize();
  return scores;
}

}  // namespace dstrain
