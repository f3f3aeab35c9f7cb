#pragma once

#include <variant>

#include "engine/base/philox.h"
#include "engine/kernels/optimizer/control.h"
#include "engine/kernels/optimizer/fixed_order.h"

/// The update rules, each as the arithmetic of one element; free of ATen. Every operation stands in
/// a fixed order and is rounded once, so that results have equal bits on a GPU and on a CPU with
/// vectors of any width. The loops over elements are in optimizer.cu and optimizer_loops.h, the
/// definitions in double in test/kernels/reference, the rules' names and moments in
/// engine/recipe/optimizers.h.
///
/// A rule has
///   kMoments         the number of its moments;
///   element(control) the constants of a step in fp32, from StepControl;
///   kDirection       whether its copy is not the parameter, and so is written beside bf16
///                    states too;
///   Element::update<kRounded>(gradient, parameter, moments)
///                    one element; returns what goes to the copy. `gradient` is as accumulated,
///                    without control[kGradientFactor]. kRounded: the states are bf16 and rounded
///                    afterwards, so roots and quotients may be approximate, with equal bits too.
namespace dstrain::optimizer {

/// 1 - beta^t, of which Adam's bias correction is made; for finish_gradients.
DSTRAIN_HOST_DEVICE float bias_correction(double beta, float t) {
  return static_cast<float>(1 - fixed_order::power(beta, static_cast<std::uint64_t>(t)));
}

/// What weight decay leaves of a parameter in a step.
DSTRAIN_HOST_DEVICE float kept(double lr, double weight_decay) {
  return static_cast<float>(fixed_order::fma(-lr, weight_decay, 1.0));
}

/// AdamW (Loshchilov & Hutter 2019, arXiv:1711.05101, alg. 2) with bias correction; weight decay
/// decoupled and scaled by lr, as torch.optim.AdamW. Moments: exp_avg, exp_avg_sq.
struct AdamW {
  static constexpr int kMoments = 2;
  static constexpr bool kDirection = false;
  double lr = 0, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;

  struct Element {
    float factor, step, correction, rest1, beta2, rest2, keep, eps;

    template <bool kRounded>
    DSTRAIN_HOST_DEVICE float update(float gradient, float& parameter, float* moments) const {
      using fixed_order::fma, fixed_order::mul, fixed_order::near_root_quotient,
          fixed_order::one_nan, fixed_order::root_quotient, fixed_order::sub;
      const float g = mul(gradient, factor);
      const float average = fma(rest1, sub(g, moments[0]), moments[0]);
      const float square = fma(mul(rest2, g), g, mul(beta2, moments[1]));
      const float up = mul(step, average);
      float change;
      if constexpr (kRounded) {
        change = near_root_quotient(up, square, correction, eps);
      } else {
        change = root_quotient(up, square, correction, eps);
      }
      moments[0] = one_nan(average);
      moments[1] = one_nan(square);
      return parameter = one_nan(fma(parameter, keep, -change));
    }
  };
  [[nodiscard]] DSTRAIN_HOST_DEVICE Element element(const float* control) const {
    return {.factor = control[kGradientFactor],
            .step = fixed_order::div(static_cast<float>(lr), control[kCorrection1]),
            .correction = fixed_order::div(1.0f, fixed_order::sqrt(control[kCorrection2])),
            .rest1 = static_cast<float>(1 - beta1),
            .beta2 = static_cast<float>(beta2),
            .rest2 = static_cast<float>(1 - beta2),
            .keep = kept(lr, weight_decay),
            .eps = static_cast<float>(eps)};
  }
};

/// SGD with momentum as torch.optim.SGD (weight decay added to the gradient, dampening 0).
/// Moment: momentum_buffer.
struct Sgd {
  static constexpr int kMoments = 1;
  static constexpr bool kDirection = false;
  double lr = 0, momentum = 0.9, weight_decay = 0;
  bool nesterov = false;

  struct Element {
    float factor, lr, momentum, decay;
    bool nesterov;

