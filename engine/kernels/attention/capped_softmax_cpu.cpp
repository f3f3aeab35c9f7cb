#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "engine/kernels/attention/kernels.h"
#include "engine/kernels/host_view.h"

namespace dstrain::kernels::reference {
namespace {

constexpr std::int64_t kRowsOfThread = 16;

bool sees(const SeenKeys& seen, std::int64_t row, std::int64_t key) {
  const std::int64_t place = seen.places[row % seen.queries], at = seen.first_key + key;
  return !(seen.causal && at > place) && !(seen.window > 0 && place - at >= seen.window) &&
         (seen.sequences == nullptr || seen.sequences[at] == seen.sequences[place]);
}

/// scale s, or the tanh by which a cap bends it.
float bent(float score, float scale, float softcap) {
  return softcap > 0 ? std::tanh(score * (scale / softcap)) : score * scale;
}

}  // namespace

void capped_softmax(const CappedSoftmax& a) {
  const View shares(a.shares, a.dtype);
  const float cap = a.softcap > 0 ? a.softcap : 1;
  at::parallel_for(0, a.rows, kRowsOfThread, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> capped(static_cast<std::size_t>(a.keys));
    for (std::int64_t row = begin; row < end; ++row) {
      float largest = -std::numeric_limits<float>::infinity();
      for (std::int64_t key = 0; key < a.keys; ++key) {
        const bool seen = sees(a.seen, row, key);
        float& score = capped[static_cast<std::size_t>(key)];
        score = seen ? cap * bent(a.scores[row * a.keys + key], a.scale, a.softcap)
                     : -std::numeric_limits<float>::infinity();
        largest = std::max(largest, score);
      }
      double sum = 0;
      for (float& score : capped) sum += score = std::exp(score - largest);
      a.log_sum_exp[row] = largest + static_cast<float>(std::log(sum));
      for (std::int64_t key = 0; key < a.keys; ++key)
        shares.set(row * a.keys + key, capped[static_cast<std::size_t>(key)] / sum);
    }
  });
}

void capped_softmax_backward(const CappedSoftmaxBackward& a) {
  const View shares(a.shares, a.dtype), d_scores(a.d_scores, a.dtype), out(a.out, a.dtype),
      d_out(a.d_out, a.dtype);
  const float cap = a.softcap > 0 ? a.softcap : 1;
  at::parallel_for(0, a.rows, kRowsOfThread, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      double along = 0;
      for (std::int64_t i = row * a.width; i < (row + 1) * a.width; ++i)
        along += out.at(i) * d_out.at(i);
      for (std::int64_t key = 0; key < a.keys; ++key) {
        const std::int64_t i = row * a.keys + key;
        double share = 0, gradient = 0;
        if (sees(a.seen, row, key)) {
          const float x = bent(a.scores[i], a.scale, a.softcap);
          share = std::exp(cap * x - a.log_sum_exp[row]);
          const float slope = a.softcap > 0 ? 1 - x * x : 1;
          gradient = share * (a.d_shares[i] - along) * slope * a.scale;
        }
        shares.set(i, share);
        d_scores.set(i, gradient);
      }
    }
  });
}

}  // namespace dstrain::kernels::reference
