#include "engine/kernels/activation/swiglu.cuh"
#include "engine/kernels/linear/low_rank.cuh"

/// The gradient of a gate through a low-rank term, with the arithmetic of swiglu_backward and the
/// operands of low_rank_gradients. At a GPU's limit of power the clock falls, so that instructions
/// count: addresses are kept and moved on, and masks are code of their own.
namespace dstrain::kernels::cuda {
namespace {

constexpr int kGateWarps = kLowRankColumns / kSpan;

/// A lane's packs of one row.
struct GatePacks {
  uint4 gate, up, grad_h;
};

/// Makes of them the gradients of gate and up, and h. `more` is added to h's gradient, two elements
/// of each of four tiles.
template <typename T, GateActivation kActivation>
__device__ __forceinline__ GatePacks through_gate(const GatePacks& read, const float (&more)[4][4],
                                                  int below) {
  GatePacks made;
  const auto* const gates = reinterpret_cast<const std::uint32_t*>(&read.gate);
  const auto* const ups = reinterpret_cast<const std::uint32_t*>(&read.up);
  const auto* const grads = reinterpret_cast<const std::uint32_t*>(&read.grad_h);
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const float2 g = unpack_pair<T>(gates[j]), u = unpack_pair<T>(ups[j]),
                 dh = unpack_pair<T>(grads[j]);
    const GatedGradient low = gated_gradient<T, kActivation>(g.x, u.x, dh.x + more[j][2 * below]),
                        high =
                            gated_gradient<T, kActivation>(g.y, u.y, dh.y + more[j][2 * below + 1]);
    reinterpret_cast<std::uint32_t*>(&made.gate)[j] = pack_pair<T>(low.gate, high.gate);
    reinterpret_cast<std::uint32_t*>(&made.up)[j] = pack_pair<T>(low.up, high.up);
    reinterpret_cast<std::uint32_t*>(&made.grad_h)[j] = pack_pair<T>(low.h, high.h);
  }
  return made;
}

__device__ __forceinline__ uint4 read_if(bool wanted, const uint4* from) {
  return wanted ? *from : uint4{};
}

/// A block has 128 columns of h, 32 a warp, and goes over its share of the rows.
template <typename T, GateActivation kActivation, int kTiles, bool kDrops>
__global__ void __launch_bounds__(kGateWarps* kWarp, 3) low_rank_gate_kernel(const LowRankGate a) {
  __shared__ BlockParts<kTile> block;
  __shared__ uint2 right_of_a[kGateWarps][kTiles][4][kWarp];
  block.template fill<T>(a.parts, a.columns);
  const Lane lane;
  const std::int64_t own_column = static_cast<std::int64_t>(blockIdx.x) * kLowRankColumns +
                                  lane.warp * kSpan + lane.index % 4 * kPack;
  const bool inside = own_column < a.columns;
  const std::int64_t column = inside ? own_column : 0;
#pragma unroll
  for (int t = 0; t < kTiles; ++t)
    keep_right_of_a<T>(block, t, lane, a.columns, column, inside, right_of_a[lane.warp][t]);
  const std::int64_t tiles = (a.rows + kTile - 1) / kTile,
                     begin = tiles * blockIdx.y / gridDim.y * kTile,
                     end_of_tiles = tiles * (blockIdx.y + 1) / gridDim.y * kTile,
                     end = end_of_tiles < a.rows ? end_of_tiles : a.rows;
  const int count = static_cast<int>(end - begin);

  // In packs: where a lane's rows `row` and row + 8 of a tile lie, and from tile to tile.
  const std::int64_t row_packs = a.columns / kPack, first = (begin + lane.row) * row_packs,
                     below = kHalf * row_packs;
  const uint4* gate = static_cast<const uint4*>(a.gate_up) + 2 * first + column / kPack;
  const uint4* grad_h = static_cast<const uint4*>(a.grad_h) + first + column / kPack;
  uint4* to = static_cast<uint4*>(a.grad_gate_up) + 2 * first + column / kPack;
  const T* du_row = static_cast<const T*>(a.du) + (begin + lane.row) * a.u_stride + lane.column;
  const std::int64_t du_below = kHalf * a.u_stride;
  constexpr int kAhead = kTiles == 1 ? 2 : 1, kAtOnce = kAhead;  // as registers allow
  GatePacks ahead[kAhead][2];
  Left du_ahead[kTiles];
  int read_left = count - lane.row, du_left = read_left;  // rows from this lane's on
  const auto read = [&](GatePacks(&packs)[2]) {
    const bool low = read_left > 0, high = read_left > kHalf;
    packs[0] = {read_if(low, gate), read_if(low, gate + row_packs), read_if(low, grad_h)};
    packs[1] = {read_if(high, gate + 2 * below), read_if(high, gate + 2 * below + row_packs),
                read_if(high, grad_h + below)};
    gate += 4 * below;
    grad_h += 2 * below;
    read_left -= kTile;
  };
  const auto read_du = [&] {
    const bool low = du_left > 0, high = du_left > kHalf;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const T* const from = du_row + block.column[t];
      const bool wide = block.count[t] > kHalf;
      du_ahead[t] = {{low ? pair_at(from) : 0u, high ? pair_at(from + du_below) : 0u,
                      low && wide ? pair_at(from + kHalf) : 0u,
                      high && wide ? pair_at(from + du_below + kHalf) : 0u}};
    }
    du_row += 2 * du_below;
    du_left -= kTile;
  };
  float sums[kTiles][4][4] = {};
  read_du();
#pragma unroll
  for (int k = 0; k < kAhead; ++k) read(ahead[k]);
#pragma unroll kAtOnce
  for (int from = 0; from < count; from += kTile) {
    const GatePacks now[2] = {ahead[0][0], ahead[0][1]};
    Left du[kTiles];
#pragma unroll
    for (int t = 0; t < kTiles; ++t) du[t] = du_ahead[t];
#pragma unroll
    for (int k = 1; k < kAhead; ++k) {
      ahead[k - 1][0] = ahead[k][0];
      ahead[k - 1][1] = ahead[k][1];
    }
    read(ahead[kAhead - 1]);
    read_du();
    float more[4][4] = {};
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint2 right = right_of_a[lane.warp][t][j][lane.index];
        multiply_add<T>(more[j], du[t], {{right.x, right.y}});
      }
    }
    uint4 kept[2];
    if constexpr (kDrops) {
      const BlockPart& part = block.part[0];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = from + lane.row + i * kHalf;
        kept[i] = kept_of(part, begin + (row < count ? row : count - 1), column);
        const auto* const words = reinterpret_cast<const std::uint32_t*>(&kept[i]);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          more[j][2 * i] = (words[j] & 0xFFFFu) != 0 ? part.factor * more[j][2 * i] : 0;
          more[j][2 * i + 1] = (words[j] & 0xFFFF0000u) != 0 ? part.factor * more[j][2 * i + 1] : 0;
        }
      }
    }
    const int left = count - from - lane.row;
    uint4 h[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const GatePacks made = through_gate<T, kActivation>(now[i], more, i);
      h[i] = kDrops ? masked(made.grad_h, kept[i]) : made.grad_h;
      if (inside && left > i * kHalf) {
        to[i * 2 * below] = made.gate;
        to[i * 2 * below + row_packs] = made.up;
      }
    }
    to += 4 * below;
    const RightHalf of_h[4] = {{{transposed(h[0].x), transposed(h[1].x)}},
                               {{transposed(h[0].y), transposed(h[1].y)}},
                               {{transposed(h[0].z), transposed(h[1].z)}},
                               {{transposed(h[0].w), transposed(h[1].w)}}};
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const Left ranks = {{transposed(du[t].value[0]), transposed(du[t].value[2]),
                           transposed(du[t].value[1]), transposed(du[t].value[3])}};
