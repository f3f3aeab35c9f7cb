#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>

#include "engine/models/model.h"

namespace dstrain::test {

/// Random tokens and labels for `model`, every label counted.
inline Batch language_batch(const Model& model, std::int64_t size) {
  return {.tokens = at::randint(model.vocab_size, {size, model.sequence}, at::kLong),
          .labels = at::randint(model.vocab_size, {size * model.sequence}, at::kLong),
          .weights = at::ones({size * model.sequence})};
}

}  // namespace dstrain::test
