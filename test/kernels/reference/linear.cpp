#include <c10/util/Float8_e4m3fn.h>
#include <c10/util/Float8_e5m2.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "engine/base/index.h"
#include "engine/kernels/host_view.h"
#include "test/kernels/reference/reference.h"

/// The kernels around matrix products as their definitions read, in double.
namespace dstrain::kernels::reference {
namespace {

constexpr double kPi = 3.14159265358979323846;

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

struct ValueAndSlope {
  double value, slope;
};

ValueAndSlope gelu(double x, Gelu kind) {
  if (kind == Gelu::erf) {
    const double cdf = 0.5 * std::erfc(-x / std::sqrt(2.0));
    return {x * cdf, cdf + x * std::exp(-0.5 * x * x) / std::sqrt(2 * kPi)};
  }
  if (kind == Gelu::quick) {
    constexpr double kQuick = 1.702;
    const double s = sigmoid(kQuick * x);
    return {x * s, s + kQuick * x * s * (1 - s)};
  }
  const double factor = std::sqrt(2 / kPi);
  const double t = std::tanh(factor * (x + 0.044715 * x * x * x));
  return {0.5 * x * (1 + t),
          0.5 * (1 + t) + 0.5 * x * (1 - t * t) * factor * (1 + 3 * 0.044715 * x * x)};
}

ValueAndSlope activated(double x, GateActivation gate) {
  if (gate == GateActivation::gelu) return gelu(x, Gelu::tanh);
  const double s = sigmoid(x);
  return {x * s, s * (1 + x * (1 - s))};
}

}  // namespace

void few_rows(const FewRows& a) {
  const View x(a.x, a.dtype), weight(a.weight, a.dtype), out(a.out, a.dtype);
  for (std::int64_t row = 0; row < a.rows; ++row) {
    for (std::int64_t output = 0; output < a.outputs; ++output) {
      double sum = 0;
      for (std::int64_t i = 0; i < a.depth; ++i)
        sum += x.at(row * a.x_stride + i) * weight.at(output * a.weight_stride + i);
      sum *= static_cast<double>(a.alpha);
      if (a.bias != nullptr) sum += View(a.bias, a.dtype).at(output);
      out.set(row * a.out_stride + output, sum);
    }
  }
}

void bias_gelu(const BiasGelu& a) {
  const View z(a.z, a.dtype), bias(a.bias, a.dtype), y(a.y, a.dtype);
  for (std::int64_t i = 0; i < a.rows * a.cols; ++i)
    y.set(i, gelu(z.at(i) + bias.at(i % a.cols), a.kind).value);
}

void column_scale(const ColumnScale& a) {
  const View x(a.x, a.dtype), scale(a.scale, a.dtype), y(a.y, a.dtype);
  for (std::int64_t i = 0; i < a.rows * a.cols; ++i) y.set(i, x.at(i) * scale.at(i % a.cols));
}

void column_scale_backward(const ColumnScaleBackward& a) {
  const View x(a.x, a.dtype), scale(a.scale, a.dtype), grad_y(a.grad_y, a.dtype),
      grad_x(a.grad_x, a.dtype);
  for (std::int64_t column = 0; column < a.cols; ++column) {
    double sum = 0;
    for (std::int64_t row = 0; row < a.rows; ++row) {
      const std::int64_t i = row * a.cols + column;
      const double grad = grad_y.at(i);
      sum += grad * x.at(i);
      grad_x.set(i, grad * scale.at(column));
    }
    add_to(a.grad_scale[column], sum);
  }
}

void bias_gelu_backward(const BiasGeluBackward& a) {
  const View z(a.z, a.dtype), bias(a.bias, a.dtype), grad_y(a.grad_y, a.dtype),
      grad_z(a.grad_z, a.dtype);
  for (std::int64_t column = 0; column < a.cols; ++column) {
    double sum = 0;
    for (std::int64_t row = 0; row < a.rows; ++row) {
      const std::int64_t i = row * a.cols + column;
      const ValueAndSlope own = gelu(z.at(i) + bias.at(column), a.kind);
      const double grad = grad_y.at(i) * own.slope;
      grad_z.set(i, grad);
      if (a.y != nullptr) View(a.y, a.dtype).set(i, own.value);
      sum += grad;
    }
    if (a.grad_bias != nullptr) add_to(a.grad_bias[column], sum);
  }
}

void column_sum(const ColumnSum& a) {
  const View x(a.x, a.dtype);
  for (std::int64_t column = 0; column < a.cols; ++column) {
    double sum = 0;
    for (std::int64_t row = 0; row < a.rows; ++row) sum += x.at(row * a.cols + column);
    add_to(a.sum[column], sum);
  }
}

void partial_sums(const PartialSums& a) {
  column_sum({.x = a.partial,
              .sum = a.sum,
              .partial = nullptr,
              .rows = a.rows,
              .cols = a.cols,
              .dtype = DType::f32});
}

void swiglu(const Swiglu& a) {
  const View gate_up(a.gate_up, a.dtype), h(a.h, a.dtype);
  for (std::int64_t row = 0; row < a.rows; ++row) {
    for (std::int64_t i = 0; i < a.cols; ++i) {
      const std::int64_t gate = row * 2 * a.cols + i;
      h.set(row * a.cols + i,
            activated(gate_up.at(gate), a.gate).value * gate_up.at(gate + a.cols));
    }
  }
  if (a.partial == nullptr) return;
  abs_max({.x = a.h, .partial = a.partial, .count = a.rows * a.cols, .dtype = a.dtype});
  if (a.gains == nullptr) return;
  std::fill_n(a.gains, kAbsMaxPartials, 0.0f);
  for (std::int64_t i = 0; i < 2 * a.rows * a.cols; ++i) {
    const double x = gate_up.at(i);
    const bool is_up = i % (2 * a.cols) >= a.cols;
    const double gain =
        is_up ? gate_slope(a.gate) * std::fabs(x) : std::fabs(activated(x, a.gate).value);
    a.gains[0] = std::fmax(a.gains[0], static_cast<float>(gain));
  }
}

void swiglu_backward(const SwigluBackward& a) {
  const View gate_up(a.gate_up, a.dtype), grad_h(a.grad_h, a.dtype),
      grad_gate_up(a.grad_gate_up, a.dtype), h(a.h, a.dtype);
  for (std::int64_t row = 0; row < a.rows; ++row) {
    for (std::int64_t i = 0; i < a.cols; ++i) {
      const std::int64_t gate = row * 2 * a.cols + i;
      const ValueAndSlope s = activated(gate_up.at(gate), a.gate);
      const double up = gate_up.at(gate + a.cols), grad = grad_h.at(row * a.cols + i);
      grad_gate_up.set(gate, grad * up * s.slope);
      grad_gate_up.set(gate + a.cols, grad * s.value);
      if (h) h.set(row * a.cols + i, s.value * up);
    }
  }
}

namespace {

/// What SwigluBackward gives, as tensors of a.dtype.
template <typename Args>
struct GradientsOf {
  explicit GradientsOf(const Args& a)
      : gate_up(to_index(a.rows * a.cols * 2) * kMaxBytes),
        h(to_index(a.rows * a.cols) * kMaxBytes) {
    swiglu_backward({.gate_up = a.gate_up,
                     .grad_h = a.grad_h,
                     .grad_gate_up = gate_up.data(),
                     .h = h.data(),
                     .rows = a.rows,
                     .cols = a.cols,
                     .dtype = a.dtype,
                     .gate = a.gate});
  }
  static constexpr std::size_t kMaxBytes = sizeof(float);
  std::vector<std::byte> gate_up, h;
};

}  // namespace

void swiglu_codes(const SwigluCodes& a) {
  const GradientsOf gradients(a);
  float bounds[kAbsMaxPartials] = {};
  bounds[0] = *std::max_element(a.maxima, a.maxima + kAbsMaxPartials) *
              *std::max_element(a.gains, a.gains + kAbsMaxPartials);
  quantize({.x = gradients.gate_up.data(),
            .out = a.out,
            .out_t = a.out_t,
            .partial = bounds,
            .scale = a.scale,
            .rows = a.rows,
            .cols = 2 * a.cols,
            .format = Fp8Format::e5m2,
            .dtype = a.dtype});
  if (a.h_t == nullptr) return;
  float h_scale = *a.h_scale;
  quantize({.x = gradients.h.data(),
            .out = nullptr,
            .out_t = a.h_t,
            .partial = nullptr,
            .scale = &h_scale,
            .rows = a.rows,
            .cols = a.cols,
            .format = Fp8Format::e4m3,
            .dtype = a.dtype});
}

void abs_max(const AbsMax& a) {
  const View x(a.x, a.dtype);
  std::fill_n(a.partial, kAbsMaxPartials, 0.0f);
  for (std::int64_t i = 0; i < a.count; ++i)
    a.partial[0] = std::fmax(a.partial[0], static_cast<float>(std::fabs(x.at(i))));
}

void quantize(const Quantize& a) {
  const View x(a.x, a.dtype);
  const bool values = a.format == Fp8Format::e4m3;
  const float largest = largest_code(a.format);
  if (a.partial != nullptr)
    *a.scale = code_scale(a.format, *std::max_element(a.partial, a.partial + kAbsMaxPartials));
  const float factor = 1.0f / *a.scale;
  for (std::int64_t i = 0; i < a.rows * a.cols; ++i) {
    float scaled = static_cast<float>(x.at(i)) * factor;
    if (std::fabs(scaled) > largest) scaled = std::copysign(largest, scaled);
    const std::uint8_t code = values ? c10::Float8_e4m3fn(scaled).x : c10::Float8_e5m2(scaled).x;
    if (a.out != nullptr) a.out[i] = code;
    if (a.out_t != nullptr) a.out_t[(i % a.cols) * a.rows + i / a.cols] = code;
  }
  for (std::int64_t part = 0; a.sums != nullptr && part < quantize_partials(a.rows); ++part) {
    for (std::int64_t column = 0; column < a.cols; ++column) {
      const std::int64_t end = std::min(a.rows, (part + 1) * kQuantizeRows);
      double sum = 0;
      for (std::int64_t row = part * kQuantizeRows; row < end; ++row)
        sum += x.at(row * a.cols + column);
      a.sums[part * a.cols + column] = static_cast<float>(sum);
    }
  }
}

void vocab_loss(const VocabLoss& a) {
  const View logits(a.logits, a.dtype);
  for (std::int64_t row = 0; row < a.rows; ++row) {
    const auto weight = static_cast<double>(a.weights[row]);
    const std::int64_t first = row * a.stride, label = a.labels[row];
    a.loss[row] = a.top1[row] = 0;
    if (weight == 0) {
      for (std::int64_t i = 0; i < a.classes && a.grad_loss != nullptr; ++i)
        logits.set(first + i, 0);
      continue;
    }
    const bool known = label >= 0 && label < a.classes;
    const double own = known ? logits.at(first + label) : std::numeric_limits<double>::quiet_NaN();
    double max = -std::numeric_limits<double>::infinity(), sum = 0;
    bool beaten = false;
    for (std::int64_t i = 0; i < a.classes; ++i) {
      const double x = logits.at(first + i);
      max = std::fmax(max, x);
      beaten = beaten || x > own || (x == own && i < label);
    }
    for (std::int64_t i = 0; i < a.classes; ++i) sum += std::exp(logits.at(first + i) - max);
    const double loss = max + std::log(sum) - own;
    a.loss[row] = static_cast<float>(weight * loss);
    a.top1[row] = std::isfinite(loss) && !beaten ? a.weights[row] : 0;
    if (a.grad_loss == nullptr) continue;
    const double factor = weight * static_cast<double>(*a.grad_loss);
    for (std::int64_t i = 0; i < a.classes; ++i) {
      const double softmax = std::exp(logits.at(first + i) - max) / sum;
      logits.set(first + i, factor * (softmax - (i == label ? 1 : 0)));
    }
  }
}

void likely_class(const LikelyClass& a) {
  const View logits(a.logits, a.dtype);
  for (std::int64_t row = 0; row < a.rows; ++row) {
    const std::int64_t first = row * a.classes;
    std::int64_t best = 0;
    for (std::int64_t i = 1; i < a.classes; ++i)
      if (logits.at(first + i) > logits.at(first + best)) best = i;
    double sum = 0;
    for (std::int64_t i = 0; i < a.classes; ++i)
      sum += std::exp(logits.at(first + i) - logits.at(first + best));
    a.best[row] = best;
    a.logarithm[row] = static_cast<float>(-std::log(sum));
  }
}

void vocab_totals(const VocabTotals& a) {
  double sums[3] = {};
  for (std::int64_t row = 0; row < a.rows; ++row) {
    sums[0] += static_cast<double>(a.loss[row]);
    sums[1] += static_cast<double>(a.top1[row]);
    sums[2] += static_cast<double>(a.weights[row]);
  }
  if (a.loss_sum != nullptr) *a.loss_sum = static_cast<float>(sums[0]);
  add_to(a.totals[0], sums[0]);
  add_to(a.totals[1], sums[1]);
  add_to(a.totals[3], sums[2]);
}

}  // namespace dstrain::kernels::reference
