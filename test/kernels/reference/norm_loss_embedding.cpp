#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "engine/kernels/host_view.h"
#include "test/kernels/reference/norm_maxima.h"
#include "test/kernels/reference/reference.h"

/// The operators' kernels as their definitions read, in double.
namespace dstrain::kernels::reference {

void add_layer_norm(const AddLayerNorm& a) {
  const View x(a.x, a.dtype), delta(a.delta, a.dtype), sum(delta ? a.sum : a.x, a.dtype),
      y(a.y, a.dtype);
  const View weight(a.weight, a.dtype), bias(a.bias, a.dtype);
  const auto n = static_cast<double>(a.dim);
  for (std::int64_t row = 0; row < a.rows; ++row) {
    const std::int64_t first = row * a.dim;
    double mean = 0, variance = 0;
    for (std::int64_t i = 0; i < a.dim; ++i) {
      if (delta) sum.set(first + i, x.at(first + i) + delta.at(first + i));
      mean += sum.at(first + i) / n;
    }
    for (std::int64_t i = 0; i < a.dim; ++i) variance += std::pow(sum.at(first + i) - mean, 2) / n;
    const double rstd = 1 / std::sqrt(variance + static_cast<double>(a.eps));
    for (std::int64_t i = 0; i < a.dim; ++i) {
      y.set(first + i, (sum.at(first + i) - mean) * rstd * weight.at(i) + bias.at(i));
    }
    a.mean[row] = static_cast<float>(mean);
    a.rstd[row] = static_cast<float>(rstd);
  }
  largest_of_parts(y, a);
}

void add_layer_norm_backward(const AddLayerNormBackward& a) {
  const View sum(a.sum, a.dtype), weight(a.weight, a.dtype), grad_y(a.grad_y, a.dtype),
      past(a.grad_sum, a.dtype);
  const View grad_x(a.grad_x, a.dtype);
  const auto n = static_cast<double>(a.dim);
  std::vector<double> grad_weight(static_cast<std::size_t>(a.dim)),
      grad_bias(static_cast<std::size_t>(a.dim));
  for (std::int64_t row = 0; row < a.rows; ++row) {
    const std::int64_t first = row * a.dim;
    const auto x_hat = [&](std::int64_t i) {
      return (sum.at(first + i) - static_cast<double>(a.mean[row])) *
             static_cast<double>(a.rstd[row]);
    };
    double mean_grad = 0, mean_grad_x = 0;
    for (std::int64_t i = 0; i < a.dim; ++i) {
      const double grad = grad_y.at(first + i);
      grad_weight[static_cast<std::size_t>(i)] += grad * x_hat(i);
      grad_bias[static_cast<std::size_t>(i)] += grad;
      mean_grad += grad * weight.at(i) / n;
      mean_grad_x += grad * weight.at(i) * x_hat(i) / n;
    }
    for (std::int64_t i = 0; i < a.dim; ++i) {
      const double through =
          grad_y.at(first + i) * weight.at(i) - mean_grad - x_hat(i) * mean_grad_x;
      grad_x.set(first + i,
                 static_cast<double>(a.rstd[row]) * through + (past ? past.at(first + i) : 0));
    }
  }
  largest_of_gradient(a);
  if (a.grad_x_sums != nullptr) {  // all rows are one part
    std::fill_n(a.grad_x_sums, norm_partials(a.rows) * a.dim, 0.0f);
    for (std::int64_t i = 0; i < a.dim; ++i) {
      double column = 0;
      for (std::int64_t row = 0; row < a.rows; ++row) column += grad_x.at(row * a.dim + i);
      a.grad_x_sums[i] = static_cast<float>(column);
    }
  }
  if (a.grad_weight == nullptr) return;
  for (std::int64_t i = 0; i < a.dim; ++i) {
    add_to(a.grad_weight[i], grad_weight[static_cast<std::size_t>(i)]);
    add_to(a.grad_bias[i], grad_bias[static_cast<std::size_t>(i)]);
  }
}

void patchify(const Patchify& a) {
  const View images(a.images, a.dtype), patches(a.patches, a.dtype);
  std::int64_t out = 0;
  for (std::int64_t image = 0; image < a.batch; ++image) {
    for (std::int64_t top = 0; top < a.height; top += a.patch) {
      for (std::int64_t left = 0; left < a.width; left += a.patch) {
        for (std::int64_t channel = 0; channel < a.channels; ++channel) {
          for (std::int64_t y = top; y < top + a.patch; ++y) {
            for (std::int64_t x = left; x < left + a.patch; ++x) {
              patches.set(out++,
                          images.at(((image * a.channels + channel) * a.height + y) * a.width + x));
            }
          }
        }
      }
    }
  }
}

void embed_sequence(const EmbedSequence& a) {
  const View patches(a.patches, a.dtype), token(a.first_tokens, a.dtype),
      positions(a.positions, a.dtype);
  const View out(a.out, a.dtype);
  for (std::int64_t image = 0; image < a.batch; ++image) {
    for (std::int64_t t = 0; t < a.tokens; ++t) {
      for (std::int64_t i = 0; i < a.dim; ++i) {
        const double own =
            t < a.first ? token.at(t * a.dim + i)
                        : patches.at((image * (a.tokens - a.first) + t - a.first) * a.dim + i);
        out.set((image * a.tokens + t) * a.dim + i, own + positions.at(t * a.dim + i));
      }
    }
  }
}

void embed_sequence_backward(const EmbedSequenceBackward& a) {
  const View grad_out(a.grad_out, a.dtype), grad_patches(a.grad_patches, a.dtype);
  for (std::int64_t t = 0; t < a.tokens; ++t) {
    for (std::int64_t i = 0; i < a.dim; ++i) {
      double sum = 0;
      for (std::int64_t image = 0; image < a.batch; ++image) {
        const double grad = grad_out.at((image * a.tokens + t) * a.dim + i);
        if (t >= a.first)
          grad_patches.set((image * (a.tokens - a.first) + t - a.first) * a.dim + i, grad);
        sum += grad;
      }
      add_to(a.grad_positions[t * a.dim + i], sum);
      if (t < a.first) add_to(a.grad_first_tokens[t * a.dim + i], sum);
    }
  }
}

void cross_entropy(const CrossEntropy& a) {
  const View logits(a.logits, a.dtype);
  const auto classes = static_cast<double>(a.classes), smoothing = static_cast<double>(a.smoothing);
  double totals[4] = {};
  for (std::int64_t row = 0; row < a.batch; ++row) {
    const auto weight = static_cast<double>(a.weights[row]);
    double log_sum_exp = 0;
    if (weight != 0) {
      const std::int64_t label = a.labels[row], first = row * a.classes;
      const bool known = label >= 0 && label < a.classes;
      const double own =
          known ? logits.at(first + label) : std::numeric_limits<double>::quiet_NaN();
      double max = -std::numeric_limits<double>::infinity(), exponentials = 0, mean = 0, better = 0;
      for (std::int64_t i = 0; i < a.classes; ++i) max = std::fmax(max, logits.at(first + i));
      for (std::int64_t i = 0; i < a.classes; ++i) {
        const double x = logits.at(first + i);
        exponentials += std::exp(x - max);
        mean += x / classes;
        if (x > own || (x == own && i < label)) better += 1;
      }
      log_sum_exp = max + std::log(exponentials);
      const double smooth = smoothing > 0 ? smoothing * (log_sum_exp - mean) : 0;
      double target = own;
      if (a.shares != nullptr) {
        const std::int64_t second = a.second_labels[row];
        const double other = second >= 0 && second < a.classes
                                 ? logits.at(first + second)
                                 : std::numeric_limits<double>::quiet_NaN();
        const auto share = static_cast<double>(a.shares[row]);
        target = share * own + (1 - share) * other;
      }
      const double loss = (1 - smoothing) * (log_sum_exp - target) + smooth;
      totals[0] += weight * loss;
      totals[1] += std::isfinite(loss) && better < 1 ? weight : 0;
      totals[2] += std::isfinite(loss) && better < 5 ? weight : 0;
      totals[3] += weight;
    }
    a.log_sum_exp[row] = static_cast<float>(log_sum_exp);
  }
  *a.loss = static_cast<float>(totals[0]);
  for (int k = 0; k < 4; ++k) add_to(a.totals[k], totals[k]);
}

void cross_entropy_backward(const CrossEntropyBackward& a) {
  const View logits(a.logits, a.dtype), grad(a.grad_logits, a.dtype);
  const auto smoothing = static_cast<double>(a.smoothing);
  for (std::int64_t row = 0; row < a.batch; ++row) {
    for (std::int64_t i = 0; i < a.classes; ++i) {
      const std::int64_t index = row * a.classes + i;
      const double share = a.shares == nullptr ? 1 : static_cast<double>(a.shares[row]);
      double target = smoothing / static_cast<double>(a.classes);
      if (i == a.labels[row]) target += share * (1 - smoothing);
      if (a.shares != nullptr && i == a.second_labels[row]) target += (1 - share) * (1 - smoothing);
      const double softmax = std::exp(logits.at(index) - static_cast<double>(a.log_sum_exp[row]));
      const double factor = static_cast<double>(a.weights[row]) * static_cast<double>(*a.grad_loss);
      grad.set(index, a.weights[row] == 0 ? 0 : factor * (softmax - target));
    }
  }
}

}  // namespace dstrain::kernels::reference
