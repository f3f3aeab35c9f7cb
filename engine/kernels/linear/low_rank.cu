#include <cstddef>

#include "engine/kernels/linear/low_rank.cuh"

/// Rows of x go from memory to registers as operands of tensor cores: a lane holds eight elements
/// of a row, which are the draws of one counter. Which columns a tile has does not matter, as long
/// as they are the same of both operands: tile j of 32 columns has the pairs j of all lanes' packs.
namespace dstrain::kernels::cuda {
namespace {

constexpr int kRowsWarps = 8;

/// A block has 16 * kRowTiles rows of x, whose columns its warps take by turns; their sums are
/// added at the end.
template <typename T, int kRowTiles, int kColumnTiles, int kAhead>
__global__ void __launch_bounds__(kRowsWarps* kWarp, 2) low_rank_rows_kernel(const LowRankRows a) {
  constexpr int kPacks = 2 * kRowTiles;  // of x that a lane holds
  using Sums = float[kRowTiles][kColumnTiles][4];
  __shared__ BlockParts<kHalf> block;
  __shared__ float given[kRowsWarps / 2][sizeof(Sums) / sizeof(float)][kWarp];
  block.template fill<T>(a.parts, a.columns);
  const Lane lane;
  const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.x) * kTile * kRowTiles;
  std::int64_t rows[kPacks];
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    const std::int64_t row = first_row + i * kHalf + lane.row;
    rows[i] = row < a.rows ? row : a.rows - 1;
  }
  uint4 ahead[kAhead][kPacks];
  const auto read = [&](std::int64_t span, uint4(&to)[kPacks]) {
    const std::int64_t column = span + lane.index % 4 * kPack;
#pragma unroll
    for (int i = 0; i < kPacks; ++i)
      to[i] = column < a.columns ? pack_at<T>(a.x, rows[i], a.columns, column) : uint4{};
  };
  Sums sums = {};
  constexpr int kStep = kRowsWarps * kSpan;
  const int first_span = lane.warp * kSpan;
#pragma unroll
  for (int k = 0; k < kAhead; ++k) read(first_span + k * kStep, ahead[k]);
  for (std::int64_t span = first_span; span < a.columns; span += kStep) {
    const std::int64_t column = span + lane.index % 4 * kPack;
    uint4 x[kPacks], w[kColumnTiles];
#pragma unroll
    for (int t = 0; t < kColumnTiles; ++t)
      w[t] = t < block.tiles && column < a.columns
                 ? pack_at<T>(block.rows[t], lane.row, a.columns, column)
                 : uint4{};
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      x[i] = ahead[0][i];
#pragma unroll
      for (int k = 1; k < kAhead; ++k) ahead[k - 1][i] = ahead[k][i];
    }
    read(span + kAhead * kStep, ahead[kAhead - 1]);
    for (int p = 0; p < a.parts.count; ++p) {
      const BlockPart& part = block.part[p];
      uint4 kept[kPacks];
#pragma unroll
      for (int i = 0; i < kPacks; ++i) kept[i] = masked(x[i], kept_of(part, rows[i], column));
#pragma unroll
      for (int t = 0; t < kColumnTiles; ++t) {
        if (t < part.first_tile || t >= part.end_tile) continue;
#pragma unroll
        for (int i = 0; i < kRowTiles; ++i) {
          const uint4 &low = kept[2 * i], &high = kept[2 * i + 1];
          multiply_add<T>(sums[i][t], {{low.x, high.x, low.y, high.y}}, {{w[t].x, w[t].y}});
          multiply_add<T>(sums[i][t], {{low.z, high.z, low.w, high.w}}, {{w[t].z, w[t].w}});
        }
      }
    }
  }
  auto* const own = reinterpret_cast<float*>(sums);
  constexpr int kSums = sizeof(Sums) / sizeof(float);
#pragma unroll
  for (int half = kRowsWarps / 2; half > 0; half /= 2) {
    if (lane.warp >= half && lane.warp < 2 * half) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) given[lane.warp - half][i][lane.index] = own[i];
    }
    __syncthreads();
    if (lane.warp < half) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) own[i] += given[lane.warp][i][lane.index];
    }
    __syncthreads();
  }
  if (lane.warp != 0) return;
  for (int p = 0; p < a.parts.count; ++p) {
    const BlockPart& part = block.part[p];
#pragma unroll
    for (int t = 0; t < kColumnTiles; ++t) {
      if (t < part.first_tile || t >= part.end_tile) continue;
#pragma unroll
      for (int i = 0; i < kPacks; ++i) {
        const std::int64_t row = first_row + i * kHalf + lane.row;
        if (row >= a.rows) continue;
        const float* const pair = sums[i / 2][t] + i % 2 * 2;
        store_pair(static_cast<T*>(a.u) + row * a.u_stride + block.column[t] + lane.column,
                   part.factor * pair[0], part.factor * pair[1]);
      }
    }
  }
}

