#include <algorithm>
#include <limits>
#include <utility>

#include "engine/base/error.h"
#include "engine/data/batch_tensors.h"
#include "engine/data/dataset.h"

namespace dstrain {

void TextDataset::take_references(std::vector<float> references) {
  DSTRAIN_CHECK(has_pairs() && std::cmp_equal(references.size(), 2 * size()),
                "references of other samples");
  references_ = std::move(references);
}

/// Until finish(), `starts` of row r holds its places at [r * most, (r + 1) * most), unused ones
/// negative.
HostBatch TextDataset::allocate(std::int64_t rows, bool pinned) const {
  const std::int64_t length = sequence();
  DSTRAIN_CHECK(rows * length <= std::numeric_limits<std::int32_t>::max(),
                "a batch of too many tokens");
  HostBatch batch;
  batch.tokens = host_tensor({rows, length}, at::kLong, pinned);
  batch.labels = host_tensor({rows * length}, at::kLong, pinned);
  batch.weights = host_tensor({rows * length}, at::kFloat, pinned);
  batch.samples = host_tensor({rows}, at::kLong, pinned);
  batch.lengths = host_tensor({rows}, at::kInt, pinned);
  if (has_pairs()) batch.references = host_tensor({rows, 2}, at::kFloat, pinned);
  if (max_packed() > 0) {
    batch.positions = host_tensor({rows * length}, at::kInt, pinned);
    batch.starts = host_tensor({rows * max_packed() + 1}, at::kInt, pinned);
    batch.longest = length;
  }
  return batch;
}

void TextDataset::fill(HostBatch& batch, std::int64_t row, std::int64_t index) const {
  const std::int64_t length = sequence(), max = max_packed();
  const TextRow out = {.tokens = row_of<std::int64_t>(batch.tokens, row, length),
                       .labels = row_of<std::int64_t>(batch.labels, row, length),
                       .weights = row_of<float>(batch.weights, row, length),
                       .positions = max > 0 ? row_of<std::int32_t>(batch.positions, row, length)
                                            : std::span<std::int32_t>()};
  std::vector<std::int32_t> starts;
  std::int64_t tokens = 0;
  if (index < 0) {
    std::ranges::fill(out.tokens, 0);
    std::ranges::fill(out.labels, 0);
    std::ranges::fill(out.weights, 0.0F);
    for (std::size_t i = 0; i < out.positions.size(); ++i)
      out.positions[i] = static_cast<std::int32_t>(i);
    starts = {0};
  } else {
    tokens = read(index, out, starts);
  }
  batch.lengths.mutable_data_ptr<std::int32_t>()[row] = static_cast<std::int32_t>(tokens);
  batch.samples.mutable_data_ptr<std::int64_t>()[row] = index;
  if (has_pairs()) {
    const auto known = row_of<float>(batch.references, row, 2);
    std::ranges::fill(known, 0.0F);
    if (index >= 0 && !references_.empty())
      std::ranges::copy_n(references_.begin() + 2 * index, 2, known.begin());
  }
  if (max == 0) return;
  DSTRAIN_CHECK(!starts.empty() && starts.front() == 0 && std::cmp_less_equal(starts.size(), max),
                "packed sequences of a sample");
  const auto places = row_of<std::int32_t>(batch.starts, row, max);
  std::ranges::fill(places, -1);
  for (std::size_t i = 0; i < starts.size(); ++i)
    places[i] = static_cast<std::int32_t>(row * length) + starts[i];
}

void TextDataset::finish(HostBatch& batch) const {
  if (!batch.starts.defined()) return;
  const auto starts = row_of<std::int32_t>(batch.starts, 0, batch.starts.numel());
  const auto end = std::remove_if(starts.begin(), starts.end() - 1,
                                  [](std::int32_t start) { return start < 0; });
  std::fill(end, starts.end(), static_cast<std::int32_t>(batch.tokens.numel()));
}

}  // namespace dstrain
