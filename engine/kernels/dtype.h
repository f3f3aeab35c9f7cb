#pragma once

namespace dstrain::kernels {

enum class DType { f32, bf16, f16 };

}  // namespace dstrain::kernels
