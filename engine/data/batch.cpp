#include <ATen/ops/empty.h>

#include <algorithm>
#include <limits>

#include "engine/base/error.h"
#include "engine/data/dataset.h"

namespace dstrain {
namespace {

template <class T>
std::span<T> row_of(const at::Tensor& tensor, std::int64_t row, std::int64_t size) {
  return {tensor.mutable_data_ptr<T>() + row * size, static_cast<std::size_t>(size)};
}

at::Tensor host(at::IntArrayRef sizes, at::ScalarType type, bool pinned) {
  return at::empty(sizes, at::TensorOptions(type).pinned_memory(pinned));
}

}  // namespace

HostBatch ImageDataset::allocate(std::int64_t rows, bool pinned) const {
  const ImageShape image = shape();
  HostBatch batch;
  batch.pixels = host({rows, image.height, image.width, image.channels}, at::kByte, pinned);
  batch.labels = host({rows}, at::kLong, pinned);
  batch.weights = host({rows}, at::kFloat, pinned);
  batch.samples = host({rows}, at::kLong, pinned);
  return batch;
}

void ImageDataset::fill(HostBatch& batch, std::int64_t row, std::int64_t index) const {
  const auto pixels = row_of<std::uint8_t>(batch.pixels, row, shape().bytes());
  if (index < 0) std::ranges::fill(pixels, std::uint8_t{0});
  batch.labels.mutable_data_ptr<std::int64_t>()[row] = index < 0 ? 0 : read(index, pixels);
  batch.weights.mutable_data_ptr<float>()[row] = index < 0 ? 0.0F : 1.0F;
  batch.samples.mutable_data_ptr<std::int64_t>()[row] = index;
}

/// Until finish(), `starts` of row r holds its places at [r * most, (r + 1) * most), unused ones
/// negative.
HostBatch TextDataset::allocate(std::int64_t rows, bool pinned) const {
  const std::int64_t length = sequence();
  DSTRAIN_CHECK(rows * length <= std::numeric_limits<std::int32_t>::max(),
                "a batch of too many tokens");
  HostBatch batch;
  batch.tokens = host({rows, length}, at::kLong, pinned);
  batch.labels = host({rows * length}, at::kLong, pinned);
  batch.weights = host({rows * length}, at::kFloat, pinned);
  batch.samples = host({rows}, at::kLong, pinned);
  if (most_packed() > 0) {
    batch.positions = host({rows * length}, at::kInt, pinned);
    batch.starts = host({rows * most_packed() + 1}, at::kInt, pinned);
    batch.longest = length;
  }
  return batch;
}

void TextDataset::fill(HostBatch& batch, std::int64_t row, std::int64_t index) const {
  const std::int64_t length = sequence(), most = most_packed();
  const TextRow out = {.tokens = row_of<std::int64_t>(batch.tokens, row, length),
                       .labels = row_of<std::int64_t>(batch.labels, row, length),
                       .weights = row_of<float>(batch.weights, row, length),
                       .positions = most > 0 ? row_of<std::int32_t>(batch.positions, row, length)
                                             : std::span<std::int32_t>()};
  std::vector<std::int32_t> starts;
  if (index < 0) {
    std::ranges::fill(out.tokens, 0);
    std::ranges::fill(out.labels, 0);
    std::ranges::fill(out.weights, 0.0F);
    for (std::size_t i = 0; i < out.positions.size(); ++i)
      out.positions[i] = static_cast<std::int32_t>(i);
    starts = {0};
  } else {
    read(index, out, starts);
  }
  batch.samples.mutable_data_ptr<std::int64_t>()[row] = index;
  if (most == 0) return;
  DSTRAIN_CHECK(!starts.empty() && starts.front() == 0 && std::cmp_less_equal(starts.size(), most),
                "packed sequences of a sample");
  const auto places = row_of<std::int32_t>(batch.starts, row, most);
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
