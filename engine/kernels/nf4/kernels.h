#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "engine/kernels/dtype.h"
#include "engine/mesh/nf4_storage.h"

namespace dstrain::kernels {

/// out = value of the code * maximum of its block, one rounding; a coded maximum is value of its
/// code * maximum of maxima + offset, each rounded to fp32. Equal bits on CPU and GPU.
struct DecodeNf4 {
  const std::uint8_t* stored;  ///< of the parameter (Nf4Storage)
  Nf4Piece piece;
  bool double_coded;
  void* out;  ///< [piece.blocks * 64] dense
  DType dtype;
};

namespace cuda {
void decode_nf4(const DecodeNf4& args, cudaStream_t stream);
}
namespace cpu {
void decode_nf4(const DecodeNf4& args);
}

}  // namespace dstrain::kernels
