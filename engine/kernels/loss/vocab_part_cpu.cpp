#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/kernels/host_view.h"
#include "engine/kernels/loss/kernels.h"

/// The loss over a part of the classes as its definition reads, sums in double; the CPU runs it.
namespace dstrain::kernels::reference {

void vocab_part(const VocabPart& a) {
  const View logits(a.logits, a.dtype);
  for (std::int64_t row = 0; row < a.rows; ++row) {
    const std::int64_t from = row * a.stride, place = a.labels[row] - a.first_class;
    std::int64_t best = 0;
    for (std::int64_t i = 1; i < a.classes; ++i)
      if (logits.at(from + i) > logits.at(from + best)) best = i;
    // Finite: a part of nothing but -inf adds nothing.
    const double max =
        std::max(logits.at(from + best), static_cast<double>(std::numeric_limits<float>::lowest()));
    double sum = 0;
    for (std::int64_t i = 0; i < a.classes; ++i) sum += std::exp(logits.at(from + i) - max);
    float* found = a.found + row * 4;
    found[0] = static_cast<float>(max);
    found[1] = static_cast<float>(sum);
    found[2] = place >= 0 && place < a.classes ? static_cast<float>(logits.at(from + place)) : 0;
    found[3] = static_cast<float>(a.first_class + best);
  }
}

void vocab_part_loss(const VocabPartLoss& a) {
  const View logits(a.logits, a.dtype);
  for (std::int64_t row = 0; row < a.rows; ++row) {
    const auto found = [&](int part, int column) {
      return a.found[(part * a.rows + row) * 4 + column];
    };
    int best = 0;
    for (int part = 1; part < a.parts; ++part)
      if (found(part, 0) > found(best, 0)) best = part;
    const double max = static_cast<double>(found(best, 0));
    double sum = 0, own = 0;
    for (int part = 0; part < a.parts; ++part) {
      sum +=
          static_cast<double>(found(part, 1)) * std::exp(static_cast<double>(found(part, 0)) - max);
      own += static_cast<double>(found(part, 2));
    }
    const std::int64_t label = a.labels[row];
    if (label < 0 || label >= a.all_classes) own = std::numeric_limits<double>::quiet_NaN();
    const double weight = static_cast<double>(a.weights[row]), loss = max + std::log(sum) - own;
    a.loss[row] = weight == 0 ? 0 : static_cast<float>(weight * loss);
    const bool first = static_cast<std::int64_t>(found(best, 3)) == label;
    a.top1[row] = std::isfinite(loss) && first ? a.weights[row] : 0;
    if (a.grad_loss == nullptr) continue;
    const double factor = weight * static_cast<double>(*a.grad_loss);
    for (std::int64_t i = 0; i < a.classes; ++i) {
      const std::int64_t at = row * a.stride + i;
      const double hot = a.first_class + i == label ? 1 : 0;
      logits.set(at, weight == 0 ? 0 : factor * (std::exp(logits.at(at) - max) / sum - hot));
    }
  }
}

}  // namespace dstrain::kernels::reference
