#include <cstddef>

#include "engine/kernels/copy_async.cuh"
#include "engine/kernels/device.cuh"
#include "engine/kernels/gpu.h"
#include "engine/kernels/linear/low_rank.h"
#include "engine/kernels/tensor_cores.cuh"

/// A block has a strip of the columns and a share of the rows, which pass through shared memory 16
/// at a time. Each warp has 64 of the columns and sums its part of b's gradient in registers; rows
/// of u's gradient are summed over the block's warps.
namespace dstrain::kernels::cuda {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * kWarp, kStrip = static_cast<int>(kOutputStrip),
              kOwn = kStrip / kWarps, kColumnTiles = kOwn / kTile, kStages = 4;
static_assert(kMaxOutputRank == kTile && kTile * kTile == kThreads);

/// Rows in shared memory are longer than they must be, so that those of a tile lie in different
/// banks.
constexpr int kPitch = kStrip + kPack, kRankPitch = kTile + kPack;

template <typename T>
struct OutputTiles {
  struct Stage {
    T dy[kTile * kPitch];
    T u[kTile * kRankPitch];
  };
  Stage stage[kStages];
  float given[2][kWarps][kTile * kRankPitch];
};

/// The pair of elements of b, whose rows are columns of dy, that a product's right operand has from
/// `column` on.
__device__ std::uint32_t pair_of_b(const LowRankOutputs& a, std::int64_t column, int rank) {
  std::uint32_t pair = 0;
  if (rank >= a.rank) return pair;
  const auto* const from = static_cast<const std::uint16_t*>(a.b) + column * a.rank + rank;
  if (column < a.columns) pair = from[0];
  if (column + 1 < a.columns) pair |= static_cast<std::uint32_t>(from[a.rank]) << 16;
  return pair;
}

template <typename T>
__global__ void __launch_bounds__(kThreads, 2) low_rank_outputs_kernel(const LowRankOutputs a) {
  extern __shared__ uint4 memory[];
  OutputTiles<T>& tiles = *reinterpret_cast<OutputTiles<T>*>(memory);
  const Lane lane;
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t strip = blockIdx.x, first_column = strip * kStrip,
                     own_column = first_column + lane.warp * kOwn;
  const std::int64_t row_tiles = (a.rows + kTile - 1) / kTile,
                     begin = row_tiles * blockIdx.y / gridDim.y,
                     end = row_tiles * (blockIdx.y + 1) / gridDim.y;
  const auto copy = [&](std::int64_t row_tile) {
    if (row_tile < end) {
      auto& to = tiles.stage[(row_tile - begin) % kStages];
      constexpr int kRowPacks = kStrip / kPack, kRankPacks = kTile / kPack;
#pragma unroll
      for (int i = thread; i < kTile * kRowPacks; i += kThreads) {
        const std::int64_t row = row_tile * kTile + i / kRowPacks,
                           column = first_column + i % kRowPacks * kPack;
        const bool inside = row < a.rows && column < a.columns;
        copy_async(to.dy + i / kRowPacks * kPitch + i % kRowPacks * kPack,
                   static_cast<const T*>(a.dy) + (inside ? row * a.dy_stride + column : 0), inside);
      }
      if (thread < kTile * kRankPacks) {
        const std::int64_t row = row_tile * kTile + thread / kRankPacks;
        const int column = thread % kRankPacks * kPack;
        const bool inside = row < a.rows && column < a.rank;
        copy_async(to.u + thread / kRankPacks * kRankPitch + column,
                   static_cast<const T*>(a.u) + (inside ? row * a.u_stride + column : 0), inside);
      }
    }
    end_copies();
  };
#pragma unroll
  for (int s = 0; s < kStages - 1; ++s) copy(begin + s);

  Right b[kColumnTiles];
#pragma unroll
  for (int c = 0; c < kColumnTiles; ++c) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      b[c].value[i] = pair_of_b(a, own_column + c * kTile + i % 2 * kPack + lane.column,
                                i / 2 * kPack + lane.row);
  }
  float db[kColumnTiles][2][4] = {};
  const int own_row = thread / kTile, own_rank = thread % kTile;
  const auto add_up = [&](std::int64_t row_tile) {
    const std::int64_t row = row_tile * kTile + own_row;
    if (row >= a.rows || own_rank >= a.rank) return;
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w)
      sum += tiles.given[(row_tile - begin) % 2][w][own_row * kRankPitch + own_rank];
    a.partial_u[(strip * a.rows + row) * a.rank + own_rank] = sum;
  };
  for (std::int64_t row_tile = begin; row_tile < end; ++row_tile) {
    wait_for_copies<kStages - 2>();
    __syncthreads();
    copy(row_tile + kStages - 1);
    if (row_tile > begin) add_up(row_tile - 1);
    const auto& stage = tiles.stage[(row_tile - begin) % kStages];
    const Left u = Left::of_columns(stage.u, kRankPitch);
    float du[2][4] = {};
#pragma unroll
    for (int c = 0; c < kColumnTiles; ++c) {
      const T* const tile = stage.dy + lane.warp * kOwn + c * kTile;
      const Left rows = Left::of_rows(tile, kPitch);
      const Right columns = Right::of_columns(tile, kPitch);
      multiply_add<T>(du[0], rows, b[c].first());
      multiply_add<T>(du[1], rows, b[c].second());
      multiply_add<T>(db[c][0], u, columns.first());
      multiply_add<T>(db[c][1], u, columns.second());
    }
    float* const to = tiles.given[(row_tile - begin) % 2][lane.warp];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      *reinterpret_cast<float2*>(to + (lane.row + i % 2 * kPack) * kRankPitch + i / 2 * kPack +
                                 lane.column) = {du[i / 2][i % 2 * 2], du[i / 2][i % 2 * 2 + 1]};
  }
  __syncthreads();
  if (begin < end) add_up(end - 1);
  float* const to = a.partial_b + blockIdx.y * a.columns * a.rank;
