#include "engine/kernels/linear/gemm.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/base/error.h"
#include "engine/kernels/gpu.h"
#include "engine/kernels/linear/gemm_library.h"
#include "engine/kernels/linear/kernels.h"
#include "engine/kernels/op_support.h"

namespace dstrain::ops {
namespace {

constexpr double kColumnSumBytesPerS = 3.4e12;  // what column_sum reaches on an H200
constexpr double kColumnSumLaunches = 5e-6;     // seconds

bool is_fp8(at::ScalarType type) { return type == at::kFloat8_e4m3fn || type == at::kFloat8_e5m2; }

/// Where the elements of a matrix lie.
struct Layout {
  std::int64_t stride;
  bool transposed;
};

bool rows_dense(const at::Tensor& x) {
  return (x.stride(1) == 1 || x.size(1) == 1) && (x.size(0) == 1 || x.stride(0) >= x.size(1));
}

Layout matrix_layout(const at::Tensor& x) {
  if (rows_dense(x)) return {x.size(0) == 1 ? x.size(1) : x.stride(0), false};
  return {x.size(1) == 1 ? x.size(0) : x.stride(1), true};
}

void check_product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out,
                   const ProductOptions& options) {
  const auto type = a.scalar_type();
  const bool types = is_fp8(type)
                         ? is_fp8(b.scalar_type()) && rows_dense(a) && rows_dense(b.t()) &&
                               a.size(0) % 16 == 0 && a.size(1) % 16 == 0 && b.size(1) % 16 == 0
                         : b.scalar_type() == type &&
                               (out.scalar_type() == type || out.scalar_type() == at::kFloat);
  const bool shapes = a.dim() == 2 && b.dim() == 2 && out.dim() == 2 && a.size(1) == b.size(0) &&
                      out.size(0) == a.size(0) && out.size(1) == b.size(1);
  const auto fits = [](const at::Tensor& x) { return rows_dense(x) || rows_dense(x.t()); };
  DSTRAIN_CHECK(shapes && types && fits(a) && fits(b) && rows_dense(out) &&
                    (!options.bias.defined() ||
                     (!options.add && options.bias.scalar_type() == out.scalar_type() &&
                      options.bias.numel() == out.size(1))),
                fmt::format("product of a {} {} and b {} {} into out {} {}", shape_of(a),
                            c10::toString(type), shape_of(b), c10::toString(b.scalar_type()),
                            shape_of(out), c10::toString(out.scalar_type())));
}

/// An operand on the CPU in a dtype that ATen multiplies.
at::Tensor plain(const at::Tensor& x, const at::Tensor& scale, at::ScalarType type) {
  if (!is_fp8(x.scalar_type())) return x.to(type);
  return scale.defined() ? x.to(at::kFloat) * scale : x.to(at::kFloat);
}

void multiply_cpu(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out,
                  const ProductOptions& options) {
  const auto type = is_fp8(a.scalar_type()) ? at::kFloat : out.scalar_type();
  const at::Tensor left = plain(a, options.a_scale, type), right = plain(b, options.b_scale, type);
  const bool direct = out.scalar_type() == type;
  at::Tensor result = direct ? out : out.to(type);
  if (options.add) {
    at::addmm_out(result, result, left, right, 1, options.alpha);
  } else if (options.bias.defined()) {
    at::addmm_out(result, options.bias.to(type), left, right, 1, options.alpha);
  } else if (options.alpha != 1) {
    at::addmm_out(result, result, left, right, /*beta=*/0, options.alpha);  // result is not read
  } else {
    at::mm_out(result, left, right);
  }
  if (!direct) out.copy_(result);
}

/// The largest power of two up to 16 that divides all addresses.
int alignment_of(std::initializer_list<const void*> addresses) {
  std::uintptr_t bits = 16;
  for (const void* address : addresses) bits |= reinterpret_cast<std::uintptr_t>(address);
  return static_cast<int>(bits & (~bits + 1));
}

GemmCall call_of(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out) {
  const Layout la = matrix_layout(a), lb = matrix_layout(b), lo = matrix_layout(out);
  GemmCall call{.a = a.const_data_ptr(), .b = b.const_data_ptr(), .out = out.mutable_data_ptr()};
  call.key = {.m = out.size(0),
              .n = out.size(1),
              .k = a.size(1),
              .a_stride = la.stride,
              .b_stride = lb.stride,
              .out_stride = lo.stride,
              .a_transposed = la.transposed,
              .b_transposed = lb.transposed,
              .a_type = a.scalar_type(),
              .b_type = b.scalar_type(),
              .out_type = out.scalar_type(),
              .alignment = alignment_of({call.a, call.b, call.out})};
  return call;
}

/// Rows of the operands begin at 16 bytes. Elsewhere some algorithms round a sum, or parts of it,
/// before they add the bias.
bool in_packs(const GemmKey& key) {
  constexpr std::int64_t kElements = 8;
  return key.alignment == 16 && key.a_stride % kElements == 0 && key.b_stride % kElements == 0;
}

const float* scale_pointer(const at::Tensor& scale) {
  return scale.defined() ? scale.const_data_ptr<float>() : nullptr;
}

/// Products with the transposed rows of a small weight, of so few rows that they only read it.
bool run_few_rows(const GemmCall& call, const ProductOptions& options) {
  const auto& key = call.key;
  const bool is_16_bits = key.a_type == at::kBFloat16 || key.a_type == at::kHalf;
  if (key.m > kernels::kMaxFewRows || key.n > kernels::kMaxFewRowsOutputs ||
      key.k % kernels::kFewRowsDepth != 0 || !is_16_bits || key.out_type != key.a_type ||
      key.a_transposed || !key.b_transposed || key.a_stride % 8 != 0 || key.b_stride % 8 != 0 ||
      alignment_of({call.a, call.b}) < 16 || options.add)
    return false;
  if (key.a_type == at::kBFloat16 && !kernels::cuda::gpu_limits().bf16_products) return false;
  kernels::cuda::few_rows(
      {.x = call.a,
       .weight = call.b,
       .bias = call.vector,
       .out = call.out,
       .rows = key.m,
       .outputs = key.n,
       .depth = key.k,
       .x_stride = key.a_stride,
       .weight_stride = key.b_stride,
       .out_stride = key.out_stride,
       .alpha = call.alpha,
       .dtype = key.a_type == at::kHalf ? kernels::DType::f16 : kernels::DType::bf16},
      current_stream());
  return true;
}

}  // namespace

