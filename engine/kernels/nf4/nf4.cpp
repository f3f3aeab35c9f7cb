#include "engine/kernels/nf4/nf4.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/kernels/nf4/kernels.h"
#include "engine/kernels/nf4/maxima_values.h"
#include "engine/kernels/nf4/nf4_math.h"
#include "engine/kernels/op_support.h"

namespace dstrain {
namespace {

constexpr std::size_t kBlock = kNf4Block, kMaxima = kNf4Maxima;

/// Between neighbouring values; a number on a midpoint goes to the lower one.
constexpr std::array<float, 15> midpoints() {
  std::array<float, 15> between{};
  for (std::size_t i = 0; i < between.size(); ++i)
    between[i] = (kernels::kNf4Values[i] + kernels::kNf4Values[i + 1]) / 2;
  return between;
}
constexpr std::array<float, 15> kMidpoints = midpoints();

float largest_magnitude(std::span<const float> values) {
  float largest = 0;
  for (const float value : values) largest = std::max(largest, std::abs(value));
  return largest;
}

/// How many midpoints are below each of a block's numbers, which are scaled to at most 1.
std::array<int, kBlock> block_codes(std::span<const float> block, float scale) {
  std::array<float, kBlock> scaled{};
  for (std::size_t i = 0; i < kBlock; ++i) scaled[i] = block[i] * scale;
  std::array<int, kBlock> codes{};
  for (const float midpoint : kMidpoints) {
    for (std::size_t i = 0; i < kBlock; ++i) codes[i] += midpoint < scaled[i] ? 1 : 0;
  }
  return codes;
}

/// Codes of 65,536 numbers from -1 to 1, the nearest of each. bitsandbytes' CPU build rounds a
/// scaled maximum to one of these first, so that one in 600 gets a neighbour's code.
const std::vector<std::uint8_t>& maxima_codes() {
  static const std::vector<std::uint8_t> codes = [] {
    constexpr int kNumbers = 65536;
    std::vector<std::uint8_t> list(kNumbers);
    std::size_t code = 0;
    for (int k = 0; k < kNumbers; ++k) {
      const float number = -1.0F + 2.0F * static_cast<float>(k) / (kNumbers - 1);
      while (code < 255 && 0.5F * (kMaximaValues[code] + kMaximaValues[code + 1]) < number) ++code;
      list[to_index(k)] = static_cast<std::uint8_t>(code);
    }
    return list;
  }();
  return codes;
}

std::uint8_t maximum_code_of(float scaled) {
  const float share = (std::clamp(scaled, -1.0F, 1.0F) + 1.0F) * 0.5F;
  return maxima_codes()[static_cast<std::uint16_t>(share * 65535.0F + 0.5F)];
}

kernels::DecodeNf4 decode_args(const Nf4Storage& storage, std::size_t index, const void* stored,
                               void* out, kernels::DType dtype) {
  return {.stored = static_cast<const std::uint8_t*>(stored),
          .piece = storage.pieces.at(index),
          .double_coded = storage.double_coded,
          .out = out,
          .dtype = dtype};
}

}  // namespace

std::span<const float> nf4_maxima_values() { return kMaximaValues; }

float nf4_maximum(std::uint8_t code, float maximum_of_maxima, float offset) {
  return kMaximaValues[code] * maximum_of_maxima + offset;
}

Nf4Codes nf4_codes(std::span<const float> values) {
  DSTRAIN_CHECK(values.size() % kBlock == 0, "NF4: no whole blocks");
  Nf4Codes coded{.codes = std::vector<std::uint8_t>(values.size() / 2),
                 .maxima = std::vector<float>(values.size() / kBlock)};
  constexpr float kMin = 1e-38F;  // a block of zeros is not divided by zero
  for (std::size_t b = 0; b < coded.maxima.size(); ++b) {
    const std::span block = values.subspan(b * kBlock, kBlock);
    coded.maxima[b] = largest_magnitude(block);
    const std::array<int, kBlock> codes =
        block_codes(block, 1.0F / std::max(coded.maxima[b], kMin));
    for (std::size_t i = 0; i < kBlock / 2; ++i)
      coded.codes[b * (kBlock / 2) + i] =
          static_cast<std::uint8_t>(codes[2 * i] << 4 | codes[2 * i + 1]);
  }
  return coded;
}

Nf4Maxima nf4_maxima(std::span<const float> maxima, std::optional<float> offset) {
  // In double precision: the same on every rank, whatever its processor.
  double sum = 0;
  for (const float maximum : maxima) sum += maximum;
  Nf4Maxima coded{
      .codes = std::vector<std::uint8_t>(maxima.size()),
      .maxima = {},
      .offset = offset ? *offset
                       : static_cast<float>(
                             sum / static_cast<double>(std::max<std::size_t>(maxima.size(), 1)))};
  std::vector<float> moved;
  for (std::size_t begin = 0; begin < maxima.size(); begin += kMaxima) {
    const std::span block = maxima.subspan(begin, std::min(kMaxima, maxima.size() - begin));
    moved.assign(block.begin(), block.end());
    for (float& value : moved) value -= coded.offset;
    coded.maxima.push_back(largest_magnitude(moved));
    if (coded.maxima.back() == 0) continue;
    const float inverse = 1.0F / coded.maxima.back();
    for (std::size_t i = 0; i < moved.size(); ++i)
      coded.codes[begin + i] = maximum_code_of(moved[i] * inverse);
  }
  return coded;
}

void store_nf4(const Nf4Storage& storage, std::size_t index, const Nf4Codes& whole,
               const Nf4Maxima& maxima, std::span<std::uint8_t> stored) {
  DSTRAIN_CHECK(std::cmp_equal(stored.size(), storage.bytes), "NF4: room of another size");
  const Nf4Piece& piece = storage.pieces.at(index);
  const auto at = [&](std::int64_t place) { return stored.data() + place; };
  for (std::int64_t row = 0; row < piece.blocks; row += piece.row_blocks) {
    const std::size_t first = to_index(piece.whole_block(row)), count = to_index(piece.row_blocks);
    std::copy_n(&whole.codes[first * (kBlock / 2)], count * (kBlock / 2),
                at(piece.codes + row * (kNf4Block / 2)));
    if (storage.double_coded) {
      std::copy_n(&maxima.codes[first], count, at(piece.maxima + row));
    } else {
      std::memcpy(at(piece.maxima) + to_index(row) * sizeof(float), &whole.maxima[first],
                  count * sizeof(float));
    }
  }
  if (!storage.double_coded || piece.blocks == 0) return;
  std::vector<float> table(kNf4TableMaxima + to_index(piece.num_maxima));
  table[0] = maxima.offset;
  std::ranges::copy(kMaximaValues, table.begin() + kNf4Codes);
  std::copy_n(&maxima.maxima[to_index(piece.first_maxima)], piece.num_maxima,
              table.begin() + kNf4TableMaxima);
  std::memcpy(at(piece.tables), table.data(), table.size() * sizeof(float));
}

std::vector<float> nf4_rounded(std::span<const float> values, bool double_coded) {
  const Piece whole("", {static_cast<std::int64_t>(values.size())});
  const Nf4Storage storage = nf4_storage({whole}, double_coded);
  const Nf4Codes codes = nf4_codes(values);
  std::vector<std::uint8_t> stored(to_index(storage.bytes));
  store_nf4(storage, 0, codes, double_coded ? nf4_maxima(codes.maxima) : Nf4Maxima{}, stored);
  std::vector<float> out(values.size());
  kernels::cpu::decode_nf4(decode_args(storage, 0, stored.data(), out.data(), kernels::DType::f32));
  return out;
}

namespace ops {

at::Tensor decode_nf4(const Parameter& weight, const at::Tensor& x) {
  const Nf4Storage& storage = weight.nf4.value();
  const std::int64_t rows = weight.shape.front();
  at::Tensor out = at::empty({rows, weight.numel() / std::max<std::int64_t>(rows, 1)}, x.options());
  auto* const begin = static_cast<std::uint8_t*>(out.mutable_data_ptr());
  std::int64_t done = 0;
  for (std::size_t i = 0; i < storage.pieces.size(); ++i) {
    const auto args =
        decode_args(storage, i, weight.value.const_data_ptr(), begin + done, kernel_dtype(x));
    x.is_cuda() ? kernels::cuda::decode_nf4(args, current_stream())
                : kernels::cpu::decode_nf4(args);
    done += storage.pieces[i].blocks * kNf4Block * static_cast<std::int64_t>(out.element_size());
  }
  return out;
}

}  // namespace ops

}  // namespace dstrain