#pragma unroll
  for (int c = 0; c < kColumnTiles; ++c) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int rank = lane.row + i / 2 % 2 * kPack;
      const std::int64_t column = own_column + c * kTile + i / 4 * kPack + lane.column + i % 2;
      if (rank < a.rank && column < a.columns)
        to[column * a.rank + rank] = a.scale_of_b * db[c][i / 4][i % 4];
    }
  }
}

/// A thread sums four neighbours of u's gradient.
constexpr int kSumThreads = 128, kAtOnce = 4;
template <typename T>
__global__ void __launch_bounds__(kSumThreads)
    low_rank_outputs_sum_kernel(const LowRankOutputs a, int strips) {
  const std::int64_t quads = a.rows * a.rank / kAtOnce,
                     quad = static_cast<std::int64_t>(blockIdx.x) * kSumThreads + threadIdx.x;
  if (quad >= quads) return;
  float4 sum = {};
  for (int s = 0; s < strips; ++s) {
    const float4 part = reinterpret_cast<const float4*>(a.partial_u)[s * quads + quad];
    sum.x += part.x;
    sum.y += part.y;
    sum.z += part.z;
    sum.w += part.w;
  }
  const std::int64_t row = quad * kAtOnce / a.rank, column = quad * kAtOnce % a.rank;
  *reinterpret_cast<uint2*>(static_cast<T*>(a.du) + row * a.u_stride + column) = {
      pack_pair<T>(a.scale * sum.x, a.scale * sum.y),
      pack_pair<T>(a.scale * sum.z, a.scale * sum.w)};
}

template <typename T>
void launch(const LowRankOutputs& a, cudaStream_t stream) {
  constexpr auto kKernel = low_rank_outputs_kernel<T>;
  allow_shared(kKernel, "low_rank_outputs", sizeof(OutputTiles<T>));
  const std::int64_t strips = low_rank_strips(a.columns);
  const dim3 blocks(static_cast<unsigned>(strips),
                    static_cast<unsigned>(low_rank_output_splits(a.rows, a.columns)));
  kKernel<<<blocks, kThreads, sizeof(OutputTiles<T>), stream>>>(a);
  low_rank_outputs_sum_kernel<T>
      <<<blocks_for(a.rows * a.rank / kAtOnce, kSumThreads), kSumThreads, 0, stream>>>(
          a, static_cast<int>(strips));
}

}  // namespace

bool low_rank_outputs_fit() { return gpu_limits().shared_block >= sizeof(OutputTiles<__half>); }

void low_rank_outputs(const LowRankOutputs& args, cudaStream_t stream) {
  if (args.rows == 0) return;
  check_products("low_rank_outputs", args.dtype);
  args.dtype == DType::bf16 ? launch<__nv_bfloat16>(args, stream) : launch<__half>(args, stream);
  check_launch("low_rank_outputs");
}

}  // namespace dstrain::kernels::cuda
