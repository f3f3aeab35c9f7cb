#include <bit>
#include <cmath>

#include "engine/kernels/attention/kernels.h"
#include "engine/kernels/host_view.h"

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

}  // namespace

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
