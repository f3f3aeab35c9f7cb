#include <algorithm>
#include <cmath>
#include <vector>

#include "test/kernels/reference/image_activation.h"
#include "engine/kernels/host_view.h"
#include "test/kernels/reference/reference.h"

/// Gates of squeeze and excitation as their definition reads, in double.
namespace dstrain::kernels::reference {
namespace {

double opened(GateRule rule, double z) {
  return rule == GateRule::sigmoid ? 1 / (1 + std::exp(-z)) : std::clamp(z + 3, 0.0, 6.0) / 6;
}

double opening_slope(GateRule rule, double gate) {
  if (rule == GateRule::sigmoid) return gate * (1 - gate);
  return gate > 0 && gate < 1 ? 1.0 / 6 : 0;
}

double wide(float x) { return static_cast<double>(x); }

}  // namespace

void excite(const Excite& a) {
  const View mean(a.mean, a.dtype), reduce(a.reduce, a.dtype), reduce_bias(a.reduce_bias, a.dtype),
      expand(a.expand, a.dtype), expand_bias(a.expand_bias, a.dtype);
  for (std::int64_t s = 0; s < a.samples; ++s) {
    for (std::int64_t r = 0; r < a.squeezed; ++r) {
      double sum = reduce_bias.at(r);
      for (std::int64_t c = 0; c < a.channels; ++c)
        sum += reduce.at(r * a.channels + c) * mean.at(s * a.channels + c);
      a.hidden[s * a.squeezed + r] = static_cast<float>(sum);
    }
    for (std::int64_t c = 0; c < a.channels; ++c) {
      double z = expand_bias.at(c);
      for (std::int64_t r = 0; r < a.squeezed; ++r) {
        z += expand.at(c * a.squeezed + r) *
             activated(wide(a.hidden[s * a.squeezed + r]), a.activation);
      }
      a.gate[s * a.channels + c] = static_cast<float>(opened(a.rule, z));
    }
  }
}

void excite_backward(const ExciteBackward& a) {
  const View reduce(a.reduce, a.dtype), expand(a.expand, a.dtype);
  for (std::int64_t s = 0; s < a.samples; ++s) {
    for (std::int64_t c = 0; c < a.channels; ++c) {
      const std::int64_t at = s * a.channels + c;
      a.grad_z[at] =
          static_cast<float>(wide(a.grad_gate[at]) * opening_slope(a.rule, wide(a.gate[at])));
    }
    for (std::int64_t r = 0; r < a.squeezed; ++r) {
      double sum = 0;
      for (std::int64_t c = 0; c < a.channels; ++c)
        sum += expand.at(c * a.squeezed + r) * wide(a.grad_z[s * a.channels + c]);
      const std::int64_t at = s * a.squeezed + r;
      a.grad_hidden[at] =
          static_cast<float>(sum * activation_slope(wide(a.hidden[at]), a.activation));
    }
    for (std::int64_t c = 0; c < a.channels; ++c) {
      double sum = 0;
      for (std::int64_t r = 0; r < a.squeezed; ++r)
        sum += reduce.at(r * a.channels + c) * wide(a.grad_hidden[s * a.squeezed + r]);
      a.grad_mean[s * a.channels + c] = static_cast<float>(sum);
    }
  }
}

void excite_parameters(const ExciteParameters& a) {
  const View mean(a.mean, a.dtype);
  for (std::int64_t r = 0; r < a.squeezed; ++r) {
    double bias = 0;
    for (std::int64_t s = 0; s < a.samples; ++s) bias += wide(a.grad_hidden[s * a.squeezed + r]);
    if (a.grad_reduce_bias != nullptr) add_to(a.grad_reduce_bias[r], bias);
  }
  for (std::int64_t c = 0; c < a.channels; ++c) {
    double bias = 0;
    for (std::int64_t s = 0; s < a.samples; ++s) bias += wide(a.grad_z[s * a.channels + c]);
    if (a.grad_expand_bias != nullptr) add_to(a.grad_expand_bias[c], bias);
    for (std::int64_t r = 0; r < a.squeezed; ++r) {
      double reduce = 0, expand = 0;
      for (std::int64_t s = 0; s < a.samples; ++s) {
        reduce += wide(a.grad_hidden[s * a.squeezed + r]) * mean.at(s * a.channels + c);
        expand += wide(a.grad_z[s * a.channels + c]) *
                  activated(wide(a.hidden[s * a.squeezed + r]), a.activation);
      }
      const auto put = [](float* gradient, std::int64_t i, double value, bool write) {
        if (gradient == nullptr) return;
        if (write) gradient[i] = 0;
        add_to(gradient[i], value);
      };
      put(a.grad_reduce, r * a.channels + c, reduce, a.write_reduce);
      put(a.grad_expand, c * a.squeezed + r, expand, a.write_expand);
    }
  }
}

}  // namespace dstrain::kernels::reference
