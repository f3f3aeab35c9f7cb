#pragma once

#include <cstdint>
#include <span>

namespace dstrain {

/// One axis of the resize of an image of 3 channels of uint8: of each line, output i is the sum of
/// weights[begin[i]] to weights[begin[i + 1] - 1] times the positions from first[i] on, rounded and
/// cut off to 8 bits. Weights have kResizeWeightBits of fraction. All addresses are of the device;
/// distances are in bytes.
struct ResizePass {
  const std::uint8_t* from = nullptr;
  std::int64_t from_line = 0, from_step = 0;  ///< from a line to the next, from a position
  std::uint8_t* to = nullptr;
  std::int64_t to_line = 0, to_step = 0;
  int lines = 0, count = 0;
  const std::int32_t *first = nullptr, *begin = nullptr, *weights = nullptr;
};

inline constexpr int kResizeWeightBits = 22;  ///< 8 bits of pixel and 2 of overshoot fit beside it

namespace kernels::cuda {

/// The same pass of several images at once; `passes` is of the device, `max_outputs` is the
/// largest lines * count. `stream`: a cudaStream_t.
void resize_passes(std::span<const ResizePass> passes, std::int64_t max_outputs, void* stream);

}  // namespace kernels::cuda
}  // namespace dstrain
