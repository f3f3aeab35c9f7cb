#include <cuda_pipeline.h>

#include "engine/kernels/attention/short_attention.cuh"

/// A block holds one head's keys and values (or, for gradients of these, queries and gradients of
/// the output) in shared memory; a warp works on 16 rows of the other side at a time.
namespace dstrain::kernels {
namespace {

/// Warps of a block, and how many blocks a multiprocessor's registers are shared by.
constexpr int kWarps = kShortAttentionWarps, kBlocks = 2;
constexpr int kThreads = kWarps * cuda::kWarp;
constexpr std::int64_t kMaxTokens = 320;

/// Rows of one operand in shared memory: 8 elements of room keep the reads of 8 rows in different
/// banks.
template <int kWidth>
constexpr int kPitch = kWidth + 8;

__host__ __device__ inline int tiles_of(int tokens) {
  return (tokens + cuda::kTile - 1) / cuda::kTile;
}

}  // namespace

std::int64_t short_attention_max_tokens(std::int64_t head_dim, const GpuLimits& limits) {
  if (head_dim != 64 && head_dim != 80) return 0;
  std::int64_t tokens = kMaxTokens;
  while (tokens > 0 &&
         short_attention_backward_bytes(tokens, head_dim, false) > limits.shared_block)
    tokens -= cuda::kTile;
  return tokens;
}

namespace cuda {
namespace {

static_assert(kTile == kShortAttentionTile && sizeof(RowFacts) == 2 * sizeof(float));

/// Copies `tokens` rows to shared memory, zeros behind them up to a whole tile; to be waited for.
template <typename T, int kWidth>
__device__ void fetch(T* shared, const Head<T>& head, int tokens, int tiles) {
  constexpr int kPacks = kWidth / kPack;
  for (int i = static_cast<int>(threadIdx.x); i < tiles * kTile * kPacks; i += kThreads) {
    const int row = i / kPacks, pack = i - row * kPacks;
    T* to = shared + row * kPitch<kWidth> + pack * kPack;
    if (row < tokens) {
      __pipeline_memcpy_async(to, head.rows + row * head.stride + pack * kPack, 16);
    } else {
      *reinterpret_cast<uint4*>(to) = uint4{0, 0, 0, 0};
    }
  }
}

__device__ inline void wait_for_fetch() {
  __pipeline_commit();
  __pipeline_wait_prior(0);
  __syncthreads();
}

/// A warp's 16 rows of a head between memory and the operands of products: kStaged, by way of the
/// warp's `room` of 16 rows in shared memory, so that whole rows move; else word by word, which
/// leaves more of the L1 cache.
template <typename T, int kWidth, bool kStaged>
class Rows {
 public:
  /// From row `first` on; zeros behind the last token.
  __device__ Rows(const Head<T>& head, int first, int tokens) {
    if constexpr (kStaged) {
#pragma unroll
      for (int i = 0; i < kMoves; ++i) {
        const Place place(i);
        packs_[i] = first + place.row < tokens
                        ? *reinterpret_cast<const uint4*>(
                              head.rows + (first + place.row) * head.stride + place.column)
                        : uint4{0, 0, 0, 0};
      }
    } else {
      const Lane lane;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = first + lane.row + i % 2 * 8;
        const T* from = head.rows + row * head.stride + lane.column + i / 2 * 8;
#pragma unroll
        for (int k = 0; k < kWidth / kTile; ++k)
          words_[k].value[i] = row < tokens ? pair_at(from + k * kTile) : 0;
      }
    }
  }

  __device__ void to(Left (&left)[kWidth / kTile], T* room) const {
    if constexpr (kStaged) {
#pragma unroll
      for (int i = 0; i < kMoves; ++i) *reinterpret_cast<uint4*>(Place(i).in(room)) = packs_[i];
      __syncwarp();
    }
#pragma unroll
    for (int k = 0; k < kWidth / kTile; ++k)
      left[k] = kStaged ? Left::of_rows(room + k * kTile, kPitch<kWidth>) : words_[k];
    __syncwarp();
  }

