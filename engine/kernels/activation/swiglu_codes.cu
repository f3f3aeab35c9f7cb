#include <string>

#include "engine/kernels/activation/kernels.h"
#include "engine/kernels/activation/swiglu.cuh"
#include "engine/kernels/device.cuh"
#include "engine/kernels/linear/fp8.cuh"

/// The gated activation around products in eight bits: largest values found on the way, and
/// gradients written as codes.
namespace dstrain::kernels::cuda {
namespace {

constexpr int kThreads = 256;

/// The packs of [rows, packs] that a thread of kAbsMaxPartials blocks has, without a division for
/// each.
class Walk {
 public:
  __device__ Walk(std::int64_t rows, std::int64_t packs)
      : rows_(rows), packs_(packs), row_step_(kStride / packs), pack_step_(kStride % packs) {
    const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    row_ = first / packs;
    pack_ = first % packs;
  }
  /// How many they are.
  __device__ std::int64_t count() const {
    const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    return (rows_ * packs_ - first + kStride - 1) / kStride;
  }
  __device__ void next() {
    row_ += row_step_;
    pack_ += pack_step_;
    if (pack_ >= packs_) {
      pack_ -= packs_;
      ++row_;
    }
  }
  /// Pack of h; of gate in rows of gate and up, up follows by `packs`.
  __device__ std::int64_t of_h() const { return row_ * packs_ + pack_; }
  __device__ std::int64_t of_gate() const { return 2 * row_ * packs_ + pack_; }