    template <bool kRounded>
    DSTRAIN_HOST_DEVICE float update(float gradient, float& parameter, float* moments) const {
      using fixed_order::fma, fixed_order::mul, fixed_order::one_nan;
      const float g = fma(decay, parameter, mul(gradient, factor));
      const float average = fma(momentum, moments[0], g);
      moments[0] = one_nan(average);
      const float change = nesterov ? fma(momentum, average, g) : average;
      return parameter = one_nan(fma(-lr, change, parameter));
    }
  };
  [[nodiscard]] DSTRAIN_HOST_DEVICE Element element(const float* control) const {
    return {.factor = control[kGradientFactor],
            .lr = static_cast<float>(lr),
            .momentum = static_cast<float>(momentum),
            .decay = static_cast<float>(weight_decay),
            .nesterov = nesterov};
  }
};

/// RMSprop (Hinton 2012, lecture 6e of "Neural Networks for Machine Learning") with momentum as
/// torch.optim.RMSprop, not centered: weight decay added to the gradient. Moments: square_avg,
/// momentum_buffer.
struct Rmsprop {
  static constexpr int kMoments = 2;
  static constexpr bool kDirection = false;
  double lr = 0, alpha = 0.99, momentum = 0.9, eps = 1e-8, weight_decay = 0;

  struct Element {
    float factor, lr, alpha, rest, momentum, eps, decay;

    template <bool kRounded>
    DSTRAIN_HOST_DEVICE float update(float gradient, float& parameter, float* moments) const {
      using fixed_order::fma, fixed_order::mul, fixed_order::near_root_quotient,
          fixed_order::one_nan, fixed_order::root_quotient;
      const float g = fma(decay, parameter, mul(gradient, factor));
      const float square = fma(mul(rest, g), g, mul(alpha, moments[0]));
      float change;
      if constexpr (kRounded) {
        change = near_root_quotient(g, square, 1.0f, eps);
      } else {
        change = root_quotient(g, square, 1.0f, eps);
      }
      const float average = fma(momentum, moments[1], change);
      moments[0] = one_nan(square);
      moments[1] = one_nan(average);
      return parameter = one_nan(fma(-lr, average, parameter));
    }
  };
  [[nodiscard]] DSTRAIN_HOST_DEVICE Element element(const float* control) const {
    return {.factor = control[kGradientFactor],
            .lr = static_cast<float>(lr),
            .alpha = static_cast<float>(alpha),
            .rest = static_cast<float>(1 - alpha),
            .momentum = static_cast<float>(momentum),
            .eps = static_cast<float>(eps),
            .decay = static_cast<float>(weight_decay)};
  }
};

/// RMSprop as TensorFlow has it: eps stands under the root, lr enters the momentum, and square_avg
/// starts at 1 (kFirstSquare). As timm.optim.RMSpropTF. Moments: square_avg, momentum_buffer.
struct RmspropTensorflow {
  static constexpr int kMoments = 2;
  static constexpr bool kDirection = false;
  static constexpr double kFirstSquare = 1;
  double lr = 0, alpha = 0.9, momentum = 0.9, eps = 1e-8, weight_decay = 0;

  struct Element {
    float factor, lr, alpha, rest, momentum, eps, decay;

    template <bool kRounded>
    DSTRAIN_HOST_DEVICE float update(float gradient, float& parameter, float* moments) const {
      using fixed_order::add, fixed_order::fma, fixed_order::mul, fixed_order::near_root_quotient,
          fixed_order::one_nan, fixed_order::root_quotient, fixed_order::sub;
      const float g = fma(decay, parameter, mul(gradient, factor));
      const float square = fma(mul(rest, g), g, mul(alpha, moments[0]));
      const float up = mul(lr, g), under = add(square, eps);
      float change;
      if constexpr (kRounded) {
        change = near_root_quotient(up, under, 1.0f, 0.0f);
      } else {
        change = root_quotient(up, under, 1.0f, 0.0f);
      }
      const float average = fma(momentum, moments[1], change);
      moments[0] = one_nan(square);
      moments[1] = one_nan(average);
      return parameter = one_nan(sub(parameter, average));
    }
  };
  [[nodiscard]] DSTRAIN_HOST_DEVICE Element element(const float* control) const {
    return {.factor = control[kGradientFactor],
            .lr = static_cast<float>(lr),
            .alpha = static_cast<float>(alpha),
            .rest = static_cast<float>(1 - alpha),
            .momentum = static_cast<float>(momentum),
            .eps = static_cast<float>(eps),
            .decay = static_cast<float>(weight_decay)};
  }
};

/// Lion (Chen et al. 2023, arXiv:2302.06675, alg. 2): the sign of an average of gradients; weight
/// decay decoupled and scaled by lr. Moment: exp_avg.
struct Lion {
  static constexpr int kMoments = 1;
  static constexpr bool kDirection = false;
  double lr = 0, beta1 = 0.9, beta2 = 0.99, weight_decay = 0;

