#pragma once

#include <cmath>
#include <cstdint>

#include "engine/base/philox.h"

/// Random numbers of first weights. Plain double arithmetic gives the same bits on every host and
/// GPU, as long as no compiler joins a product and a sum: engine/kernels/CMakeLists.txt forbids it.
namespace dstrain {

/// Standard normal cut at 2 standard deviations, from 32 random bits by the inverse distribution: z
/// = q P(q^2) / Q(q^2), a least-squares fit over |q| <= Phi(2) - 1/2 with an error below 2e-7.
DSTRAIN_HOST_DEVICE double draw_truncated_normal(std::uint32_t bits) {
  constexpr double kTail = 0.47724986805182079;  // Phi(2) - 1/2
  const double q = ((static_cast<double>(bits) + 0.5) * 0x1p-31 - 1.0) * kTail;
  const double s = q * q;
  const double p =
      2.5066283469482164 +
      s * (-24.353430604595772 +
           s * (79.463601086464523 + s * (-94.607840518323438 + s * 25.142670039720853)));
  const double r =
      1.0 + s * (-10.762796905147754 +
                 s * (40.668495741205913 + s * (-61.780411659549425 + s * 29.438765336979769)));
  return q * p / r;
}

/// Natural logarithm of a normal number by frexp and the series of atanh, error below 1e-12: unlike
/// that of a libm, the same bits everywhere.
DSTRAIN_HOST_DEVICE double plain_log(double x) {
  constexpr double kLog2 = 0.69314718055994531;
  int exponent = 0;
  double m = frexp(x, &exponent);
  if (m < 0.70710678118654752) {
    m *= 2;
    --exponent;
  }
  const double s = (m - 1) / (m + 1), t = s * s;
  double sum = 0;
  for (int k = 15; k >= 1; k -= 2) sum = sum * t + 1.0 / k;
  return exponent * kLog2 + 2 * s * sum;
}

/// Standard normal from 32 random bits by the inverse distribution: Wichura 1988, algorithm AS 241,
/// PPND7, error below 1e-6.
DSTRAIN_HOST_DEVICE double draw_normal(std::uint32_t bits) {
  const double p = (static_cast<double>(bits) + 0.5) * 0x1p-32, q = p - 0.5;
  if (fabs(q) <= 0.425) {
    const double r = 0.180625 - q * q;
    return q * (((59.109374720 * r + 159.29113202) * r + 50.434271938) * r + 3.3871327179) /
           (((67.187563600 * r + 78.757757664) * r + 17.895169469) * r + 1);
  }
  // Below 4.79 for any p that 32 bits give, so that the formula of the far tail is not needed.
  const double r = sqrt(-plain_log(q < 0 ? p : 1 - p)) - 1.6;
  const double z = (((0.17023821103 * r + 1.3067284816) * r + 2.7568153900) * r + 1.4234372777) /
                   ((0.12021132975 * r + 0.73700164250) * r + 1);
  return q < 0 ? -z : z;
}

/// Uniform with mean 0 and variance 1.
DSTRAIN_HOST_DEVICE double draw_uniform(std::uint32_t bits) {
  constexpr double kRootOf3 = 1.7320508075688772;
  return ((static_cast<double>(bits) + 0.5) * 0x1p-31 - 1.0) * kRootOf3;
}

}  // namespace dstrain