constexpr int kGradientsWarps = kLowRankColumns / kSpan;

/// A block has 128 columns of x, 32 a warp, and goes over its share of the rows.
template <typename T, int kTiles>
__global__ void __launch_bounds__(kGradientsWarps* kWarp, 3)
    low_rank_gradients_kernel(const LowRankGradients a) {
  __shared__ BlockParts<kTile> block;
  __shared__ uint2 right_of_a[kGradientsWarps][kTiles][4][kWarp];
  block.template fill<T>(a.parts, a.columns);
  const Lane lane;
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kLowRankColumns +
                              lane.warp * kSpan + lane.index % 4 * kPack;
  const bool inside = column < a.columns;
  for (int t = 0; t < block.tiles; ++t)
    keep_right_of_a<T>(block, t, lane, a.columns, column, inside, right_of_a[lane.warp][t]);
  const std::int64_t tiles = (a.rows + kTile - 1) / kTile,
                     begin = tiles * blockIdx.y / gridDim.y * kTile,
                     end_of_tiles = tiles * (blockIdx.y + 1) / gridDim.y * kTile,
                     end = end_of_tiles < a.rows ? end_of_tiles : a.rows;
  const bool has_x = a.x != nullptr, has_dx = a.dx != nullptr;
  constexpr int kAhead = kTiles <= 2 ? 2 : 1;
  uint4 ahead[kAhead][2] = {};
  const auto read = [&](std::int64_t from, uint4(&to)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const std::int64_t row = from + i * kHalf + lane.row;
      to[i] = has_x && row < end && inside ? pack_at<T>(a.x, row, a.columns, column) : uint4{};
    }
  };
  const auto read_du = [&](std::int64_t from, Left(&to)[kTiles]) {
    const std::int64_t low_row = from + lane.row, high_row = low_row + kHalf;
    const bool has_low = low_row < end, has_high = high_row < end;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      to[t] = {};
      if (t >= block.tiles) continue;
      const T* const low =
          static_cast<const T*>(a.du) + low_row * a.u_stride + block.column[t] + lane.column;
      const T* const high = low + kHalf * a.u_stride;
      const bool wide = block.count[t] > kHalf;
      to[t] = {{has_low ? pair_at(low) : 0u, has_high ? pair_at(high) : 0u,
                has_low && wide ? pair_at(low + kHalf) : 0u,
                has_high && wide ? pair_at(high + kHalf) : 0u}};
    }
  };
  float sums[kTiles][4][4] = {};
  Left du_ahead[kTiles];
  read_du(begin, du_ahead);
#pragma unroll
  for (int k = 0; k < kAhead; ++k) read(begin + k * kTile, ahead[k]);
  for (std::int64_t from = begin; from < end; from += kTile) {
    const uint4 x[2] = {ahead[0][0], ahead[0][1]};
#pragma unroll
    for (int k = 1; k < kAhead; ++k) {
      ahead[k - 1][0] = ahead[k][0];
      ahead[k - 1][1] = ahead[k][1];
    }
    Left du[kTiles];
#pragma unroll
    for (int t = 0; t < kTiles; ++t) du[t] = du_ahead[t];
    read(from + kAhead * kTile, ahead[kAhead - 1]);
    read_du(from + kTile, du_ahead);
    const std::int64_t low_row = from + lane.row, high_row = low_row + kHalf;
    const bool has_low = low_row < end, has_high = high_row < end;
    const auto kept_by = [&](const BlockPart& part, uint4(&kept)[2]) {
      kept[0] = kept_of(part, has_low ? low_row : end - 1, column);
      kept[1] = kept_of(part, has_high ? high_row : end - 1, column);
    };
    const auto add_sums = [&](const BlockPart& part, const uint4& low, const uint4& high) {
      const RightHalf of_x[4] = {{{transposed(low.x), transposed(high.x)}},
                                 {{transposed(low.y), transposed(high.y)}},
                                 {{transposed(low.z), transposed(high.z)}},
                                 {{transposed(low.w), transposed(high.w)}}};
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        if (t < part.first_tile || t >= part.end_tile) continue;
        const Left columns = {{transposed(du[t].value[0]), transposed(du[t].value[2]),
                               transposed(du[t].value[1]), transposed(du[t].value[3])}};
#pragma unroll
        for (int j = 0; j < 4; ++j) multiply_add<T>(sums[t][j], columns, of_x[j]);
      }
    };
    float total[4][4] = {};
    const auto add_to_total = [&](const BlockPart& part, const uint4(&kept)[2]) {
      float own[4][4] = {};
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        if (t < part.first_tile || t >= part.end_tile) continue;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const uint2 right = right_of_a[lane.warp][t][j][lane.index];
          multiply_add<T>(own[j], du[t], {{right.x, right.y}});
        }
      }
      const auto* const words_low = reinterpret_cast<const std::uint32_t*>(&kept[0]);
      const auto* const words_high = reinterpret_cast<const std::uint32_t*>(&kept[1]);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const std::uint32_t half = i % 2 == 0 ? 0xFFFFu : 0xFFFF0000u;
          const bool stays = ((i < 2 ? words_low[j] : words_high[j]) & half) != 0;
          if (stays) total[j][i] += part.factor * own[j][i];
        }
      }
    };
    for (int p = 0; p < a.parts.count; ++p) {
      const BlockPart& part = block.part[p];
      uint4 kept[2];
      kept_by(part, kept);
      if (has_x) add_sums(part, masked(x[0], kept[0]), masked(x[1], kept[1]));
      if (has_dx) add_to_total(part, kept);
    }
    if (!has_dx || !inside) continue;