void multiply(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out,
              const ProductOptions& options) {
  check_product(a, b, out, options);
  if (out.numel() == 0) return;
  if (a.size(1) == 0 || !out.is_cuda()) return multiply_cpu(a, b, out, options);
  const std::int64_t rows = out.size(0), columns = out.size(1);
  const std::int64_t fast_columns = fast_part(columns, a.element_size()),
                     fast_rows = rows_dense(a) ? rows : fast_part(rows, a.element_size());
  if (fast_rows < rows) {
    const auto part = [&](std::int64_t first, std::int64_t count) {
      multiply(a.narrow(0, first, count), b, out.narrow(0, first, count), options);
    };
    part(0, fast_rows);
    return part(fast_rows, rows - fast_rows);
  }
  if (fast_columns < columns) {
    const auto part = [&](std::int64_t first, std::int64_t count) {
      ProductOptions own = options;
      if (own.bias.defined()) own.bias = own.bias.narrow(0, first, count);
      multiply(a, b.narrow(1, first, count), out.narrow(1, first, count), own);
    };
    part(0, fast_columns);
    return part(fast_columns, columns - fast_columns);
  }
  GemmCall call = call_of(a, b, out);
  call.key.fast = options.fast && is_fp8(a.scalar_type());
  call.key.bias = options.bias.defined();
  if (call.key.bias) {
    call.vector = options.bias.mutable_data_ptr();
    call.key.alignment = std::min(call.key.alignment, alignment_of({call.vector}));
  }
  call.a_scale = scale_pointer(options.a_scale);
  call.b_scale = scale_pointer(options.b_scale);
  call.rows_vary = options.rows_vary;
  call.alpha = static_cast<float>(options.alpha);
  call.beta = options.add ? 1.0f : 0.0f;
  if (run_few_rows(call, options)) return;
  if (call.key.bias && out.element_size() == 2 && !in_packs(call.key)) {
    ProductOptions own = options;
    out.copy_(std::exchange(own.bias, {}).expand_as(out));
    own.add = true;
    return multiply(a, b, out, own);
  }
  run_gemm(call);
}

bool multiply_and_sum(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out,
                      const at::Tensor& row_sums, bool add) {
  check_product(a, b, out, {.add = add});
  if (!out.is_cuda() || out.numel() == 0 || a.size(1) == 0) return false;
  GemmCall call = call_of(a, b, out);
  call.key.row_sums = true;
  call.vector = row_sums.mutable_data_ptr<float>();
  call.beta = add ? 1.0f : 0.0f;
  const double bytes = static_cast<double>(a.numel()) * static_cast<double>(a.element_size());
  return run_gemm_if_cheap(call, kColumnSumLaunches + bytes / kColumnSumBytesPerS);
}

}  // namespace dstrain::ops
