#pragma once

#include <ATen/ops/full.h>
#include <ATen/ops/maximum.h>

#include <cmath>

#include "test/support/bounded.h"

/// Steps of the optimizers in fp32, with what rounding may do to them.
namespace dstrain::test {

/// A hyper-parameter, rounded to fp32.
[[nodiscard]] inline Bounded constant(double value) {
  return rounded(Bounded(at::full({1}, value, at::kDouble)));
}

[[nodiscard]] inline Bounded square_root(const Bounded& x) {
  const at::Tensor root = x.value.sqrt();
  // From both ends, as a state may still be zero.
  const at::Tensor up = x.reach().sqrt() - root,
                   down = root - (x.value - x.error).clamp_min(0).sqrt();
  return rounded({root, at::maximum(up, down)});
}

struct AdamBounds {
  Bounded master, average, square;

  /// Step t = 1, 2, ...: Kingma & Ba 2015, algorithm 1, with decoupled weight decay.
  void step(const Bounded& gradient, int t, double lr, double beta1, double beta2, double eps,
            double decay) {
    average = average + constant(1 - beta1) * (gradient - average);
    square = constant(beta2) * square + constant(1 - beta2) * gradient * gradient;
    const Bounded correction = constant(1) / square_root(constant(1 - std::pow(beta2, t)));
    const Bounded size = constant(lr) / constant(1 - std::pow(beta1, t));
    master = master * constant(1 - lr * decay) -
             size * average / (square_root(square) * correction + constant(eps));
  }
};

struct SgdBounds {
  Bounded master, momentum;

  void step(const Bounded& gradient, double lr, double beta, double decay, bool nesterov = false) {
    const Bounded decayed = gradient + constant(decay) * master;
    momentum = constant(beta) * momentum + decayed;
    master = master - constant(lr) * (nesterov ? decayed + constant(beta) * momentum : momentum);
  }
};

struct RmspropBounds {
  Bounded master, square, momentum;
  bool tensorflow = false;

  void step(const Bounded& gradient, double lr, double alpha, double beta, double eps,
            double decay) {
    const Bounded g = gradient + constant(decay) * master;
    square = constant(alpha) * square + constant(1 - alpha) * g * g;
    if (tensorflow) {
      momentum = constant(beta) * momentum + constant(lr) * g / square_root(square + constant(eps));
      master = master - momentum;
    } else {
      momentum = constant(beta) * momentum + g / (square_root(square) + constant(eps));
      master = master - constant(lr) * momentum;
    }
  }
};

struct LionBounds {
  Bounded master, average;

  void step(const Bounded& gradient, double lr, double beta1, double beta2, double decay) {
    const Bounded apart = gradient - average;
    const Bounded direction = average + constant(1 - beta1) * apart;
    average = average + constant(1 - beta2) * apart;
    // Where rounding may turn the sign, both are allowed.
    const at::Tensor open = direction.value.abs().le(direction.error).to(at::kDouble);
    const Bounded sign{direction.value.sign(), 2 * open};
    master = master * constant(1 - lr * decay) - constant(lr) * sign;
  }
};

}  // namespace dstrain::test
