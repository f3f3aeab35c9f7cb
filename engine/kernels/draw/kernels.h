#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

/// First weights, drawn where they are needed.
namespace dstrain::kernels {

enum class Distribution { truncated_normal, normal, uniform };

/// out[i] = float(std * z) with z from word w % 4 of Philox(key, stream, w / 4), where w is the
/// place of element i in the whole tensor. Elements are those of a box of the tensor, seen as a
/// matrix: row after row.
struct Draw {
  float* out = nullptr;  ///< [count]
  std::int64_t count = 0;
  std::int64_t first = 0;    ///< place of the box's first element in the whole tensor
  std::int64_t width = 0;    ///< elements of a row of the box
  std::int64_t row = 0;      ///< elements of a row of the whole tensor
  std::uint64_t key = 0;     ///< random_key(seed, RandomStream::init)
  std::uint64_t stream = 0;  ///< of the tensor
  Distribution distribution = Distribution::truncated_normal;
  double std = 1;
};

namespace cuda {
void draw(const Draw& args, cudaStream_t stream);
}
namespace reference {
/// The same bits.
void draw(const Draw& args);
}  // namespace reference

}  // namespace dstrain::kernels
