#pragma once

#include <ATen/core/Tensor.h>

#include "engine/data/dataset.h"
#include "engine/device/stream.h"
#include "engine/kernels/image/augment.h"
#include "engine/models/model.h"
#include "engine/recipe/recipe.h"

namespace dstrain {

/// Scores of classes for images, batch by batch, as an evaluation of training computes them.
class ImageClassifier {
 public:
  /// `model` is finished (finished_model.h), on `device` in `dtype`, and outlives this.
  ImageClassifier(Model& model, c10::Device device, at::ScalarType dtype,
                  const NormalizeConfig& normalize);

  /// `batch` of pixels as the loader gives them -> [B, classes] fp32 on the host, before the
  /// softmax. Rows of fillers say nothing.
  [[nodiscard]] at::Tensor scores(const HostBatch& batch);

 private:
  Model& model_;
  c10::Device device_;
  at::ScalarType dtype_;
  Stream stream_;
  AugmentOptions prepare_;
};

}  // namespace dstrain
