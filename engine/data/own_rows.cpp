#include "engine/data/own_rows.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "engine/base/error.h"

namespace dstrain {

HostBatch own_rows(const HostBatch& whole, const Zigzag& zigzag, bool pinned) {
  const std::int64_t samples = whole.tokens.size(0), tokens = whole.tokens.size(1),
                     rows = samples * tokens / zigzag.ranks;
  DSTRAIN_CHECK(tokens % zigzag.parts() == 0,
                fmt::format("{} tokens are not {} equal parts", tokens, zigzag.parts()));
  const auto empty = [&](at::IntArrayRef sizes, at::ScalarType type) {
    return at::empty(sizes, at::TensorOptions(type).pinned_memory(pinned));
  };
  HostBatch batch = whole;
  batch.tokens = empty({samples, tokens / zigzag.ranks}, at::kLong);
  batch.labels = empty({rows}, at::kLong);
  batch.weights = empty({rows}, at::kFloat);
  batch.own_rows = empty({rows}, at::kInt);
  batch.own_positions = empty({rows}, at::kInt);
  const auto from = [](const at::Tensor& tensor) { return tensor.const_data_ptr<std::int64_t>(); };
  const auto to = [](const at::Tensor& tensor) { return tensor.mutable_data_ptr<std::int64_t>(); };
  const auto* position =
      whole.positions.defined() ? whole.positions.const_data_ptr<std::int32_t>() : nullptr;
  const auto* weights = whole.weights.const_data_ptr<float>();
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t place = zigzag.whole_row(row, tokens);
    to(batch.tokens)[row] = from(whole.tokens)[place];
    to(batch.labels)[row] = from(whole.labels)[place];
    batch.weights.mutable_data_ptr<float>()[row] = weights[place];
    batch.own_rows.mutable_data_ptr<std::int32_t>()[row] = static_cast<std::int32_t>(place);
    batch.own_positions.mutable_data_ptr<std::int32_t>()[row] =
        position != nullptr ? position[place] : static_cast<std::int32_t>(place % tokens);
  }
  return batch;
}

}  // namespace dstrain
