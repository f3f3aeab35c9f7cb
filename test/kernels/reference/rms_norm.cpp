#include <cmath>
#include <vector>

#include "engine/kernels/host_view.h"
#include "test/kernels/reference/norm_maxima.h"
#include "test/kernels/reference/reference.h"

/// RMS norm as its definition reads, in double.
namespace dstrain::kernels::reference {

namespace {

/// By what the norm of element `i` is multiplied.
template <typename Args>
double factor_of(const Args& a, const View& weight, std::int64_t i) {
  return (a.less_one ? 1 : 0) + weight.at(i);
}

}  // namespace

void add_rms_norm(const AddRmsNorm& a) {
  const View x(a.x, a.dtype), delta(a.delta, a.dtype), sum(delta ? a.sum : a.x, a.dtype),
      y(a.y, a.dtype), weight(a.weight, a.dtype);
  for (std::int64_t row = 0; row < a.rows; ++row) {
    const std::int64_t first = row * a.dim;
    double square = 0;
    for (std::int64_t i = 0; i < a.dim; ++i) {
      if (delta) sum.set(first + i, x.at(first + i) + delta.at(first + i));
      square += std::pow(sum.at(first + i), 2) / static_cast<double>(a.dim);
    }
    const double rstd = 1 / std::sqrt(square + static_cast<double>(a.eps));
    for (std::int64_t i = 0; i < a.dim; ++i) {
      const double normed = sum.at(first + i) * rstd;
      y.set(first + i, normed);  // rounded before the weight comes, unless that lacks one
      y.set(first + i, (a.less_one ? normed : y.at(first + i)) * factor_of(a, weight, i));
    }
    a.rstd[row] = static_cast<float>(rstd);
  }
  largest_of_parts(y, a);
}

void add_rms_norm_backward(const AddRmsNormBackward& a) {
  const View sum(a.sum, a.dtype), weight(a.weight, a.dtype), grad_y(a.grad_y, a.dtype),
      past(a.grad_sum, a.dtype), grad_x(a.grad_x, a.dtype);
  std::vector<double> grad_weight(static_cast<std::size_t>(a.dim));
  for (std::int64_t row = 0; row < a.rows; ++row) {
    const std::int64_t first = row * a.dim;
    const auto rstd = static_cast<double>(a.rstd[row]);
    double mean_grad_x = 0;
    for (std::int64_t i = 0; i < a.dim; ++i) {
      const double grad = grad_y.at(first + i), x_hat = sum.at(first + i) * rstd;
      grad_weight[static_cast<std::size_t>(i)] += grad * x_hat;
      mean_grad_x += grad * factor_of(a, weight, i) * x_hat / static_cast<double>(a.dim);
    }
    for (std::int64_t i = 0; i < a.dim; ++i) {
      const double through =
          grad_y.at(first + i) * factor_of(a, weight, i) - sum.at(first + i) * rstd * mean_grad_x;
      grad_x.set(first + i, rstd * through + (past ? past.at(first + i) : 0));
    }
  }
  largest_of_gradient(a);
  if (a.grad_weight == nullptr) return;
  for (std::int64_t i = 0; i < a.dim; ++i)
    add_to(a.grad_weight[i], grad_weight[static_cast<std::size_t>(i)]);
}

}  // namespace dstrain::kernels::reference
