#pragma once

#include <cmath>
#include <variant>

#include "engine/base/philox.h"
#include "engine/kernels/optimizer/control.h"

/// The update rules, each as the arithmetic of one element; free of ATen, the same on host and GPU.
/// The loops over elements are in optimizer.cu and optimizer_cpu.cpp, the definitions in double in
/// reference_optimizer.cpp, the rules' names and moments in recipes/schema/optimizers.h.
///
/// A rule has
///   kMoments         the number of its moments;
///   kPowers          whether `element` is so costly that a GPU computes it once per block;
///   element(control) the constants of a step in fp32, from StepControl;
///   kDirection       whether its copy is not the parameter, and so is written beside bf16
///                    states too;
///   Element::update<kRounded>(gradient, parameter, moments)
///                    one element; returns what goes to the copy. `gradient` is as accumulated,
///                    without control[kGradientFactor]. kRounded: the states are bf16 and rounded
///                    afterwards, so on a GPU roots and quotients may be approximate.
namespace dstrain::optimizer {

/// AdamW (Loshchilov & Hutter 2019, arXiv:1711.05101, alg. 2) with bias correction; weight decay
/// decoupled and scaled by lr, as torch.optim.AdamW. Moments: exp_avg, exp_avg_sq.
struct AdamW {
  static constexpr int kMoments = 2;
  static constexpr bool kPowers = true, kDirection = false;
  double lr = 0, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;

  struct Element {
    float factor, step_size, rsqrt_correction, rest1, beta2, rest2, keep, eps;

    template <bool kRounded>
    DSTRAIN_HOST_DEVICE float update(float gradient, float& parameter, float* moments) const {
      const float g = gradient * factor;
      float average = moments[0], square = moments[1];
      average += rest1 * (g - average);
      square = beta2 * square + rest2 * g * g;
#ifdef __CUDA_ARCH__
      if constexpr (kRounded) {
        // Exact root and quotient would make arithmetic the limit, for bits that rounding cuts off.
        const float root = square > 0 ? square * rsqrtf(square) : 0.0f;
        parameter =
            parameter * keep - __fdividef(step_size * average, root * rsqrt_correction + eps);
      } else {
        parameter =
            parameter * keep - step_size * average / (sqrtf(square) * rsqrt_correction + eps);
      }
#else
      parameter =
          parameter * keep - step_size * average / (std::sqrt(square) * rsqrt_correction + eps);
#endif
      moments[0] = average;
      moments[1] = square;
      return parameter;
    }
  };
  [[nodiscard]] DSTRAIN_HOST_DEVICE Element element(const float* control) const {
    const double t = static_cast<double>(control[kAppliedSteps]);
    return {.factor = control[kGradientFactor],
            .step_size = static_cast<float>(lr / (1 - pow(beta1, t))),
            .rsqrt_correction = static_cast<float>(1 / sqrt(1 - pow(beta2, t))),
            .rest1 = static_cast<float>(1 - beta1),
            .beta2 = static_cast<float>(beta2),
            .rest2 = static_cast<float>(1 - beta2),
            .keep = static_cast<float>(1 - lr * weight_decay),
            .eps = static_cast<float>(eps)};
  }
};

/// SGD with momentum as torch.optim.SGD (weight decay added to the gradient, dampening 0, no
/// Nesterov). Moment: momentum_buffer.
struct Sgd {
  static constexpr int kMoments = 1;
  static constexpr bool kPowers = false, kDirection = false;
  double lr = 0, momentum = 0.9, weight_decay = 0;

  struct Element {
    float factor, lr, momentum, decay;

    template <bool kRounded>
    DSTRAIN_HOST_DEVICE float update(float gradient, float& parameter, float* moments) const {
      moments[0] = momentum * moments[0] + (gradient * factor + decay * parameter);
      parameter -= lr * moments[0];
      return parameter;
    }
  };
  [[nodiscard]] DSTRAIN_HOST_DEVICE Element element(const float* control) const {
    return {.factor = control[kGradientFactor],
            .lr = static_cast<float>(lr),
            .momentum = static_cast<float>(momentum),
            .decay = static_cast<float>(weight_decay)};
  }
};

/// Lion (Chen et al. 2023, arXiv:2302.06675, alg. 2): the sign of an average of gradients; weight
/// decay decoupled and scaled by lr. Moment: exp_avg.
struct Lion {
  static constexpr int kMoments = 1;
  static constexpr bool kPowers = false, kDirection = false;
  double lr = 0, beta1 = 0.9, beta2 = 0.99, weight_decay = 0;

  struct Element {
    float factor, lr, rest1, rest2, keep;

    template <bool kRounded>
    DSTRAIN_HOST_DEVICE float update(float gradient, float& parameter, float* moments) const {
      const float apart = gradient * factor - moments[0];
      const float average = moments[0] + rest1 * apart;
      const float sign = static_cast<float>(average > 0) - static_cast<float>(average < 0);
      moments[0] += rest2 * apart;
      parameter = parameter * keep - lr * sign;
      return parameter;
    }
  };
  [[nodiscard]] DSTRAIN_HOST_DEVICE Element element(const float* control) const {
    return {.factor = control[kGradientFactor],
            .lr = static_cast<float>(lr),
            .rest1 = static_cast<float>(1 - beta1),
            .rest2 = static_cast<float>(1 - beta2),
            .keep = static_cast<float>(1 - lr * weight_decay)};
  }
};

/// First part of Muon, on the momentum buffer in the place of the parameter: the average of
/// gradients, and as the copy the direction that is orthogonalised then. As
/// torch.optim.Muon.
struct MuonMomentum {
  static constexpr int kMoments = 0;
  static constexpr bool kPowers = false, kDirection = true;
  double momentum = 0.95;
  bool nesterov = true;

  struct Element {
    float factor, rest;
    bool nesterov;

    template <bool kRounded>
    DSTRAIN_HOST_DEVICE float update(float gradient, float& buffer, float*) const {
      const float g = gradient * factor;
      buffer += rest * (g - buffer);
      return nesterov ? buffer - rest * (buffer - g) : buffer;
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
  static constexpr bool kPowers = false, kDirection = false;
  double step = 0, shrink = 0;

  struct Element {
    float step, keep;

    template <bool kRounded>
    DSTRAIN_HOST_DEVICE float update(float direction, float& parameter, float*) const {
      parameter = parameter * keep - step * direction;
      return parameter;
    }
  };
  [[nodiscard]] DSTRAIN_HOST_DEVICE Element element(const float*) const {
    return {.step = static_cast<float>(step), .keep = static_cast<float>(1 - shrink)};
  }
};

using Rule = std::variant<AdamW, Sgd, Lion, MuonMomentum, MuonStep>;

[[nodiscard]] inline int num_moments(const Rule& rule) {
  return std::visit([](const auto& one) { return one.kMoments; }, rule);
}

/// Whether the rule writes a direction beside its state.
[[nodiscard]] inline bool is_direction(const Rule& rule) {
  return std::visit([](const auto& one) { return one.kDirection; }, rule);
}

}  // namespace dstrain::optimizer