#pragma unroll
      for (int j = 0; j < 4; ++j) multiply_add<T>(sums[t][j], ranks, of_h[j]);
    }
  }
  if (a.partial == nullptr || !inside) return;
  const LowRankPart& part = a.parts.part[0];
  const float scale = part.scale_of_a * block.part[0].factor;
#pragma unroll
  for (int t = 0; t < kTiles; ++t)
    write_sums(block, t, lane, part, scale, a.columns, column, sums[t], a.partial);
}

template <typename T, GateActivation kActivation, int kTiles>
void launch(const LowRankGate& a, cudaStream_t stream) {
  const dim3 blocks(blocks_for(a.columns, kLowRankColumns),
                    static_cast<unsigned>(low_rank_splits(a.rows, a.columns)));
  const auto kernel = a.parts.part[0].share > 0
                          ? low_rank_gate_kernel<T, kActivation, kTiles, true>
                          : low_rank_gate_kernel<T, kActivation, kTiles, false>;
  kernel<<<blocks, kGateWarps * kWarp, 0, stream>>>(a);
}

template <typename T>
void launch(const LowRankGate& a, cudaStream_t stream) {
  with_gate(a.gate, [&](auto gate) {
    with_tiles(a.parts, [&](auto tiles) {
      launch<T, decltype(gate)::value, decltype(tiles)::value>(a, stream);
    });
  });
}

}  // namespace

void low_rank_gate(const LowRankGate& args, cudaStream_t stream) {
  if (args.rows == 0) return;
  check_products("low_rank_gate", args.dtype);
  args.dtype == DType::bf16 ? launch<__nv_bfloat16>(args, stream) : launch<__half>(args, stream);
  check_launch("low_rank_gate");
}

}  // namespace dstrain::kernels::cuda