  struct Element {
    float factor, lr, rest1, rest2, keep;

    template <bool kRounded>
    DSTRAIN_HOST_DEVICE float update(float gradient, float& parameter, float* moments) const {
      using fixed_order::fma, fixed_order::mul, fixed_order::one_nan, fixed_order::sub;
      const float apart = sub(mul(gradient, factor), moments[0]);
      const float average = fma(rest1, apart, moments[0]);
      const float change = average > 0 ? lr : average < 0 ? -lr : 0.0f;
      moments[0] = one_nan(fma(rest2, apart, moments[0]));
      return parameter = one_nan(fma(parameter, keep, -change));
    }
  };
  [[nodiscard]] DSTRAIN_HOST_DEVICE Element element(const float* control) const {
    return {.factor = control[kGradientFactor],
            .lr = static_cast<float>(lr),
            .rest1 = static_cast<float>(1 - beta1),
            .rest2 = static_cast<float>(1 - beta2),
            .keep = kept(lr, weight_decay)};
  }
};

/// First part of Muon, on the momentum buffer in the place of the parameter: the average of
/// gradients, and as the copy the direction that is orthogonalised then. As
/// torch.optim.Muon.
struct MuonMomentum {
  static constexpr int kMoments = 0;
  static constexpr bool kDirection = true;
  double momentum = 0.95;
  bool nesterov = true;

  struct Element {
    float factor, rest;
    bool nesterov;

    template <bool kRounded>
    DSTRAIN_HOST_DEVICE float update(float gradient, float& buffer, float*) const {
      using fixed_order::fma, fixed_order::mul, fixed_order::one_nan, fixed_order::sub;
      const float g = mul(gradient, factor);
      buffer = one_nan(fma(rest, sub(g, buffer), buffer));
      return nesterov ? one_nan(fma(rest, sub(g, buffer), buffer)) : buffer;
    }
  };
  [[nodiscard]] DSTRAIN_HOST_DEVICE Element element(const float* control) const {
    return {.factor = control[kGradientFactor],
            .rest = static_cast<float>(1 - momentum),
            .nesterov = nesterov};
  }
};

/// Last part of Muon: the step along the orthogonalised direction, which stands in the place of the
/// gradient. `step` is the matrix's learning rate, `shrink` the share that weight decay takes off.
struct MuonStep {
  static constexpr int kMoments = 0;
  static constexpr bool kDirection = false;
  double step = 0, shrink = 0;

  struct Element {
    float step, keep;

    template <bool kRounded>
    DSTRAIN_HOST_DEVICE float update(float direction, float& parameter, float*) const {
      using fixed_order::fma, fixed_order::mul, fixed_order::one_nan;
      return parameter = one_nan(fma(parameter, keep, -mul(step, direction)));
    }
  };
  [[nodiscard]] DSTRAIN_HOST_DEVICE Element element(const float*) const {
    return {.step = static_cast<float>(step), .keep = static_cast<float>(1 - shrink)};
  }
};

/// Exponential average of weights (Polyak & Juditsky 1992 with a constant share): the average
/// stands in the place of the parameter, the weights in that of the gradient.
struct Average {
  static constexpr int kMoments = 0;
  static constexpr bool kDirection = false;
  double share = 0;  ///< of the weights in their new average

  struct Element {
    float share;

    template <bool kRounded>
    DSTRAIN_HOST_DEVICE float update(float weight, float& average, float*) const {
      using fixed_order::fma, fixed_order::one_nan, fixed_order::sub;
      return average = one_nan(fma(share, sub(weight, average), average));
    }
  };
  [[nodiscard]] DSTRAIN_HOST_DEVICE Element element(const float*) const {
    return {.share = static_cast<float>(share)};
  }
};

using Rule =
    std::variant<AdamW, Sgd, Lion, MuonMomentum, MuonStep, Rmsprop, RmspropTensorflow, Average>;

[[nodiscard]] inline int num_moments(const Rule& rule) {
  return std::visit([](const auto& one) { return one.kMoments; }, rule);
}

/// Whether the rule writes a direction beside its state.
[[nodiscard]] inline bool is_direction(const Rule& rule) {
  return std::visit([](const auto& one) { return one.kDirection; }, rule);
}

}  // namespace dstrain::optimizer
