#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "engine/kernels/attention/kernels.h"
#include "engine/kernels/reference_view.h"

/// The kernels around attention as their definitions read, in double.
namespace dstrain::kernels {

double alibi_slope(std::int64_t head, std::int64_t heads) {
  const auto power = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(heads)));
  const auto exponent =
      static_cast<double>(head < power ? 8 * (head + 1) : 4 * (2 * (head - power) + 1));
  return std::exp2(-exponent / static_cast<double>(power));
}

namespace reference {
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

void store_heads(const StoreHeads& a) {
  const View qkv(const_cast<void*>(a.qkv), a.dtype);
  for (std::int64_t row = 0; row < a.rows; ++row) {
    const std::int64_t place = a.slots[row] * a.capacity + a.positions[row];
    for (std::int64_t head = 0; head < a.layout.kv_heads; ++head) {
      for (const int part : {1, 2}) {
        const View to(part == 1 ? a.keys : a.values, a.dtype);
        const std::int64_t slot = row * a.layout.slots() + a.layout.slot({part, head});
        for (std::int64_t i = 0; i < a.layout.head_dim; ++i)
          to.set((place * a.layout.kv_heads + head) * a.layout.head_dim + i,
                 qkv.at(slot * a.layout.head_dim + i));
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
      for (std::int64_t i = 0; i < width; ++i) query.push_back(element(row, {0, head}, i));
      for (std::int64_t key = 0; key <= a.positions[row]; ++key) {
        double score = 0;
        for (std::int64_t i = 0; i < width; ++i)
          score += query[static_cast<std::size_t>(i)] * keys.at(place(key, head / group) + i);
        scores.push_back(score * static_cast<double>(a.scale) +
                         slope * static_cast<double>(key - a.positions[row]));
      }
      const double max = std::ranges::max(scores);
      double sum = 0;
      for (double& score : scores) sum += score = std::exp(score - max);
      for (std::int64_t i = 0; i < width; ++i) {
        double value = 0;
        for (std::int64_t key = 0; key <= a.positions[row]; ++key)
          value += scores[static_cast<std::size_t>(key)] * values.at(place(key, head / group) + i);
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

void stretch_heads(const StretchHeads& a) {
  const View qkv(a.qkv, a.dtype);
  const View out[3] = {{a.query, a.dtype}, {a.key, a.dtype}, {a.value, a.dtype}};
  for (std::int64_t row = 0; row < a.rows; ++row) {
    const std::int64_t position = position_of(a.positions, row, a.tokens);
    for (std::int64_t slot = 0; slot < a.layout.slots(); ++slot) {
      const auto [part, head] = a.layout.place(slot);
      if (!out[part]) continue;
      const std::int64_t from = (row * a.layout.slots() + slot) * a.layout.head_dim;
      const std::int64_t to =
          (row * (part == 0 ? a.layout.heads : a.layout.kv_heads) + head) * a.stretched;
      for (std::int64_t i = 0; i < a.stretched; ++i) {
        out[part].set(to + i, i < a.layout.head_dim ? qkv.at(from + i) : 0);
      }
      const std::int64_t behind = to + a.layout.head_dim;
      if (part == 0) {
        const auto slope = static_cast<double>(
            static_cast<float>(alibi_slope(a.first_head + head, a.model_heads)) * a.inverse_scale);
        out[part].set(behind + 1, slope);
        const double high = out[part].at(behind + 1);
        out[part].set(behind, 256 * high);
        out[part].set(behind + 2, 256 * (slope - high));
        out[part].set(behind + 3, slope - high);
      } else if (part == 1) {
        const std::int64_t multiple = position / 256, rest = position % 256;
        for (const std::int64_t i : {0, 2}) {
          out[part].set(behind + i, static_cast<double>(multiple));
          out[part].set(behind + i + 1, static_cast<double>(rest));
        }
      }
    }
  }
}

void resize_rows(const ResizeRows& a) {
  const View source(a.source, a.dtype), out(a.out, a.dtype);
  for (std::int64_t row = 0; row < a.rows; ++row) {
    for (std::int64_t i = 0; i < a.to; ++i) {
      out.set(row * a.to + i, i < a.from ? source.at(row * a.from + i) : 0);
    }
  }
}

}  // namespace reference
}  // namespace dstrain::kernels
