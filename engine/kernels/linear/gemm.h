#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace dstrain::ops {

/// The part of `size` numbers of 16 bits, neighbours in memory, that fast kernels take: of many, as
/// a vocabulary has, a multiple of eight. With 50,257 of them a product took 4.7 times as long.
[[nodiscard]] constexpr std::int64_t fast_part(std::int64_t size, std::int64_t element_bytes) {
  constexpr std::int64_t kMany = 4096, kTogether = 8;
  return element_bytes == 2 && size >= kMany ? size - size % kTogether : size;
}

/// How a product is scaled, and what is added to it.
struct ProductOptions {
  double alpha = 1;
  bool add = false;      ///< to what `out` holds, which otherwise need not be defined
  at::Tensor bias = {};  ///< [N] of out's dtype, added to each row; or undefined; not with `add`
  /// fp32 scalars on the operands' device by which FP8 operands are multiplied.
  at::Tensor a_scale = {}, b_scale = {};
  bool fast = false;  ///< FP8 only: sums may be kept shorter than fp32, as is usual in forward
  /// Rows of a, or of `a.t()`, are not the same number in each call: the algorithm is that of the
  /// next power of two.
  bool rows_vary = false;
};

/// out [M, N] = alpha * a [M, K] b [K, N] (+ out) (+ bias), with fp32 sums, rounded once; but
/// kernels of cuBLASLt for compute capability 9.0 round a product before they add it to 16 bits.
///
/// Operands are views: rows dense or, as of `tensor.t()`, columns dense; out's rows are dense. a
/// and b are of one 16-bit dtype or fp32, out of theirs or fp32; FP8 operands (a with dense rows, b
/// with dense columns, all sizes multiples of 16) give any of them. On a GPU by cuBLASLt (TF32
/// never): the first product of its kind measures which algorithm is fastest and waits for it,
/// unless the choice is known from disk (engine/kernels/linear/gemm_cache.h) or DSTRAIN_GEMM_TUNE
/// is 0; while a stream is captured nothing is measured. Products of few rows with `weight.t()` may
/// run by our own kernel (kernels::FewRows). Rows or columns of out beyond a fast_part() are a
/// product of their own. `out` must not overlap an operand.
void multiply(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out,
              const ProductOptions& options = {});

/// The same, and row_sums [M] fp32 = sums of a's rows, where that is faster than another read of a;
/// false: nothing was done, and row_sums and (unless `add`) out hold nothing of use. GPU only.
[[nodiscard]] bool multiply_and_sum(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out,
                                    const at::Tensor& row_sums, bool add);

}  // namespace dstrain::ops
