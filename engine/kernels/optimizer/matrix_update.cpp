#include "engine/kernels/optimizer/matrix_update.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>

#include "engine/base/error.h"

namespace dstrain::optimizer {

at::Tensor orthogonalize(const at::Tensor& x, int iterations) {
  DSTRAIN_CHECK(x.dim() == 2 && (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16),
                "optimizer: what is orthogonalised is no matrix in fp32 or bf16");
  constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315, kEps = 1e-7;
  const at::NoGradGuard no_grad;
  const bool tall = x.size(0) > x.size(1);
  at::Tensor wide = tall ? x.t() : x;
  wide = wide.div(wide.norm().clamp_min(kEps));
  for (int i = 0; i < iterations; ++i) {
    const at::Tensor gram = at::mm(wide, wide.t());
    const at::Tensor polynomial = at::addmm(gram, gram, gram, /*beta=*/kB, /*alpha=*/kC);
    wide = at::addmm(wide, polynomial, wide, /*beta=*/kA);
  }
  return (tall ? wide.t() : wide).contiguous();
}

}  // namespace dstrain::optimizer