 private:
  static constexpr std::int64_t kStride = kAbsMaxPartials * kThreads;
  std::int64_t rows_, packs_, row_step_, pack_step_, row_, pack_;
};

__device__ void store_max(float max, float* partial) {
  __shared__ float shared[kWarp];
  max = block_max(max, shared);
  if (threadIdx.x == 0) partial[blockIdx.x] = max;
}

template <typename T, GateActivation kActivation>
__global__ void __launch_bounds__(kThreads) swiglu_measured_kernel(const Swiglu a) {
  const std::int64_t packs = a.cols / kPack;
  float max = 0, gain = 0;
  Walk walk(a.rows, packs);
  constexpr int kAtOnce = 2;  // reads that need not wait for the write before
  for (std::int64_t left = walk.count(); left > 0; left -= kAtOnce) {
    Pack<T> gates[kAtOnce], ups[kAtOnce];
    std::int64_t at_h[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k, walk.next()) {
      at_h[k] = walk.of_h();
      if (k >= left) continue;
      gates[k] = load<T, kPack>(a.gate_up, walk.of_gate());
      ups[k] = load<T, kPack>(a.gate_up, walk.of_gate() + packs);
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      if (k >= left) continue;
      float gate[kPack], up[kPack];
      gates[k].unpack(gate);
      ups[k].unpack(up);
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        const float opened = activated<T, kActivation>(gate[i]).y;
        gain = fmaxf(gain, fmaxf(gate_slope(kActivation) * fabsf(up[i]), fabsf(opened)));
        gate[i] = opened * up[i];
        max = fmaxf(max, fabsf(gate[i]));
      }
      store(a.h, at_h[k], Pack<T>::of(gate));
    }
  }
  store_max(to_float(from_float<T>(max)), a.partial);  // rounding keeps the order
  if (a.gains == nullptr) return;
  __syncthreads();  // the block's shared words are read no more
  store_max(gain, a.gains);
}

constexpr int kTileCols = 64;
constexpr int kTilePacks = kTileCols / kPack, kTileWords = kTileCols / 4;

/// As T holds it.
template <typename T>
__device__ void round_to(float (&x)[kPack]) {
  Pack<T>::of(x).unpack(x);
}

/// A block has one tile of gate, of up and of h.
template <typename T, GateActivation kActivation>
__global__ void __launch_bounds__(kThreads) swiglu_codes_kernel(const SwigluCodes a) {
  enum Part { kGate, kUp, kHidden, kParts };
  __shared__ float shared[kWarp];
  __shared__ std::uint32_t tiles[kParts][kCodeRows * kTileWords];
  const float gain = largest_of(a.gains, shared);
  const float factor = 1.0f / scale_of<Fp8Format::e5m2>(a.maxima, a.scale, shared, gain);
  const float h_factor = a.h_t != nullptr ? 1.0f / *a.h_scale : 0.0f;
  const std::int64_t top = static_cast<std::int64_t>(blockIdx.y) * kCodeRows,
                     left = static_cast<std::int64_t>(blockIdx.x) * kTileCols;
#pragma unroll 2
  for (int i = static_cast<int>(threadIdx.x); i < kCodeRows * kTilePacks; i += kThreads) {
    const int row = i / kTilePacks, pack = i % kTilePacks;
    const std::int64_t y = top + row, x = left + pack * kPack;
    if (y >= a.rows || x >= a.cols) continue;
    const std::int64_t at_h = (y * a.cols + x) / kPack, at_gate = at_h + y * (a.cols / kPack),
                       at_up = at_gate + a.cols / kPack;
    float gate[kPack], up[kPack], grad[kPack];
    load<T, kPack>(a.gate_up, at_gate).unpack(gate);
    load<T, kPack>(a.gate_up, at_up).unpack(up);
    load<T, kPack>(a.grad_h, at_h).unpack(grad);
#pragma unroll
    for (int k = 0; k < kPack; ++k) {
      const GatedGradient made = gated_gradient<T, kActivation>(gate[k], up[k], grad[k]);
      gate[k] = made.gate;
      up[k] = made.up;
      grad[k] = made.h;
    }
    round_to<T>(gate);
    round_to<T>(up);
    round_to<T>(grad);
    const Codes gate_codes = codes_of<Fp8Format::e5m2>(gate, factor),
                up_codes = codes_of<Fp8Format::e5m2>(up, factor);
    if (a.out != nullptr) {
      reinterpret_cast<Codes*>(a.out)[at_gate] = gate_codes;
      reinterpret_cast<Codes*>(a.out)[at_up] = up_codes;
    }
    put<kTileWords>(tiles[kGate], row, pack, gate_codes);
    put<kTileWords>(tiles[kUp], row, pack, up_codes);
    put<kTileWords>(tiles[kHidden], row, pack, codes_of<Fp8Format::e4m3>(grad, h_factor));
  }
  __syncthreads();
  constexpr int kGroups = kTileWords / kWordsOfWarp;
  for (int task = static_cast<int>(threadIdx.x) / kWarp; task < kParts * kGroups;
       task += kThreads / kWarp) {
    const int part = task / kGroups;
    std::uint8_t* out = part == kHidden ? a.h_t : a.out_t;
    if (out == nullptr) continue;
    if (part == kUp) out += a.cols * a.rows;
    store_columns<kTileWords>(tiles[part], task % kGroups, out,
                              {.top = top, .left = left, .rows = a.rows, .cols = a.cols});
  }
}

void require_multiple(const char* kernel, std::int64_t cols, std::int64_t unit) {
  if (cols % unit == 0) return;
  throw Error(ErrorKind::internal, std::string(kernel) + " of " + std::to_string(cols) + " columns",
              "a multiple of " + std::to_string(unit) + " works");
}

}  // namespace

void swiglu_measured(const Swiglu& args, cudaStream_t stream) {
  require_multiple("swiglu", args.cols, kPack);
  with_type(args.dtype, [&](auto zero) {
    with_gate(args.gate, [&](auto gate) {
      swiglu_measured_kernel<decltype(zero), decltype(gate)::value>
          <<<static_cast<unsigned>(kAbsMaxPartials), kThreads, 0, stream>>>(args);
    });
  });
  check_launch("swiglu");
}

void swiglu_codes(const SwigluCodes& args, cudaStream_t stream) {
  if (args.rows == 0 || args.cols == 0) return;
  require_multiple("swiglu_codes", args.cols, kStrip);
  const dim3 grid(blocks_for(args.cols, kTileCols), blocks_for(args.rows, kCodeRows));
  with_type(args.dtype, [&](auto zero) {
    with_gate(args.gate, [&](auto gate) {
      swiglu_codes_kernel<decltype(zero), decltype(gate)::value>
          <<<grid, kThreads, 0, stream>>>(args);
    });
  });
  check_launch("swiglu_codes");
}

}  // namespace dstrain::kernels::cuda