  /// Sums times the scale of their rows (row and row + 8 of a lane) to the rows from `first` on.
  __device__ static void store(const Head<T>& head, const float (&sums)[kWidth / 8][4],
                               float low_scale, float high_scale, int first, int tokens, T* room) {
    const Lane lane;
    const bool has_low = kStaged || first + lane.row < tokens;
    const bool has_high = kStaged || first + lane.row + 8 < tokens;
    const std::int64_t stride = kStaged ? kPitch<kWidth> : head.stride;
    T* low = kStaged ? room + lane.row * stride : head.rows + (first + lane.row) * stride;
#pragma unroll
    for (int n = 0; n < kWidth / 8; ++n) {
      T* to = low + n * 8 + lane.column;
      if (has_low) store_pair(to, sums[n][0] * low_scale, sums[n][1] * low_scale);
      if (has_high) store_pair(to + 8 * stride, sums[n][2] * high_scale, sums[n][3] * high_scale);
    }
    if constexpr (kStaged) {
      __syncwarp();
#pragma unroll
      for (int i = 0; i < kMoves; ++i) {
        const Place place(i);
        if (first + place.row < tokens)
          *reinterpret_cast<uint4*>(head.rows + (first + place.row) * head.stride + place.column) =
              *reinterpret_cast<const uint4*>(place.in(room));
      }
      __syncwarp();
    }
  }

 private:
  static constexpr int kMoves = kTile * kWidth / kPack / kWarp;  ///< packs that a lane moves

  /// Where a lane's i-th pack lies.
  struct Place {
    int row, column;
    __device__ explicit Place(int i) {
      const int pack = static_cast<int>(threadIdx.x) % kWarp + i * kWarp;
      row = pack / (kWidth / kPack);
      column = (pack - row * (kWidth / kPack)) * kPack;
    }
    __device__ T* in(T* room) const { return room + row * kPitch<kWidth> + column; }
  };

  uint4 packs_[kStaged ? kMoves : 1];
  Left words_[kStaged ? 1 : kWidth / kTile];
};

/// products [16, 16] = rows * (16 rows of `shared`)^T.
template <typename T, int kWidth>
__device__ void multiply_by_rows(float (&products)[2][4], const Left (&rows)[kWidth / kTile],
                                 const T* shared) {
#pragma unroll
  for (float& x : products[0]) x = 0;
#pragma unroll
  for (float& x : products[1]) x = 0;
#pragma unroll
  for (int k = 0; k < kWidth / kTile; ++k) {
    const Right right = Right::of_rows(shared + k * kTile, kPitch<kWidth>);
    multiply_add<T>(products[0], rows[k], right.first());
    multiply_add<T>(products[1], rows[k], right.second());
  }
}

/// sums [16, kWidth] += weights [16, 16] * (16 rows of `shared`).
template <typename T, int kWidth>
__device__ void add_weighted_rows(float (&sums)[kWidth / 8][4], const Left& weights,
                                  const T* shared) {
#pragma unroll
  for (int n = 0; n < kWidth / kTile; ++n) {
    const Right right = Right::of_columns(shared + n * kTile, kPitch<kWidth>);
    multiply_add<T>(sums[2 * n], weights, right.first());
    multiply_add<T>(sums[2 * n + 1], weights, right.second());
  }
}

constexpr int kStep = 4;  ///< tiles of keys between two looks at the largest score

template <typename T, int kWidth, bool kStaged>
__global__ void __launch_bounds__(kThreads, kBlocks)
    short_attention_kernel(const ShortAttention a) {
  extern __shared__ __align__(16) char shared[];
  const int tokens = static_cast<int>(a.tokens), tiles = tiles_of(tokens);
  T* keys = reinterpret_cast<T*>(shared);
  T* values = keys + tiles * kTile * kPitch<kWidth>;
  const Lane lane;
  T* room = values + (tiles + lane.warp) * kTile * kPitch<kWidth>;
  const std::int64_t sample = blockIdx.x / a.heads, number = blockIdx.x - sample * a.heads;
  fetch<T, kWidth>(keys, {a.key, sample, number}, tokens, tiles);
  fetch<T, kWidth>(values, {a.value, sample, number}, tokens, tiles);
  const Head<T> query(a.query, sample, number), out(a.out, sample, number);
  float* log_sum_exp = a.log_sum_exp + blockIdx.x * a.tokens;
  const float scale = a.scale * kLog2E;
  wait_for_fetch();
  for (int tile = lane.warp; tile < tiles; tile += kWarps) {
    Left rows[kWidth / kTile];
    Rows<T, kWidth, kStaged>(query, tile * kTile, tokens).to(rows, room);
    float sums[kWidth / 8][4];
    clear(sums);
    float top[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0};
    for (int first = 0; first < tiles; first += kStep) {
      float scores[2 * kStep][4];
      float highest[2] = {-INFINITY, -INFINITY};
#pragma unroll
      for (int j = 0; j < kStep; ++j) {
        if (first + j >= tiles) continue;
        auto& pair = reinterpret_cast<float(&)[2][4]>(scores[2 * j]);
        multiply_by_rows<T, kWidth>(pair, rows, keys + (first + j) * kTile * kPitch<kWidth>);
        if ((first + j + 1) * kTile > tokens) {
#pragma unroll
          for (int n = 0; n < 2; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              const int key = (first + j) * kTile + n * 8 + lane.column + i % 2;
              if (key >= tokens) pair[n][i] = -INFINITY;
            }
          }
        }
#pragma unroll
        for (int n = 0; n < 2; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) highest[i / 2] = fmaxf(highest[i / 2], pair[n][i]);
        }
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) highest[i] = quad_max(highest[i]) * scale;
      const bool grown = highest[0] > top[0] + kSlack || highest[1] > top[1] + kSlack;
      if (__any_sync(0xffffffffu, grown)) {
        float factor[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float next = fmaxf(top[i], highest[i]);
          factor[i] = exp2_of(top[i] - next);
          total[i] *= factor[i];
          top[i] = next;
        }
#pragma unroll
        for (auto& tile_sums : sums) {
#pragma unroll
          for (int i = 0; i < 4; ++i) tile_sums[i] *= factor[i / 2];
        }
      }
#pragma unroll
      for (int j = 0; j < kStep; ++j) {
        if (first + j >= tiles) continue;
        auto& pair = reinterpret_cast<float(&)[2][4]>(scores[2 * j]);
#pragma unroll
        for (int n = 0; n < 2; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            pair[n][i] = exp2_of(fmaf(pair[n][i], scale, -top[i / 2]));
            total[i / 2] += pair[n][i];
          }
        }
        add_weighted_rows<T, kWidth>(sums, Left::of<T>(pair),
                                     values + (first + j) * kTile * kPitch<kWidth>);
      }
    }
#pragma unroll
    for (float& x : total) x = quad_sum(x);
    Rows<T, kWidth, kStaged>::store(out, sums, 1 / total[0], 1 / total[1], tile * kTile, tokens,
                                    room);
    if (lane.column == 0) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = tile * kTile + lane.row + 8 * i;
        if (row < tokens) log_sum_exp[row] = (top[i] + log2f(total[i])) * kLn2;
      }
    }
  }
}

