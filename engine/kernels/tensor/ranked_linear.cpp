#include "engine/kernels/tensor/ranked_linear.h"

#include <ATen/ops/empty.h>

#include "engine/base/error.h"
#include "engine/kernels/linear/gemm.h"
#include "engine/kernels/op_support.h"
#include "engine/kernels/tensor/rows_beside.h"

namespace dstrain::ops {
namespace {

at::Tensor rows_like(const at::Tensor& x, std::int64_t rows) {
  return at::empty({rows, x.size(1)}, x.options());
}

LinearOutput apply_to_gathered(const at::Tensor& x_mK, Parameter& weight, Parameter* bias,
                               Keep keep, Communicator& ranks) {
  if (runs_in_fp8(weight, x_mK)) return apply_linear(all_gathered(x_mK, ranks), weight, bias, keep);
  at::Tensor all = rows_like(x_mK, ranks.size() * x_mK.size(0));
  LinearOutput out = empty_output(x_mK, all.size(0), weight, bias);
  gather_beside(all, x_mK, ranks, [&](const at::Tensor& x, std::int64_t first) {
    multiply_rows(x, weight, bias, out.y.narrow(0, first, x.size(0)));
  });
  if (weight.trainable && keep == Keep::input) out.kept = all;
  return out;
}

LinearOutput apply_and_sum(const Measured& x, Parameter& weight, Keep keep, Communicator& ranks) {
  const std::int64_t rows = x.rows.size(0);
  if (!ranks.overlaps() || runs_in_fp8(weight, x.rows)) {
    LinearOutput out = apply_linear(x, weight, nullptr, keep);
    out.y = reduce_scattered(out.y, ranks);
    return out;
  }
  LinearOutput out = empty_output(x.rows, rows, weight, nullptr);
  const at::Tensor y = out.y;
  const auto product = [&](std::int64_t first, std::int64_t count) {
    multiply_rows(x.rows.narrow(0, first, count), weight, nullptr, y.narrow(0, first, count));
  };
  with_others(rows, ranks, product);
  out.y = reduce_scattered(y, ranks, [&] { with_own(rows, ranks, product); });
  if (weight.trainable && keep == Keep::input) out.kept = x.rows;
  return out;
}

}  // namespace

LinearOutput apply_linear(const Measured& x, Parameter& weight, Parameter* bias, Keep keep,
                          const RowRanks& ranks) {
  DSTRAIN_CHECK(ranks.gathered == nullptr || ranks.summed == nullptr,
                "a product with gathered rows is not summed");
  DSTRAIN_CHECK(ranks.summed == nullptr || bias == nullptr, "a bias is added to the sum");
  if (ranks.gathered != nullptr)
    return apply_to_gathered(x.rows, weight, bias, keep, *ranks.gathered);
  if (ranks.summed != nullptr) return apply_and_sum(x, weight, keep, *ranks.summed);
  return apply_linear(x, weight, bias, keep);
}

RankedGradient gradient_of_sum(const at::Tensor& dy, Parameter& weight, Parameter* bias,
                               bool for_input, const at::Tensor& weight_scale,
                               Communicator* summed) {
  if (summed != nullptr && for_input && !runs_in_fp8(weight, dy)) {
    const at::Tensor own = dense(dy), matrix = matrix_of(weight, dy);
    at::Tensor all = rows_like(own, summed->size() * own.size(0));
    const at::Tensor dx = at::empty({all.size(0), matrix.size(1)}, own.options());
    gather_beside(all, own, *summed, [&](const at::Tensor& rows, std::int64_t first) {
      multiply(rows, matrix, dx.narrow(0, first, rows.size(0)), {.alpha = weight.output_scale});
    });
    return {.output = {all, weight, bias, for_input}, .input = dx};
  }
  const LinearGradient output(summed == nullptr ? dy : all_gathered(dy, *summed), weight, bias,
                              for_input);
  return {.output = output, .input = for_input ? output.input(weight_scale) : at::Tensor()};
}

at::Tensor add_and_pass_on(const LinearGradient& dy, const at::Tensor& kept,
                           const at::Tensor& scale, const at::Tensor& weight_scale, bool for_input,
                           Communicator* gathered) {
  if (gathered == nullptr || !for_input) {
    dy.add_to_parameters(kept, scale);
    return for_input ? dy.input(weight_scale) : at::Tensor();
  }
  const at::Tensor dx = dy.input(weight_scale);
  return reduce_scattered(dx, *gathered, [&] { dy.add_to_parameters(kept, scale); });
}

}  // namespace dstrain::ops
