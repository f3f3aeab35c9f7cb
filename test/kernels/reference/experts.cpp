#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <numeric>
#include <vector>

#include "engine/kernels/host_view.h"
#include "test/kernels/reference/reference.h"

/// Routing and sums over experts as their definitions read, in double.
namespace dstrain::kernels::reference {
namespace {

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

std::vector<double> softmax_of(const View& logits, std::int64_t row, std::int64_t experts,
                               double* log_sum = nullptr) {
  std::vector<double> p(index(experts));
  for (std::int64_t e = 0; e < experts; ++e) p[index(e)] = logits.at(row * experts + e);
  const double largest = *std::ranges::max_element(p);
  double sum = 0;
  for (double& value : p) sum += value = std::exp(value - largest);
  for (double& value : p) value /= sum;
  if (log_sum != nullptr) *log_sum = largest + std::log(sum);
  return p;
}

double share_of_shared(double gate) { return 1 / (1 + std::exp(-gate)); }

/// Tokens of a sample that count.
std::int64_t length_of(const std::int32_t* lengths, std::int64_t sample, std::int64_t tokens) {
  return lengths != nullptr ? lengths[sample] : tokens;
}

/// 1 / tokens of its sample where the row counts, else 0.
template <class Args>
double share_of_row(const Args& a, std::int64_t row) {
  const std::int64_t place = a.first_row + row;
  const std::int64_t token = (a.places != nullptr ? a.places[place] : place) % a.tokens;
  const std::int64_t length = length_of(a.lengths, place / a.sample_rows, a.tokens);
  return token < length ? 1 / static_cast<double>(length) : 0;
}

}  // namespace

void route(const Route& a) {
  const View logits(a.logits, a.dtype);
  for (std::int64_t row = 0; row < a.rows; ++row) {
    double log_sum = 0;
    const std::vector<double> p = softmax_of(logits, row, a.experts, &log_sum);
    a.log_sum[row] = static_cast<float>(log_sum);
    std::vector<std::int32_t> order(index(a.experts));
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, std::greater<>(),
                             [&](std::int32_t e) { return logits.at(row * a.experts + e); });
    double total = 0;
    for (std::int64_t j = 0; j < a.chosen; ++j) total += p[index(order[index(j)])];
    for (std::int64_t j = 0; j < a.chosen; ++j) {
      a.choices[row * a.chosen + j] = order[index(j)];
      a.weights[row * a.chosen + j] =
          static_cast<float>(p[index(order[index(j)])] / (a.normalize ? total : 1));
    }
  }
}

void expert_sums(const ExpertSums& a) {
  const View logits(a.logits, a.dtype);
  const std::int64_t size = a.samples * a.experts;
  std::vector<double> sums(index(2 * size));
  for (std::int64_t row = 0; row < a.rows; ++row) {
    if (share_of_row(a, row) == 0) continue;
    const std::int64_t first = (a.first_row + row) / a.sample_rows * a.experts;
    const std::vector<double> p = softmax_of(logits, row, a.experts);
    for (std::int64_t e = 0; e < a.experts; ++e) sums[index(first + e)] += p[index(e)];
    for (std::int64_t j = row * a.chosen; j < (row + 1) * a.chosen; ++j)
      ++sums[index(size + first + a.choices[j])];
  }
  for (std::int64_t i = 0; i < 2 * size; ++i) a.sums[i] = static_cast<float>(sums[index(i)]);
}

void expert_shares(const ExpertShares& a) {
  const std::int64_t size = a.samples * a.experts;
  double loss = 0;
  for (std::int64_t i = 0; i < size; ++i) {
    const auto tokens = static_cast<double>(length_of(a.lengths, i / a.experts, a.tokens));
    const double share = tokens > 0 ? a.sums[size + i] / tokens : 0;
    a.share[i] = static_cast<float>(share);
    if (share > 0) loss += static_cast<double>(a.experts) * share * a.sums[i] / tokens;
  }
  if (a.loss_sum != nullptr) add_to(*a.loss_sum, a.factor * loss);
}

