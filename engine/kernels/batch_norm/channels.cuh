#pragma once

#include <algorithm>

#include "engine/kernels/batch_norm/kernels.h"
#include "engine/kernels/device.cuh"

/// Kernels over images [rows, channels] whose numbers per channel stay in registers: a thread owns
/// V channels and walks down rows; neighbouring threads own neighbouring channels, then
/// neighbouring rows, so that narrow images are read as wide ones are.
namespace dstrain::kernels::cuda {

inline constexpr int kChannelThreads = 256;
inline constexpr std::int64_t kChannelBlocks = 1056;  // eight per SM of an H200
inline constexpr int kChannelUnroll = 4;              // rows whose loads are under way together

/// How threads share `packs` packs of channels: `slabs` blocks beside each other, `lanes` threads a
/// row, `slots` rows at a time.
struct ChannelShape {
  int lanes, slots, slabs;

  [[nodiscard]] int threads() const { return lanes * slots; }
};

inline ChannelShape channel_shape(std::int64_t packs) {
  const auto slabs = static_cast<int>((packs + kWarp - 1) / kWarp);
  const auto lanes = static_cast<int>((packs + slabs - 1) / slabs);
  return {lanes, kChannelThreads / lanes, slabs};
}

/// Channels of a thread: a pack, or one where rows are not aligned.
inline int channel_width(std::int64_t channels) { return channels % kPack == 0 ? kPack : 1; }

/// Blocks that share the rows.
inline std::int64_t row_blocks(const ChannelShape& shape, std::int64_t rows) {
  const std::int64_t step = static_cast<std::int64_t>(shape.slots) * kChannelUnroll;
  return std::clamp<std::int64_t>(kChannelBlocks / shape.slabs, 1,
                                  std::max<std::int64_t>(1, (rows + step - 1) / step));
}

/// Where this thread stands: its pack of channels, its first row and the next ones.
struct ChannelPlace {
  int lane, slot;
  std::int64_t pack;
  bool active;

  __device__ ChannelPlace(const ChannelShape& shape, std::int64_t packs)
      : lane(static_cast<int>(threadIdx.x) % shape.lanes),
        slot(static_cast<int>(threadIdx.x) / shape.lanes),
        pack(static_cast<std::int64_t>(blockIdx.x) * shape.lanes + lane),
        active(pack < packs) {}
};

/// Runs over the rows of this thread, `kRows` at a time: `fetch(row)` returns what is read,
/// `use(row, it)` works on it.
template <int kRows, typename Fetch, typename Use>
__device__ void for_rows(const ChannelShape& shape, const ChannelPlace& place, std::int64_t rows,
                         const Fetch& fetch, const Use& use) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.y) * shape.slots;
  std::int64_t row = static_cast<std::int64_t>(blockIdx.y) * shape.slots + place.slot;
  for (; row + (kRows - 1) * step < rows; row += kRows * step) {
    decltype(fetch(row)) read[kRows];
#pragma unroll
    for (int u = 0; u < kRows; ++u) read[u] = fetch(row + u * step);
#pragma unroll
    for (int u = 0; u < kRows; ++u) use(row + u * step, read[u]);
  }
  if (row >= rows) return;
  // The last rows together, too: one after the other they would wait for memory each.
  decltype(fetch(row)) read[kRows];
#pragma unroll
  for (int u = 0; u < kRows; ++u) {
    if (row + u * step < rows) read[u] = fetch(row + u * step);
  }
#pragma unroll
  for (int u = 0; u < kRows; ++u) {
    if (row + u * step < rows) use(row + u * step, read[u]);
  }
}

/// Per channel numbers of a thread; `otherwise` where there are none.
template <int V>
__device__ void load_channels(const float* from, std::int64_t pack, float otherwise,
                              float (&out)[V]) {
  if (from == nullptr) {
#pragma unroll
    for (int i = 0; i < V; ++i) out[i] = otherwise;
  } else {
    load<float, V>(from, pack).unpack(out);
  }
}

/// Adds each thread's K sums of a channel over the slots, in order, and gives them to
/// use(k, channel, total). `shared` has room for threads * K * V numbers.
template <int K, int V, typename Use>
__device__ void add_slots(const float (&sum)[K][V], const ChannelShape& shape,
                          const ChannelPlace& place, float* shared, const Use& use) {
  const int row = shape.lanes * V;  // numbers of one slot and k
#pragma unroll
  for (int k = 0; k < K; ++k) {
#pragma unroll
    for (int i = 0; i < V; ++i) shared[(place.slot * K + k) * row + place.lane * V + i] = sum[k][i];
  }
  __syncthreads();
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * row;
  for (int i = static_cast<int>(threadIdx.x); i < K * row; i += static_cast<int>(blockDim.x)) {
    float total = 0;
    for (int slot = 0; slot < shape.slots; ++slot) total += shared[slot * K * row + i];
    use(i / row, first + i % row, total);
  }
}

/// The same into to[k, channels].
template <int K, int V>
__device__ void store_block_sums(const float (&sum)[K][V], const ChannelShape& shape,
                                 const ChannelPlace& place, std::int64_t channels, float* shared,
                                 float* to) {
  add_slots<K, V>(sum, shape, place, shared, [&](int k, std::int64_t channel, float total) {
    if (channel < channels) to[k * channels + channel] = total;
  });
}

template <int K, int V>
std::size_t block_sums_bytes(const ChannelShape& shape) {
  return sizeof(float) * static_cast<std::size_t>(shape.threads()) * K * V;
}

/// Calls body(V) with the channels of a thread as a constant.
template <typename Body>
void with_channel_width(std::int64_t channels, const Body& body) {
  if (channel_width(channels) == kPack) {
    body(std::integral_constant<int, kPack>{});
  } else {
    body(std::integral_constant<int, 1>{});
  }
}

/// batch_norm_apply with a gate (squeeze.cu).
void gated_apply(const BatchNormApply& args, cudaStream_t stream);

/// Samples that count, and rows of them.
__device__ inline std::int64_t valid_samples(const std::int32_t* valid, std::int64_t samples) {
  return valid == nullptr ? samples : min(static_cast<std::int64_t>(*valid), samples);
}

}  // namespace dstrain::kernels::cuda