template <typename T, int kWidth, bool kStaged>
__device__ void query_gradients(const ShortAttentionBackward& a, char* shared, std::int64_t block) {
  const int tokens = static_cast<int>(a.forward.tokens), tiles = tiles_of(tokens);
  T* keys = reinterpret_cast<T*>(shared);
  T* values = keys + tiles * kTile * kPitch<kWidth>;
  const Lane lane;
  T* room = values + (tiles + lane.warp) * kTile * kPitch<kWidth>;
  const std::int64_t sample = block / a.forward.heads, number = block - sample * a.forward.heads;
  fetch<T, kWidth>(keys, {a.forward.key, sample, number}, tokens, tiles);
  fetch<T, kWidth>(values, {a.forward.value, sample, number}, tokens, tiles);
  const Head<T> query(a.forward.query, sample, number), out(a.forward.out, sample, number),
      grad(a.grad, sample, number), result(a.query_grad, sample, number);
  const float* log_sum_exp = a.forward.log_sum_exp + block * a.forward.tokens;
  const float scale = a.forward.scale * kLog2E;
  wait_for_fetch();
  for (int tile = lane.warp; tile < tiles; tile += kWarps) {
    Left rows[kWidth / kTile], grads[kWidth / kTile];
    RowFacts facts[2] = {};
    const Rows<T, kWidth, kStaged> own_out(out, tile * kTile, tokens),
        own_grad(grad, tile * kTile, tokens);
    own_out.to(rows, room);
    own_grad.to(grads, room);
#pragma unroll
    for (int k = 0; k < kWidth / kTile; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 x = unpack_pair<T>(rows[k].value[i]), y = unpack_pair<T>(grads[k].value[i]);
        facts[i % 2].product += x.x * y.x + x.y * y.y;
      }
    }
    Rows<T, kWidth, kStaged>(query, tile * kTile, tokens).to(rows, room);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = tile * kTile + lane.row + 8 * i;
      facts[i].product = quad_sum(facts[i].product);
      facts[i].log_sum = row < tokens ? log_sum_exp[row] * kLog2E : INFINITY;
    }
    float sums[kWidth / 8][4];
    clear(sums);
    for (int j = 0; j < tiles; ++j) {
      const T* tile_keys = keys + j * kTile * kPitch<kWidth>;
      float scores[2][4], score_grads[2][4];
      multiply_by_rows<T, kWidth>(scores, rows, tile_keys);
      multiply_by_rows<T, kWidth>(score_grads, grads, values + j * kTile * kPitch<kWidth>);
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
          scores[n][i] = grad_of(scores[n][i], score_grads[n][i], scale, facts[i / 2]);
      }
      if ((j + 1) * kTile > tokens) {  // of keys that are not there
#pragma unroll
        for (int n = 0; n < 2; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            if (j * kTile + n * 8 + lane.column + i % 2 >= tokens) scores[n][i] = 0;
          }
        }
      }
      add_weighted_rows<T, kWidth>(sums, Left::of<T>(scores), tile_keys);
    }
    Rows<T, kWidth, kStaged>::store(result, sums, a.forward.scale, a.forward.scale, tile * kTile,
                                    tokens, room);
  }
}