#pragma unroll
    for (int below = 0; below < 2; ++below) {
      if (!(below == 0 ? has_low : has_high)) continue;
      auto* const to = reinterpret_cast<uint4*>(
          static_cast<T*>(a.dx) + (below == 0 ? low_row : high_row) * a.columns + column);
      if (a.add) {
        const uint4 held = *to;
        const auto* const pairs = reinterpret_cast<const std::uint32_t*>(&held);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float2 pair = unpack_pair<T>(pairs[j]);
          total[j][2 * below] += pair.x;
          total[j][2 * below + 1] += pair.y;
        }
      }
      *to = {pack_pair<T>(total[0][2 * below], total[0][2 * below + 1]),
             pack_pair<T>(total[1][2 * below], total[1][2 * below + 1]),
             pack_pair<T>(total[2][2 * below], total[2][2 * below + 1]),
             pack_pair<T>(total[3][2 * below], total[3][2 * below + 1])};
    }
  }
  if (a.partial == nullptr || !inside) return;
  float* to = a.partial;
  for (int p = 0; p < a.parts.count; ++p) {
    const LowRankPart& part = a.parts.part[p];
    const float scale = part.scale_of_a * block.part[p].factor;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      if (t < block.part[p].first_tile || t >= block.part[p].end_tile) continue;
      write_sums(block, t, lane, part, scale, a.columns, column, sums[t], to);
    }
    to += gridDim.y * part.rank * a.columns;
  }
}

template <typename T, int kRowTiles, int kColumnTiles, int kAhead>
void launch_rows(const LowRankRows& a, cudaStream_t stream) {
  low_rank_rows_kernel<T, kRowTiles, kColumnTiles, kAhead>
      <<<blocks_for(a.rows, kTile * kRowTiles), kRowsWarps * kWarp, 0, stream>>>(a);
}

template <typename T>
void launch_rows(const LowRankRows& a, cudaStream_t stream) {
  constexpr std::int64_t kManyRows = 4096;  // two tiles a block leave no multiprocessor idle
  const int tiles = a.parts.tiles(kHalf);
  if (tiles > 6) return launch_rows<T, 1, 8, 1>(a, stream);
  if (tiles > 4) return launch_rows<T, 1, 6, 1>(a, stream);
  if (a.rows < kManyRows) return launch_rows<T, 1, 4, 2>(a, stream);
  tiles > 2 ? launch_rows<T, 2, 4, 1>(a, stream) : launch_rows<T, 2, 2, 1>(a, stream);
}

template <typename T, int kTiles>
void launch_gradients(const LowRankGradients& a, cudaStream_t stream) {
  const dim3 blocks(blocks_for(a.columns, kLowRankColumns),
                    static_cast<unsigned>(low_rank_splits(a.rows, a.columns)));
  low_rank_gradients_kernel<T, kTiles><<<blocks, kGradientsWarps * kWarp, 0, stream>>>(a);
}

template <typename T>
void launch_gradients(const LowRankGradients& a, cudaStream_t stream) {
  with_tiles(a.parts, [&](auto tiles) { launch_gradients<T, decltype(tiles)::value>(a, stream); });
}

}  // namespace

void low_rank_rows(const LowRankRows& args, cudaStream_t stream) {
  if (args.rows == 0) return;
  check_products("low_rank_rows", args.dtype);
  args.dtype == DType::bf16 ? launch_rows<__nv_bfloat16>(args, stream)
                            : launch_rows<__half>(args, stream);
  check_launch("low_rank_rows");
}

void low_rank_gradients(const LowRankGradients& args, cudaStream_t stream) {
  if (args.rows == 0) return;
  check_products("low_rank_gradients", args.dtype);
  args.dtype == DType::bf16 ? launch_gradients<__nv_bfloat16>(args, stream)
                            : launch_gradients<__half>(args, stream);
  check_launch("low_rank_gradients");
}

}  // namespace dstrain::kernels::cuda
