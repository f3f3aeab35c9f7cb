#include "engine/kernels/attention/kernels.h"
#include "engine/kernels/device.cuh"

/// Kernels before and after attention: rotary positions, heads stretched for linear biases,
/// gradients to packed rows. The softmax itself is a library's.
namespace dstrain::kernels::cuda {
namespace {

constexpr int kThreads = 256;

/// Which unit of work of which row a thread has; units of one row are neighbours.
struct Task {
  std::int64_t row;
  int unit;
  __device__ Task(std::int64_t index, int units_per_row)
      : row(index / units_per_row), unit(static_cast<int>(index - row * units_per_row)) {}
};

__device__ inline std::int64_t task_index() {
  return static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
}

__device__ inline std::int64_t position_of(const std::int32_t* positions, std::int64_t row,
                                           std::int64_t tokens) {
  return positions != nullptr ? positions[row] : row % tokens;
}

/// Cosine and sine for the elements of one pack and their partners half a head behind.
class Turn {
 public:
  /// `packs` is half a head.
  __device__ Turn(const float* table, std::int64_t position, int packs, int pack)
      : angles_(load<float, 2 * kPack>(table, position * packs + pack)) {}

  template <typename T, bool kBack>
  __device__ void apply(Pack<T>& low, Pack<T>& high) const {
    float a[kPack], b[kPack];
    low.unpack(a);
    high.unpack(b);
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      const float cosine = angles_.value[2 * i];
      const float sine = kBack ? -angles_.value[2 * i + 1] : angles_.value[2 * i + 1];
      const float first = a[i];
      a[i] = first * cosine - b[i] * sine;
      b[i] = b[i] * cosine + first * sine;
    }
    low = Pack<T>::of(a);
    high = Pack<T>::of(b);
  }

 private:
  Pack<float, 2 * kPack> angles_;
};

/// A thread turns the same elements of two heads of a row, so that angles are read once for both.
template <typename T, bool kBack>
__global__ void __launch_bounds__(kThreads)
    rotate_heads_kernel(const RotateHeads a, std::int64_t count) {
  const std::int64_t index = task_index();
  if (index >= count) return;
  const int packs = static_cast<int>(a.layout.head_dim) / (2 * kPack);
  const int heads = static_cast<int>(a.layout.heads + a.layout.kv_heads), pairs = (heads + 1) / 2;
  const Task task(index, pairs * packs);
  const int pack = task.unit % packs, pair = task.unit / packs;
  const Turn turn(a.table, position_of(a.positions, task.row, a.tokens), packs, pack);
  const auto place = [&](int head) {
    const std::int64_t slot =
        a.layout.slot(head < a.layout.heads ? HeadLayout::Place{0, head}
                                            : HeadLayout::Place{1, head - a.layout.heads});
    return (task.row * a.layout.slots() + slot) * 2 * packs + pack;
  };
  const bool both = pair + pairs < heads;
  const std::int64_t one = place(pair), other = place(both ? pair + pairs : pair);
  Pack<T> low[2], high[2];
  low[0] = load<T, kPack>(a.qkv, one);
  high[0] = load<T, kPack>(a.qkv, one + packs);
  if (both) {
    low[1] = load<T, kPack>(a.qkv, other);
    high[1] = load<T, kPack>(a.qkv, other + packs);
  }
  turn.apply<T, kBack>(low[0], high[0]);
  store(a.qkv, one, low[0]);
  store(a.qkv, one + packs, high[0]);
  if (both) {
    turn.apply<T, kBack>(low[1], high[1]);
    store(a.qkv, other, low[1]);
    store(a.qkv, other + packs, high[1]);
  }
}

/// Threads go over the elements of the rows written, a pack each, or a pack and its partner.
template <typename T, bool kTurn>
__global__ void __launch_bounds__(kThreads)
    pack_heads_kernel(const PackHeads a, std::int64_t count) {
  const std::int64_t index = task_index();
  if (index >= count) return;
  const int packs = static_cast<int>(a.layout.head_dim) / (kTurn ? 2 * kPack : kPack);
  const int slots = static_cast<int>(a.layout.slots());
  const Task task(index, slots * packs);
  const int pack = task.unit % packs, slot = task.unit / packs;
  const HeadLayout::Place place = a.layout.place(slot);
  const std::int64_t image = task.row / a.tokens, token = task.row - image * a.tokens;
  const auto& stride = a.stride[place.part];
  const void* source = a.source[place.part];
  const std::int64_t from =
      (image * stride[0] + place.head * stride[1] + token * stride[2]) / kPack + pack;
  const std::int64_t head_packs = kTurn ? 2 * packs : packs;
  const std::int64_t to = (task.row * slots + slot) * head_packs + pack;
  Pack<T> low = load<T, kPack>(source, from);
  if constexpr (kTurn) {
    Pack<T> high = load<T, kPack>(source, from + packs);
    if (place.part < 2) {
      const std::int64_t position = a.positions != nullptr ? a.positions[task.row] : token;
      Turn(a.table, position, packs, pack).template apply<T, true>(low, high);
    }
    store(a.out, to + packs, high);
  }
  store(a.out, to, low);
}

__device__ inline float slope_of(int head, int heads) {
  const int power = 1 << (31 - __clz(heads));
  const float exponent = head < power ? 8.0f * static_cast<float>(head + 1)
                                      : 4.0f * static_cast<float>(2 * (head - power) + 1);
  return exp2f(-exponent / static_cast<float>(power));
}

/// A thread writes one pack of a stretched head: its own elements, or what stands behind them.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    stretch_heads_kernel(const StretchHeads a, std::int64_t count) {
  const std::int64_t index = task_index();
  if (index >= count) return;
  const int own = static_cast<int>(a.layout.head_dim) / kPack;
  const int packs = static_cast<int>(a.stretched) / kPack;
  const int heads = static_cast<int>(a.layout.heads),
            kv_heads = static_cast<int>(a.layout.kv_heads);
  const Task task(index, (heads + (a.value != nullptr ? 2 : 1) * kv_heads) * packs);
  const int pack = task.unit % packs;
  int part = 0, head = task.unit / packs;
  if (head >= heads) {
    head -= heads;
    part = head < kv_heads ? 1 : 2;
    if (part == 2) head -= kv_heads;
  }
  void* out = part == 0 ? a.query : part == 1 ? a.key : a.value;
  const std::int64_t to = (task.row * (part == 0 ? heads : kv_heads) + head) * packs + pack;
  if (pack < own) {
    const std::int64_t slot = a.layout.slot({part, head});
    store(out, to, load<T, kPack>(a.qkv, (task.row * a.layout.slots() + slot) * own + pack));
    return;
  }
  float behind[kPack] = {};
  if (pack == own && part == 0) {
    const float slope =
        slope_of(static_cast<int>(a.first_head) + head, static_cast<int>(a.model_heads)) *
        a.inverse_scale;
    const float high = to_float(from_float<T>(slope)), low = slope - high;
    behind[0] = 256 * high;
    behind[1] = high;
    behind[2] = 256 * low;
    behind[3] = low;
  } else if (pack == own && part == 1) {
    const auto position = static_cast<int>(position_of(a.positions, task.row, a.tokens));
    behind[0] = behind[2] = static_cast<float>(position / 256);
    behind[1] = behind[3] = static_cast<float>(position % 256);
  }
  store(out, to, Pack<T>::of(behind));
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    resize_rows_kernel(const ResizeRows a, std::int64_t count) {
  const std::int64_t index = task_index();
  if (index >= count) return;
  const int from = static_cast<int>(a.from) / kPack, to = static_cast<int>(a.to) / kPack;
  const Task task(index, to);
  const float zeros[kPack] = {};
  store(a.out, index,
        task.unit < from ? load<T, kPack>(a.source, task.row * from + task.unit)
                         : Pack<T>::of(zeros));
}

}  // namespace

