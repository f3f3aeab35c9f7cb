#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace dstrain::kernels {

/// *sum += mixed_word of each 64-bit word of x, as it lies in memory; a last word that x does not
/// fill has zeros behind it. Sums wrap, so any order gives the same bits, on CPU and GPU.
struct AddWords {
  const void* x;        ///< aligned to 8 bytes, or to 2
  std::int64_t bytes;   ///< even
  std::uint64_t first;  ///< place of the first word
  std::uint64_t* sum;
};

namespace cuda {
void add_words(const AddWords& args, cudaStream_t stream);
}
namespace cpu {
void add_words(const AddWords& args);
}

}  // namespace dstrain::kernels