template <typename T, int kWidth, bool kStaged>
__device__ void key_gradients(const ShortAttentionBackward& a, char* shared, std::int64_t block) {
  const int tokens = static_cast<int>(a.forward.tokens), tiles = tiles_of(tokens);
  T* queries = reinterpret_cast<T*>(shared);
  T* grads = queries + tiles * kTile * kPitch<kWidth>;
  const Lane lane;
  T* room = grads + (tiles + lane.warp) * kTile * kPitch<kWidth>;
  constexpr int kRooms = kStaged ? kWarps : 0;
  auto* facts = reinterpret_cast<RowFacts*>(grads + (tiles + kRooms) * kTile * kPitch<kWidth>);
  const std::int64_t sample = block / a.forward.heads, number = block - sample * a.forward.heads;
  fetch<T, kWidth>(queries, {a.forward.query, sample, number}, tokens, tiles);
  fetch<T, kWidth>(grads, {a.grad, sample, number}, tokens, tiles);
  const Head<T> key(a.forward.key, sample, number), value(a.forward.value, sample, number),
      out(a.forward.out, sample, number), key_result(a.key_grad, sample, number),
      value_result(a.value_grad, sample, number);
  const float* log_sum_exp = a.forward.log_sum_exp + block * a.forward.tokens;
  const float scale = a.forward.scale * kLog2E;
  wait_for_fetch();
  // A row's packs lie in neighbouring lanes, 8 or 16 of them.
  constexpr int kPacks = kWidth / kPack, kLanes = kPacks <= 8 ? 8 : 16;
  const int pack = lane.index % kLanes;
  for (int row = static_cast<int>(threadIdx.x) / kLanes; row < tiles * kTile;
       row += kThreads / kLanes) {
    float product = 0;
    if (row < tokens && pack < kPacks) {
      float x[kPack], y[kPack];
      load<T, kPack>(out.rows + row * out.stride, pack).unpack(x);
      load<T, kPack>(grads + row * kPitch<kWidth>, pack).unpack(y);
#pragma unroll
      for (int i = 0; i < kPack; ++i) product += x[i] * y[i];
    }
#pragma unroll
    for (int offset = kLanes / 2; offset > 0; offset /= 2)
      product += __shfl_xor_sync(0xffffffffu, product, offset);
    // No probability behind the last token.
    if (pack == 0) facts[row] = {row < tokens ? log_sum_exp[row] * kLog2E : INFINITY, product};
  }
  __syncthreads();
  for (int tile = lane.warp; tile < tiles; tile += kWarps) {
    Left key_rows[kWidth / kTile], value_rows[kWidth / kTile];
    const Rows<T, kWidth, kStaged> own_key(key, tile * kTile, tokens),
        own_value(value, tile * kTile, tokens);
    own_key.to(key_rows, room);
    own_value.to(value_rows, room);
    float key_sums[kWidth / 8][4], value_sums[kWidth / 8][4];
    clear(key_sums);
    clear(value_sums);
    for (int j = 0; j < tiles; ++j) {
      const T* tile_queries = queries + j * kTile * kPitch<kWidth>;
      const T* tile_grads = grads + j * kTile * kPitch<kWidth>;
      float scores[2][4], score_grads[2][4];  // [key, query]
      multiply_by_rows<T, kWidth>(scores, key_rows, tile_queries);
      multiply_by_rows<T, kWidth>(score_grads, value_rows, tile_grads);
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const RowFacts row = facts[j * kTile + n * 8 + lane.column + i % 2];
          score_grads[n][i] = grad_of(scores[n][i], score_grads[n][i], scale, row);
        }
      }
      add_weighted_rows<T, kWidth>(value_sums, Left::of<T>(scores), tile_grads);
      add_weighted_rows<T, kWidth>(key_sums, Left::of<T>(score_grads), tile_queries);
    }
    Rows<T, kWidth, kStaged>::store(key_result, key_sums, a.forward.scale, a.forward.scale,
                                    tile * kTile, tokens, room);
    Rows<T, kWidth, kStaged>::store(value_result, value_sums, 1, 1, tile * kTile, tokens, room);
  }
}

