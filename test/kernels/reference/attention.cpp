#include <algorithm>
#include <cmath>
#include <vector>

#include "engine/kernels/host_view.h"
#include "test/kernels/reference/reference.h"

/// The kernels around attention as their definitions read, in double.
namespace dstrain::kernels::reference {
namespace {

std::int64_t position_of(const std::int32_t* positions, std::int64_t row, std::int64_t tokens) {
  return positions != nullptr ? positions[row] : row % tokens;
}

/// Turns (low, high) by the angle of element i at a position; by its negative with sign = -1.
void turn(const float* table, std::int64_t position, std::int64_t half, std::int64_t i, double sign,
          double& low, double& high) {
  const float* angle = table + (position * half + i) * 2;
  const double cosine = static_cast<double>(angle[0]), sine = sign * static_cast<double>(angle[1]);
  const double first = low;
  low = first * cosine - high * sine;
  high = high * cosine + first * sine;
}

}  // namespace

void rotate_heads(const RotateHeads& a) {
  const View qkv(a.qkv, a.dtype);
  const std::int64_t half = a.layout.head_dim / 2;
  for (std::int64_t row = 0; row < a.rows; ++row) {
    const std::int64_t position = position_of(a.positions, row, a.tokens);
    for (std::int64_t slot = 0; slot < a.layout.slots(); ++slot) {
      if (a.layout.place(slot).part == 2) continue;
      const std::int64_t head = (row * a.layout.slots() + slot) * a.layout.head_dim;
      for (std::int64_t i = 0; i < half; ++i) {
        double low = qkv.at(head + i), high = qkv.at(head + half + i);
        turn(a.table, position, half, i, a.back ? -1 : 1, low, high);
        qkv.set(head + i, low);
        qkv.set(head + half + i, high);
      }
    }
  }
}

void cached_attention(const CachedAttention& a) {
  const View qkv(const_cast<void*>(a.qkv), a.dtype);
  const View keys(a.keys, a.dtype), values(a.values, a.dtype), out(a.out, a.dtype);
  const std::int64_t width = a.layout.head_dim, group = a.layout.heads / a.layout.kv_heads,
                     half = width / 2;
  /// Element i of a head of a row, turned.
  const auto element = [&](std::int64_t row, HeadLayout::Place place, std::int64_t i) {
    const std::int64_t head = (row * a.layout.slots() + a.layout.slot(place)) * width;
    if (a.table == nullptr || place.part == 2) return qkv.at(head + i);
    double low = qkv.at(head + i % half), high = qkv.at(head + half + i % half);
    turn(a.table, a.positions[row], half, i % half, 1, low, high);
    return i < half ? low : high;
  };
  for (std::int64_t row = 0; row < a.rows; ++row) {
    const auto place = [&](std::int64_t key, std::int64_t kv_head) {
      return ((a.slots[row] * a.capacity + key) * a.layout.kv_heads + kv_head) * width;
    };
    for (std::int64_t kv_head = 0; kv_head < a.layout.kv_heads; ++kv_head) {
      for (std::int64_t i = 0; i < width; ++i) {
        keys.set(place(a.positions[row], kv_head) + i, element(row, {1, kv_head}, i));
        values.set(place(a.positions[row], kv_head) + i, element(row, {2, kv_head}, i));
      }
    }
    for (std::int64_t head = 0; head < a.layout.heads; ++head) {
      const double slope = a.alibi ? alibi_slope(a.first_head + head, a.model_heads) : 0;
      std::vector<double> query, scores;
      const std::int64_t first =
          a.window > 0 ? std::max<std::int64_t>(a.positions[row] + 1 - a.window, 0) : 0;
      for (std::int64_t i = 0; i < width; ++i) query.push_back(element(row, {0, head}, i));
      for (std::int64_t key = first; key <= a.positions[row]; ++key) {
        double score = 0;
        for (std::int64_t i = 0; i < width; ++i)
          score += query[static_cast<std::size_t>(i)] * keys.at(place(key, head / group) + i);
        score *= static_cast<double>(a.scale);
        const auto cap = static_cast<double>(a.softcap);
        if (cap > 0) score = cap * std::tanh(score / cap);
        scores.push_back(score + slope * static_cast<double>(key - a.positions[row]));
      }
      const double max = std::ranges::max(scores);
      double sum = 0;
      for (double& score : scores) sum += score = std::exp(score - max);
      for (std::int64_t i = 0; i < width; ++i) {
        double value = 0;
        for (std::int64_t key = first; key <= a.positions[row]; ++key)
          value += scores[static_cast<std::size_t>(key - first)] *
                   values.at(place(key, head / group) + i);
        out.set((row * a.layout.heads + head) * width + i, value / sum);
      }
    }
  }
}

void pack_heads(const PackHeads& a) {
  const View out(a.out, a.dtype);
  const std::int64_t half = a.layout.head_dim / 2;
  for (std::int64_t row = 0; row < a.batch * a.tokens; ++row) {
    const std::int64_t position = position_of(a.positions, row, a.tokens);
    for (std::int64_t slot = 0; slot < a.layout.slots(); ++slot) {
      const HeadLayout::Place place = a.layout.place(slot);
      const View source(a.source[place.part], a.dtype);
      const auto& stride = a.stride[place.part];
      const std::int64_t from =
          row / a.tokens * stride[0] + place.head * stride[1] + row % a.tokens * stride[2];
      const std::int64_t to = (row * a.layout.slots() + slot) * a.layout.head_dim;
      if (a.table == nullptr || place.part == 2) {
        for (std::int64_t i = 0; i < a.layout.head_dim; ++i) out.set(to + i, source.at(from + i));
        continue;
      }
      for (std::int64_t i = 0; i < half; ++i) {
        double low = source.at(from + i), high = source.at(from + half + i);
        turn(a.table, position, half, i, -1, low, high);
        out.set(to + i, low);
        out.set(to + half + i, high);
      }
    }
  }
}

}  // namespace dstrain::kernels::reference
