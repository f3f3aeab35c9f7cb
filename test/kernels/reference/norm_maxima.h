#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "engine/kernels/host_view.h"
#include "test/kernels/reference/reference.h"

namespace dstrain::kernels::reference {

/// Fills a.maxima, where it is wanted, of what a norm wrote into y: all of it is one part.
template <typename Args>
void largest_of_parts(const View& y, const Args& a) {
  if (a.maxima == nullptr) return;
  std::fill_n(a.maxima, norm_maxima(a.rows, a.dim), 0.0f);
  for (std::int64_t i = 0; i < a.rows * a.dim; ++i)
    a.maxima[0] = std::fmax(a.maxima[0], static_cast<float>(std::fabs(y.at(i))));
}

/// The same of what a norm's backward wrote into grad_x.
template <typename Args>
void largest_of_gradient(const Args& a) {
  if (a.maxima == nullptr) return;
  abs_max({.x = a.grad_x, .partial = a.maxima, .count = a.rows * a.dim, .dtype = a.dtype});
}

}  // namespace dstrain::kernels::reference