/// Two blocks for each head, next to each other, so that the second finds its operands in L2.
template <typename T, int kWidth, bool kStaged>
__global__ void __launch_bounds__(kThreads, kBlocks)
    short_attention_backward_kernel(const ShortAttentionBackward a) {
  extern __shared__ __align__(16) char shared[];
  const std::int64_t block = blockIdx.x / 2;
  if (blockIdx.x % 2 == 0) {
    query_gradients<T, kWidth, kStaged>(a, shared, block);
  } else {
    key_gradients<T, kWidth, kStaged>(a, shared, block);
  }
}

/// Calls body(staged) with a constant.
template <typename Body>
void with_staging(bool staged, const Body& body) {
  staged ? body(std::true_type{}) : body(std::false_type{});
}

}  // namespace

void short_attention_sm80(const ShortAttention& args, cudaStream_t stream) {
  with_heads(args, [&]<typename T, int kWidth>() {
    const bool stages = short_attention_stages(args.tokens, kWidth, gpu_limits());
    with_staging(stages, [&](auto staged) {
      constexpr bool kStaged = decltype(staged)::value;
      const std::size_t bytes = short_attention_bytes(args.tokens, kWidth, kStaged);
      const auto kernel = short_attention_kernel<T, kWidth, kStaged>;
      allow_shared(kernel, "short_attention", bytes);
      const auto blocks = static_cast<unsigned>(args.batch * args.heads);
      if (blocks > 0) kernel<<<blocks, kThreads, bytes, stream>>>(args);
    });
  });
  check_launch("short_attention");
}

void short_attention_backward_sm80(const ShortAttentionBackward& args, cudaStream_t stream) {
  const std::int64_t tokens = args.forward.tokens;
  with_heads(args.forward, [&]<typename T, int kWidth>() {
    const bool stages = short_attention_backward_stages(tokens, kWidth, gpu_limits());
    with_staging(stages, [&](auto staged) {
      constexpr bool kStaged = decltype(staged)::value;
      const std::size_t bytes = short_attention_backward_bytes(tokens, kWidth, kStaged);
      const auto kernel = short_attention_backward_kernel<T, kWidth, kStaged>;
      allow_shared(kernel, "short_attention_backward", bytes);
      const auto blocks = static_cast<unsigned>(2 * args.forward.batch * args.forward.heads);
      if (blocks > 0) kernel<<<blocks, kThreads, bytes, stream>>>(args);
    });
  });
  check_launch("short_attention_backward");
}

/// The code of short_attention_sm90.cu is for this capability and no later one.
bool short_attention_has_sm90() { return gpu_limits().warpgroups; }

void short_attention(const ShortAttention& args, cudaStream_t stream) {
  (short_attention_has_sm90() ? short_attention_sm90 : short_attention_sm80)(args, stream);
}

void short_attention_backward(const ShortAttentionBackward& args, cudaStream_t stream) {
  (short_attention_has_sm90() ? short_attention_backward_sm90 : short_attention_backward_sm80)(
      args, stream);
}

}  // namespace cuda
}  // namespace dstrain::kernels