void route_backward(const RouteBackward& a) {
  const View logits(a.logits, a.dtype), grad_logits(a.grad_logits, a.dtype);
  for (std::int64_t row = 0; row < a.rows; ++row) {
    const std::int64_t sample = (a.first_row + row) / a.sample_rows;
    const double per_token = a.seed != nullptr ? *a.seed * share_of_row(a, row) : 0;
    double log_sum = 0;
    const std::vector<double> p = softmax_of(logits, row, a.experts, &log_sum);
    std::vector<double> grad(p.size());
    for (std::int64_t e = 0; a.share != nullptr && e < a.experts; ++e) {
      grad[index(e)] =
          per_token * a.balance * static_cast<double>(a.experts) * a.share[sample * a.experts + e];
    }
    double total = 0, weighted = 0;
    for (std::int64_t j = row * a.chosen; j < (row + 1) * a.chosen; ++j) {
      total += p[index(a.choices[j])];
      weighted += static_cast<double>(a.grad_weights[j]) * a.weights[j];
    }
    for (std::int64_t j = row * a.chosen; j < (row + 1) * a.chosen; ++j) {
      grad[index(a.choices[j])] +=
          a.normalize ? (a.grad_weights[j] - weighted) / total : a.grad_weights[j];
    }
    const double inner = std::inner_product(p.begin(), p.end(), grad.begin(), 0.0);
    for (std::int64_t e = 0; e < a.experts; ++e) {
      grad_logits.set(row * a.experts + e,
                      p[index(e)] * (grad[index(e)] - inner + 2 * a.z * per_token * log_sum));
    }
  }
}

void sort_by_expert(const SortByExpert& a) {
  std::int32_t place = 0;
  for (std::int64_t e = 0; e < a.experts; ++e) {
    a.counts[e] = 0;
    for (std::int64_t i = 0; i < a.choices_count; ++i) {
      if (a.choices[i] != e) continue;
      a.place[i] = place++;
      ++a.counts[e];
    }
  }
}

void spread_rows(const SpreadRows& a) {
  const View x(a.x, a.dtype), out(a.out, a.dtype);
  for (std::int64_t i = 0; i < a.rows * a.chosen; ++i) {
    for (std::int64_t c = 0; c < a.dim; ++c)
      out.set(a.place[i] * a.dim + c, x.at(i / a.chosen * a.dim + c));
  }
}

void combine_rows(const CombineRows& a) {
  const View y(a.y, a.dtype), shared(a.shared, a.dtype), gate(a.gate, a.dtype), out(a.out, a.dtype);
  for (std::int64_t row = 0; row < a.rows; ++row) {
    for (std::int64_t c = 0; c < a.dim; ++c) {
      double sum = shared ? share_of_shared(gate.at(row)) * shared.at(row * a.dim + c) : 0;
      for (std::int64_t j = row * a.chosen; j < (row + 1) * a.chosen; ++j)
        sum += (a.weights != nullptr ? a.weights[j] : 1.0) * y.at(a.place[j] * a.dim + c);
      out.set(row * a.dim + c, sum);
    }
  }
}

void combine_rows_backward(const CombineRowsBackward& a) {
  const View y(a.y, a.dtype), shared(a.shared, a.dtype), gate(a.gate, a.dtype),
      grad_out(a.grad_out, a.dtype), grad_y(a.grad_y, a.dtype), grad_shared(a.grad_shared, a.dtype),
      grad_gate(a.grad_gate, a.dtype);
  for (std::int64_t row = 0; row < a.rows; ++row) {
    for (std::int64_t j = row * a.chosen; j < (row + 1) * a.chosen; ++j) {
      double dot = 0;
      for (std::int64_t c = 0; c < a.dim; ++c) {
        const double grad = grad_out.at(row * a.dim + c);
        dot += grad * y.at(a.place[j] * a.dim + c);
        grad_y.set(a.place[j] * a.dim + c, a.weights[j] * grad);
      }
      a.grad_weights[j] = static_cast<float>(dot);
    }
    if (!shared) continue;
    const double s = share_of_shared(gate.at(row));
    double dot = 0;
    for (std::int64_t c = row * a.dim; c < (row + 1) * a.dim; ++c) {
      dot += grad_out.at(c) * shared.at(c);
      grad_shared.set(c, s * grad_out.at(c));
    }
    grad_gate.set(row, dot * s * (1 - s));
  }
}

}  // namespace dstrain::kernels::reference