void rotate_heads(const RotateHeads& args, cudaStream_t stream) {
  require_taken(head_dims(/*turned=*/true), args.layout.head_dim, "rotate_heads, head_dim");
  const std::int64_t pairs = (args.layout.heads + args.layout.kv_heads + 1) / 2;
  const std::int64_t count = args.rows * pairs * args.layout.head_dim / (2 * kPack);
  if (count == 0) return;
  with_type(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    const unsigned blocks = blocks_for(count, kThreads);
    if (args.back) {
      rotate_heads_kernel<T, true><<<blocks, kThreads, 0, stream>>>(args, count);
    } else {
      rotate_heads_kernel<T, false><<<blocks, kThreads, 0, stream>>>(args, count);
    }
  });
  check_launch("rotate_heads");
}

void pack_heads(const PackHeads& args, cudaStream_t stream) {
  const std::int64_t moved = args.table != nullptr ? 2 * kPack : kPack;
  require_taken(head_dims(args.table != nullptr), args.layout.head_dim, "pack_heads, head_dim");
  for (const auto& strides : args.stride) {
    for (const std::int64_t stride : strides)
      DSTRAIN_CHECK(stride % kPack == 0, "pack_heads: a stride is no multiple of 8");
  }
  const std::int64_t count = args.batch * args.tokens * args.layout.width() / moved;
  if (count == 0) return;
  with_type(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    const unsigned blocks = blocks_for(count, kThreads);
    if (args.table != nullptr) {
      pack_heads_kernel<T, true><<<blocks, kThreads, 0, stream>>>(args, count);
    } else {
      pack_heads_kernel<T, false><<<blocks, kThreads, 0, stream>>>(args, count);
    }
  });
  check_launch("pack_heads");
}

void stretch_heads(const StretchHeads& args, cudaStream_t stream) {
  require_taken(head_dims(/*turned=*/false), args.layout.head_dim, "stretch_heads, head_dim");
  require_taken(head_dims(/*turned=*/false), args.stretched, "stretch_heads, stretched");
  const std::int64_t heads =
      args.layout.heads + (args.value != nullptr ? 2 : 1) * args.layout.kv_heads;
  const std::int64_t count = args.rows * heads * args.stretched / kPack;
  if (count == 0) return;
  with_type(args.dtype, [&](auto zero) {
    stretch_heads_kernel<decltype(zero)>
        <<<blocks_for(count, kThreads), kThreads, 0, stream>>>(args, count);
  });
  check_launch("stretch_heads");
}

void resize_rows(const ResizeRows& args, cudaStream_t stream) {
  require_taken(head_dims(/*turned=*/false), args.from, "resize_rows, from");
  require_taken(head_dims(/*turned=*/false), args.to, "resize_rows, to");
  const std::int64_t count = args.rows * args.to / kPack;
  if (count == 0) return;
  with_type(args.dtype, [&](auto zero) {
    resize_rows_kernel<decltype(zero)>
        <<<blocks_for(count, kThreads), kThreads, 0, stream>>>(args, count);
  });
  check_launch("resize_rows");
}

}  // namespace dstrain::kernels::cuda
