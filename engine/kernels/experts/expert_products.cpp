#include "engine/kernels/experts/expert_products.h"

#include <ATen/ops/_grouped_mm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/device/stream.h"
#include "engine/kernels/gpu.h"
#include "engine/kernels/gradient_sink.h"
#include "engine/kernels/linear/gemm.h"
#include "engine/kernels/linear/linear_map.h"
#include "engine/kernels/op_support.h"

namespace dstrain::ops {
namespace {

/// Mean rows of an expert from which a product for each is faster than one kernel for all, as
/// measured (`test_gpu "bench: products of experts"`).
constexpr std::int64_t kRowsOfOwnProduct = 2048;

bool has_grouped_kernel(const at::TensorOptions& options) {
  if (!options.device().is_cuda() || options.dtype() != at::kBFloat16) return false;
  // LibTorch has a kernel of its own for Hopper alone.
  return kernels::cuda::gpu_limits().warpgroups;
}

bool grouped_pays(const at::Tensor& x, std::int64_t experts) {
  return has_grouped_kernel(x.options()) && x.size(0) > 0 &&
         x.size(0) < experts * kRowsOfOwnProduct;
}

/// One expert's matrix out of those of all.
at::Tensor matrix_at(const at::Tensor& matrices, const ExpertMatrix& shape, std::int64_t expert) {
  return matrices.narrow(0, expert * shape.rows, shape.rows);
}

/// Calls body(expert, first row, rows) for each expert, also one without rows. On a GPU every other
/// one runs on a second stream: what a product leaves idle at its end, the next one takes.
template <typename Body>
void for_each_expert(const std::vector<std::int64_t>& counts, c10::Device device,
                     const Body& body) {
  const Stream own = Stream::current(device);
  static thread_local std::vector<Stream> others;  // by device
  auto other = std::ranges::find(others, device, &Stream::device);
  if (other == others.end()) {
    others.push_back(Stream::from_pool(device));
    other = others.end() - 1;
  }
  Event before(device), after(device);
  before.record(own);
  before.wait(*other);
  std::int64_t first = 0;
  for (std::size_t e = 0; e < counts.size(); ++e) {
    const StreamScope scope(e % 2 == 0 ? own : *other);
    body(static_cast<std::int64_t>(e), first, counts[e]);
    first += counts[e];
  }
  after.record(*other);
  after.wait(own);
}

}  // namespace

ExpertRows expert_rows(std::vector<std::int64_t> counts, const at::Tensor& x, ExpertKernel kernel) {
  const auto experts = static_cast<std::int64_t>(counts.size());
  const bool grouped = kernel == ExpertKernel::grouped ||
                       (kernel == ExpertKernel::automatic && grouped_pays(x, experts));
  ExpertRows rows{.counts = std::move(counts), .ends = {}};
  if (!grouped) return rows;
  // Pageable memory, which needs no allocation by the driver: it takes a copy of so few bytes at
  // once.
  const at::Tensor host = at::empty({experts}, at::kInt);
  auto* ends = host.mutable_data_ptr<std::int32_t>();
  std::int64_t end = 0;
  for (std::size_t e = 0; e < rows.counts.size(); ++e) {
    end += rows.counts[e];
    ends[e] = static_cast<std::int32_t>(end);
  }
  rows.ends = host.to(x.device(), /*non_blocking=*/true);
  return rows;
}

ExpertMatrix expert_matrix(const Parameter& weight, const at::Tensor& x, std::size_t experts) {
  const at::Tensor matrices = matrix_of(weight, x);
  return {.rows = matrices.size(0) / static_cast<std::int64_t>(experts),
          .columns = matrices.size(1)};
}

at::Tensor expert_products(const at::Tensor& x, const Parameter& weight, const ExpertRows& rows,
                           bool transposed) {
  const ExpertMatrix shape = expert_matrix(weight, x, rows.counts.size());
  const at::Tensor matrices = matrix_of(weight, x);
  if (rows.ends.defined()) {
    DSTRAIN_CHECK(weight.output_scale == 1, "one kernel for all experts scales no outputs");
    const at::Tensor each = matrices.view({-1, shape.rows, shape.columns});
    return at::_grouped_mm(x, transposed ? each.transpose(1, 2) : each, rows.ends);
  }
  at::Tensor y = at::empty({x.size(0), transposed ? shape.rows : shape.columns}, x.options());
  for_each_expert(rows.counts, x.device(),
                  [&](std::int64_t e, std::int64_t first, std::int64_t count) {
                    const at::Tensor matrix = matrix_at(matrices, shape, e);
                    multiply(x.narrow(0, first, count), transposed ? matrix.t() : matrix,
                             y.narrow(0, first, count),
                             {.alpha = weight.output_scale, .rows_vary = true});
                  });
  return y;
}

void add_expert_gradients(const at::Tensor& x, const at::Tensor& dy, Parameter& weight,
                          const ExpertRows& rows) {
  const GradientSink::Target target = GradientSink(weight, x).open();
  const ExpertMatrix shape{.rows = dy.size(1), .columns = x.size(1)};
  const at::Tensor gradient = target.tensor.view({-1, shape.columns});
  // Straight into the gradient with sums in fp32, which one kernel for all experts cannot do.
  for_each_expert(rows.counts, x.device(),
                  [&](std::int64_t e, std::int64_t first, std::int64_t count) {
                    const at::Tensor own = matrix_at(gradient, shape, e);
                    if (count > 0) {
                      multiply(dy.narrow(0, first, count).t(), x.narrow(0, first, count), own,
                               {.alpha = weight.output_scale,
                                .add = target.add,
                                .rows_vary = true});
                    } else if (!target.add) {
                      own.zero_();
                    }
                  });
}

void rehearse_expert_products(std::int64_t max_rows, const ExpertMatrix& shape,
                              const at::TensorOptions& options,
                              std::optional<at::ScalarType> gradient) {
  const at::Tensor matrix = at::zeros({shape.rows, shape.columns}, options);
  at::Tensor sum;
  if (gradient) sum = at::zeros(matrix.sizes(), options.dtype(*gradient));
  // The second stream and its workspace.
  const at::Tensor two = at::zeros({2, shape.columns}, options);
  for_each_expert({1, 1}, options.device(),
                  [&](std::int64_t, std::int64_t first, std::int64_t count) {
                    multiply(two.narrow(0, first, count), matrix.t(),
                             at::empty({count, shape.rows}, options), {.rows_vary = true});
                  });
  const bool grouped = has_grouped_kernel(options);
  // The algorithm is that of the next power of two; one that takes an odd number takes any.
  for (std::int64_t power = 1; power < 2 * max_rows; power *= 2) {
    const std::int64_t rows = std::min(power > 2 ? power - 1 : power, max_rows);
    const at::Tensor x = at::zeros({rows, shape.columns}, options),
                     y = at::zeros({rows, shape.rows}, options);
    multiply(x, matrix.t(), y, {.rows_vary = true});
    multiply(y, matrix, x, {.rows_vary = true});
    if (grouped) {
      const at::Tensor end = at::full({1}, rows, options.dtype(at::kInt));
      at::_grouped_mm(x, matrix.t().unsqueeze(0), end);
      at::_grouped_mm(y, matrix.unsqueeze(0), end);
    }
    if (!gradient) continue;
    for (const bool add : {false, true}) multiply(y.t(), x, sum, {.add = add, .rows_vary = true});
  }
}

}  // namespace dstrain::ops
