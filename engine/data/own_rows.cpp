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
  const auto* tokens_of = whole.tokens.const_data_ptr<std::int64_t>();
  const auto* labels_of = whole.labels.const_data_ptr<std::int64_t>();
  const auto* weights_of = whole.weights.const_data_ptr<float>();
  const auto* positions_of =
      whole.positions.defined() ? whole.positions.const_data_ptr<std::int32_t>() : nullptr;
  auto* own_tokens = batch.tokens.mutable_data_ptr<std::int64_t>();
  auto* own_labels = batch.labels.mutable_data_ptr<std::int64_t>();
  auto* own_weights = batch.weights.mutable_data_ptr<float>();
  auto* places = batch.own_rows.mutable_data_ptr<std::int32_t>();
  auto* positions = batch.own_positions.mutable_data_ptr<std::int32_t>();
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t place = zigzag.whole_row(row, tokens);
    own_tokens[row] = tokens_of[place];
    own_labels[row] = labels_of[place];
    own_weights[row] = weights_of[place];
    places[row] = static_cast<std::int32_t>(place);
    positions[row] =
        positions_of != nullptr ? positions_of[place] : static_cast<std::int32_t>(place % tokens);
  }
  return batch;
}

}  // namespace dstrain
