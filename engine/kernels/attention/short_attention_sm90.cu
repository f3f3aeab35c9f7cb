#include <cuda_pipeline.h>

#include "engine/kernels/attention/short_attention.cuh"
#include "engine/kernels/attention/wgmma.cuh"

/// Attention of short sequences by wgmma, for sm_90a. A block is one warpgroup; it holds one head's
/// keys and values (or, for gradients of these, queries and gradients of the output) in shared
/// memory and works on 64 rows of the other side at a time, which are the left operands. While it
/// takes exponentials of one chunk of scores, the products with the chunk before run.
namespace dstrain::kernels::cuda {
namespace {

constexpr int kThreads = 128, kBlocks = 2;
constexpr int kRows = 64;    ///< of a block's product
constexpr int kChunk = 64;   ///< scores of a row at a time
constexpr int kMatrix = 64;  ///< elements of 8 rows by 16 bytes

__host__ __device__ inline int rounded(int tokens, int to) { return (tokens + to - 1) / to * to; }

/// Rows of a head in shared memory, as matrices of 8 rows by 16 bytes: those of 8 rows next to each
/// other. Any eight rows of such a matrix lie in different banks.
template <typename T, int kWidth>
struct Stored {
  T* data;

  static constexpr int kEight = 8 * kWidth;                 ///< elements of eight rows
  static constexpr int kMatrixBytes = 2 * kMatrix, kEightBytes = 2 * kEight;

  /// Their first 64 or 16 as columns of a result, and as what is summed over.
  [[nodiscard]] __device__ std::uint64_t columns() const {
    return wgmma::operand(data, kMatrixBytes, kEightBytes);
  }
  [[nodiscard]] __device__ std::uint64_t summed() const {
    return wgmma::operand(data, kEightBytes, kMatrixBytes);
  }

  /// Copies `rows` rows from `first` on, zeros behind the last token; by kThreads threads, to be
  /// waited for.
  template <int kThreads>
  __device__ void fetch(const Head<T>& head, int first, int rows, int tokens, int thread) const {
    constexpr int kPacks = kWidth / kPack, kAtOnce = kThreads / 2;  // rows
    int places[kPacks / 2], offsets[kPacks / 2];
#pragma unroll
    for (int i = 0; i < kPacks / 2; ++i) {
      const int matrix = thread / 8 + i * kThreads / 8, eight = matrix / kPacks;
      places[i] = eight * 8 + thread % 8;
      offsets[i] = places[i] * static_cast<int>(head.stride) + (matrix - eight * kPacks) * kPack;
    }
    auto to = static_cast<std::uint32_t>(__cvta_generic_to_shared(data + thread * kPack));
    const T* from = head.rows + first * head.stride;
#pragma unroll 1
    for (int row = 0; row < rows; row += kAtOnce) {
#pragma unroll
      for (int i = 0; i < kPacks / 2; ++i) {
        const bool is_token = first + row + places[i] < tokens;
        if (row + places[i] < rows)
          asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                           to + i * kThreads * kPack * 2),
                       "l"(is_token ? from + offsets[i] : head.rows), "r"(is_token ? 16 : 0)
                       : "memory");
      }
      from += kAtOnce * head.stride;
      to += kAtOnce * kWidth * 2;
    }
  }

  /// A warp's 16 rows as left operands.
  __device__ void to(Left (&left)[kWidth / kTile]) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const T* from = data + lane / 8 % 2 * kEight + lane / 16 * kMatrix + lane % 8 * kPack;
#pragma unroll
    for (int k = 0; k < kWidth / kTile; ++k)
      load_matrices<false>(left[k].value, from + 2 * k * kMatrix);
  }

  /// Right operands of a warp's products: 16 rows as columns of the result; 16 rows to be summed
  /// over.
  [[nodiscard]] __device__ Right of_rows(int row, int k) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    Right right;
    load_matrices<false>(right.value, data + (row / 8 + lane / 16) * kEight +
                                          (2 * k + lane / 8 % 2) * kMatrix + lane % 8 * kPack);
    return right;
  }
  [[nodiscard]] __device__ Right of_columns(int row, int n) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    Right right;
    load_matrices<true>(right.value, data + (row / 8 + lane / 8 % 2) * kEight +
                                         (2 * n + lane / 16) * kMatrix + lane % 8 * kPack);
    return right;
  }
};

/// Per row of a head, as in RowFacts; a row behind the last one has no probability.
struct Facts {
  float *log_sums, *products;
};

template <typename T, int kWidth>
__device__ void find_facts(const Facts& facts, const Head<T>& out, const Head<T>& grad,
                           const float* log_sum_exp, int tokens, int rows) {
  constexpr int kLanes = kWidth / 16;  // of a row, each with 16 elements
  constexpr int kOfWarp = kWarp / kLanes, kOfBlock = kThreads / kWarp * kOfWarp, kAtOnce = 4;
  const Lane lane;
  const int group = lane.index / kLanes, part = lane.index - group * kLanes;
  for (int row = static_cast<int>(threadIdx.x); row < rows; row += kThreads)
    facts.log_sums[row] = row < tokens ? log_sum_exp[row] * kLog2E : INFINITY;
#pragma unroll 1
  for (int start = lane.warp * kOfWarp; start < rows; start += kOfBlock * kAtOnce) {
    Pack<T, 16> x[kAtOnce], y[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int row = min(start + i * kOfBlock + group, tokens - 1);
      x[i] = load<T, 16>(out.rows + row * out.stride, part);
      y[i] = load<T, 16>(grad.rows + row * grad.stride, part);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      float p[16], q[16], product = 0, sum = 0;
      x[i].unpack(p);
      y[i].unpack(q);
#pragma unroll
      for (int j = 0; j < 16; ++j) product += p[j] * q[j];
#pragma unroll
      for (int j = 0; j < kLanes; ++j)
        sum += __shfl_sync(0xffffffffu, product, group * kLanes + j);
      const int row = start + i * kOfBlock + group;
      if (part == 0 && group < kOfWarp && row < rows) {
        facts.products[row] = row < tokens ? sum : 0;
      }
    }
  }
}

/// Sums times the scale to the rows of this warp from `first` on.
template <typename T, int kTiles>
__device__ void store_rows(const Head<T>& head, const float (&sums)[kTiles][4], float low_scale,
                           float high_scale, int first, int tokens) {
  const Lane lane;
  const int row = first + lane.row;
  T* low = head.rows + row * head.stride + lane.column;
  T* high = low + 8 * head.stride;
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    if (row < tokens) store_pair(low + n * 8, sums[n][0] * low_scale, sums[n][1] * low_scale);
    if (row + 8 < tokens)
      store_pair(high + n * 8, sums[n][2] * high_scale, sums[n][3] * high_scale);
  }
}

/// Columns 8 n to 8 n + 15 of sums as left operand.
template <typename T, int kCount>
__device__ Left left_of(const float (&sums)[kCount][4], int n) {
  return {{pack_pair<T>(sums[n][0], sums[n][1]), pack_pair<T>(sums[n][2], sums[n][3]),
           pack_pair<T>(sums[n + 1][0], sums[n + 1][1]),
           pack_pair<T>(sums[n + 1][2], sums[n + 1][3])}};
}

/// Scores of a chunk and their gradients.
template <int kColumns>
struct Scores {
  float score[kColumns / 8][4], grad[kColumns / 8][4];
};

/// The same as left operands: probabilities, where they are needed, and gradients of scores.
template <int kColumns, bool kOfKeys>
struct Weights {
  Left probability[kOfKeys ? kColumns / kTile : 1], grad[kColumns / kTile];
};

/// 64 rows of queries and of the output's gradients against all keys and values; or, of keys and
/// values against all queries and gradients.
template <typename T, int kWidth, bool kOfKeys>
class Gradients {
 public:
  static constexpr int kSteps = kWidth / kTile;

  __device__ Gradients(const Stored<T, kWidth>& firsts, const Stored<T, kWidth>& seconds,
                       const Facts& facts, float scale, int tokens)
      : firsts_(firsts), seconds_(seconds), facts_(facts), scale_(scale), tokens_(tokens) {}

  /// Of the rows in `first` and `second`, this warp's of them from row `row` on.
  __device__ void load(const Stored<T, kWidth>& first, const Stored<T, kWidth>& second, int row) {
    first.to(first_);
    second.to(second_);
    if constexpr (!kOfKeys) {
#pragma unroll
      for (int i = 0; i < 2; ++i)
        row_[i] = {facts_.log_sums[row + lane_.row + 8 * i],
                   facts_.products[row + lane_.row + 8 * i]};
    }
  }

  __device__ void run() {
    const int whole = tokens_ / kChunk * kChunk, end = rounded(tokens_, kTile);
    Scores<kTile> rest;
    Weights<kTile, kOfKeys> rest_weights;
    int column = 0;
    if (whole > 0) {
      Scores<kChunk> scores;
      Weights<kChunk, kOfKeys> weights;
      start(scores, 0);
      weigh<0>(weights, scores, 0);
      for (; column + kChunk < whole; column += kChunk) {
        start(scores, column + kChunk);
        add(weights, column);
        weigh<1>(weights, scores, column + kChunk);
      }
      if (whole < end) {
        start(rest, whole);
        add(weights, column);
        weigh<1>(rest_weights, rest, whole);
      } else {
        add(weights, column);
      }
      column = whole;
    } else {
      start(rest, 0);
      weigh<0>(rest_weights, rest, 0);
    }
    for (; column < end; column += kTile) {
      add(rest_weights, column);
      if (column + kTile < end) {
        start(rest, column + kTile);
        weigh<0>(rest_weights, rest, column + kTile);
      }
    }
    wgmma::wait<0>();
    wgmma::pin(first_sums);
    if constexpr (kOfKeys) wgmma::pin(second_sums);
  }

  /// 16 rows, the same ones in every warp: each warp takes every fourth 16 columns.
  template <int kSeconds>
  __device__ void run_few(float (&first_sums)[kWidth / 8][4], float (&second_sums)[kSeconds][4]) {
    clear(first_sums);
    clear(second_sums);
    for (int column = lane_.warp * kTile; column < tokens_; column += kThreads / kWarp * kTile) {
      Scores<kTile> scores;
      Weights<kTile, kOfKeys> weights;
      clear(scores.score);
      clear(scores.grad);
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
        const Right firsts = firsts_.of_rows(column, k), seconds = seconds_.of_rows(column, k);
        multiply_add<T>(scores.score[0], first_[k], firsts.first());
        multiply_add<T>(scores.score[1], first_[k], firsts.second());
        multiply_add<T>(scores.grad[0], second_[k], seconds.first());
        multiply_add<T>(scores.grad[1], second_[k], seconds.second());
      }
      weigh_scores(scores, column);
      weigh_grads(scores, column);
      pack(weights, scores);
#pragma unroll
      for (int n = 0; n < kSteps; ++n) {
        const Right firsts = firsts_.of_columns(column, n);
        multiply_add<T>(first_sums[2 * n], weights.grad[0], firsts.first());
        multiply_add<T>(first_sums[2 * n + 1], weights.grad[0], firsts.second());
        if constexpr (kOfKeys) {
          const Right seconds = seconds_.of_columns(column, n);
          multiply_add<T>(second_sums[2 * n], weights.probability[0], seconds.first());
          multiply_add<T>(second_sums[2 * n + 1], weights.probability[0], seconds.second());
        }
      }
    }
  }

  float first_sums[kWidth / 8][4];
  float second_sums[kOfKeys ? kWidth / 8 : 1][4];

 private:
  /// Scores from `column` on, and their gradients, as two groups of products.
  template <int kColumns>
  __device__ void start(Scores<kColumns>& scores, int column) {
    const int bytes = column / 8 * Stored<T, kWidth>::kEightBytes;
    const std::uint64_t firsts = wgmma::moved(firsts_.columns(), bytes),
                        seconds = wgmma::moved(seconds_.columns(), bytes);
    wgmma::begin();
#pragma unroll
    for (int k = 0; k < kSteps; ++k)
      wgmma::multiply<T, false>(scores.score, first_[k],
                                wgmma::moved(firsts, 2 * k * Stored<T, kWidth>::kMatrixBytes),
                                k > 0);
    wgmma::commit();
#pragma unroll
    for (int k = 0; k < kSteps; ++k)
      wgmma::multiply<T, false>(scores.grad, second_[k],
                                wgmma::moved(seconds, 2 * k * Stored<T, kWidth>::kMatrixBytes),
                                k > 0);
    wgmma::commit();
  }

  /// Waits for what start() began, and the products of the chunk before, whose weights then may be
  /// overwritten.
  template <int kBefore, int kColumns>
  __device__ void weigh(Weights<kColumns, kOfKeys>& weights, Scores<kColumns>& scores,
                        int column) {
    wgmma::wait<1 + kBefore>();
    wgmma::pin(scores.score);
    weigh_scores(scores, column);
    wgmma::wait<kBefore>();
    wgmma::pin(scores.grad);
    weigh_grads(scores, column);
    wgmma::pin(scores.grad);
    wgmma::wait<0>();
    pack(weights, scores);
  }

  template <int kColumns>
  __device__ void weigh_scores(Scores<kColumns>& scores, int column) const {
    constexpr bool kMasked = !kOfKeys && kColumns < kChunk;
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
      const int place = column + n * 8 + lane_.column;
      const float2 of_column =
          kOfKeys ? *reinterpret_cast<const float2*>(facts_.log_sums + place) : float2{};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float log_sum =
            kOfKeys ? (i % 2 == 0 ? of_column.x : of_column.y) : row_[i / 2].log_sum;
        float& x = scores.score[n][i];
        x = exp2_of(fmaf(x, scale_, -log_sum));
        if (kMasked && place + i % 2 >= tokens_) x = 0;
      }
    }
  }

  template <int kColumns>
  __device__ void weigh_grads(Scores<kColumns>& scores, int column) const {
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
      const int place = column + n * 8 + lane_.column;
      const float2 of_column =
          kOfKeys ? *reinterpret_cast<const float2*>(facts_.products + place) : float2{};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float product =
            kOfKeys ? (i % 2 == 0 ? of_column.x : of_column.y) : row_[i / 2].product;
        scores.grad[n][i] = scores.score[n][i] * (scores.grad[n][i] - product);
      }
    }
  }

  template <int kColumns>
  __device__ static void pack(Weights<kColumns, kOfKeys>& weights,
                              const Scores<kColumns>& scores) {
#pragma unroll
    for (int k = 0; k < kColumns / kTile; ++k) {
      if constexpr (kOfKeys) weights.probability[k] = left_of<T>(scores.score, 2 * k);
      weights.grad[k] = left_of<T>(scores.grad, 2 * k);
    }
  }

  /// Adds the products with the rows from `column` on, one group.
  template <int kColumns>
  __device__ void add(const Weights<kColumns, kOfKeys>& weights, int column) {
    const int bytes = column / 8 * Stored<T, kWidth>::kEightBytes;
    const std::uint64_t firsts = wgmma::moved(firsts_.summed(), bytes),
                        seconds = wgmma::moved(seconds_.summed(), bytes);
    wgmma::begin();
#pragma unroll
    for (int k = 0; k < kColumns / kTile; ++k) {
      const int further = 2 * k * Stored<T, kWidth>::kEightBytes;
      if constexpr (kOfKeys)
        wgmma::multiply<T, true>(second_sums, weights.probability[k],
                                 wgmma::moved(seconds, further), column > 0 || k > 0);
      wgmma::multiply<T, true>(first_sums, weights.grad[k], wgmma::moved(firsts, further),
                               column > 0 || k > 0);
    }
    wgmma::commit();
  }

  Stored<T, kWidth> firsts_, seconds_;
  Facts facts_;
  float scale_;
  int tokens_;
  Lane lane_;
  Left first_[kSteps], second_[kSteps];
  RowFacts row_[kOfKeys ? 1 : 2];
};

/// Sums over the block's warps, in their order, in the first one. `room`: of this warp, as much as
/// its sums; the rooms of the warps are `pitch` floats apart.
template <int kTiles>
__device__ void sum_over_warps(float (&sums)[kTiles][4], float* room, int pitch) {
  const Lane lane;
  __syncthreads();
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    auto* to = reinterpret_cast<float4*>(room) + n * kWarp + lane.index;
    if (lane.warp > 0) *to = {sums[n][0], sums[n][1], sums[n][2], sums[n][3]};
  }
  __syncthreads();
  if (lane.warp > 0) return;
  for (int warp = 1; warp < kThreads / kWarp; ++warp) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const float4 other =
          reinterpret_cast<const float4*>(room + warp * pitch)[n * kWarp + lane.index];
      sums[n][0] += other.x;
      sums[n][1] += other.y;
      sums[n][2] += other.z;
      sums[n][3] += other.w;
    }
  }
}

/// What a block keeps in shared memory: two operands, 64 rows of two others, facts of rows.
template <typename T, int kWidth>
struct Room {
  static constexpr int kOwn = kRows * kWidth;  ///< elements
  __host__ __device__ static std::size_t bytes(int tokens) {
    return (2 * static_cast<std::size_t>(rounded(tokens, kTile)) * kWidth + 2 * kOwn) * 2 +
           2 * static_cast<std::size_t>(rounded(tokens, kRows)) * sizeof(float);
  }
};

template <typename T, int kWidth, bool kOfKeys>
__device__ void gradients(const ShortAttentionBackward& a, char* shared, std::int64_t block) {
  const int tokens = static_cast<int>(a.forward.tokens), rows = rounded(tokens, kTile);
  const Lane lane;
  const std::int64_t sample = block / a.forward.heads, number = block - sample * a.forward.heads;
  const auto head = [&](const HeadsView& view) { return Head<T>(view, sample, number); };
  const Head<T> query = head(a.forward.query), key = head(a.forward.key),
                value = head(a.forward.value), grad = head(a.grad);
  const Stored<T, kWidth> firsts{reinterpret_cast<T*>(shared)},
      seconds{firsts.data + rows * kWidth};
  // A warp's 16 rows of two others lie next to each other.
  T* own = seconds.data + rows * kWidth;
  const Stored<T, kWidth> first{own + 2 * lane.warp * kTile * kWidth},
      second{first.data + kTile * kWidth};
  const Facts facts{reinterpret_cast<float*>(own + 2 * Room<T, kWidth>::kOwn),
                    reinterpret_cast<float*>(own + 2 * Room<T, kWidth>::kOwn) +
                        rounded(tokens, kRows)};
  // Up to 16 rows behind the last 64 are a matter of each warp's own products.
  const int few = tokens % kRows > 0 && tokens % kRows <= kTile ? tokens / kRows * kRows : tokens;
  const auto own_row = [&](int row) { return row < few ? row + lane.warp * kTile : row; };
  const auto fetch_own = [&](int row) {
    first.template fetch<kWarp>(kOfKeys ? key : query, own_row(row), kTile, tokens, lane.index);
    second.template fetch<kWarp>(kOfKeys ? value : grad, own_row(row), kTile, tokens, lane.index);
    __pipeline_commit();
  };
  const auto thread = static_cast<int>(threadIdx.x);
  firsts.template fetch<kThreads>(kOfKeys ? query : key, 0, rows, tokens, thread);
  seconds.template fetch<kThreads>(kOfKeys ? grad : value, 0, rows, tokens, thread);
  fetch_own(0);
  find_facts<T, kWidth>(facts, head(a.forward.out), grad,
                        a.forward.log_sum_exp + block * a.forward.tokens, tokens,
                        rounded(tokens, kRows));
  __pipeline_wait_prior(0);
  wgmma::publish_shared();
  __syncthreads();
  Gradients<T, kWidth, kOfKeys> work(firsts, seconds, facts, a.forward.scale * kLog2E, tokens);
  const Head<T> first_result = head(kOfKeys ? a.key_grad : a.query_grad),
                second_result = head(a.value_grad);
  const auto load_own = [&](int row) {
    __pipeline_wait_prior(0);
    __syncwarp();
    work.load(first, second, own_row(row));
    __syncwarp();
  };
  for (int row = 0; row < few; row += kRows) {
    load_own(row);
    if (row + kRows < tokens) fetch_own(row + kRows);
    work.run();
    store_rows(first_result, work.first_sums, a.forward.scale, a.forward.scale, own_row(row),
               tokens);
    if constexpr (kOfKeys)
      store_rows(second_result, work.second_sums, 1, 1, own_row(row), tokens);
  }
  if (few == tokens) return;
  load_own(few);
  float first_sums[kWidth / 8][4], second_sums[kOfKeys ? kWidth / 8 : 1][4];
  work.run_few(first_sums, second_sums);
  auto* room = reinterpret_cast<float*>(first.data);
  sum_over_warps(first_sums, room, kTile * kWidth);
  if constexpr (kOfKeys) sum_over_warps(second_sums, room, kTile * kWidth);
  if (lane.warp > 0) return;
  store_rows(first_result, first_sums, a.forward.scale, a.forward.scale, few, tokens);
  if constexpr (kOfKeys) store_rows(second_result, second_sums, 1, 1, few, tokens);
}

/// Two blocks for each head, next to each other, so that the second finds its operands in L2.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads, kBlocks)
    short_attention_backward_kernel(const ShortAttentionBackward a) {
  extern __shared__ __align__(128) char shared[];
  const std::int64_t block = blockIdx.x / 2;
  if (blockIdx.x % 2 == 0) {
    gradients<T, kWidth, true>(a, shared, block);
  } else {
    gradients<T, kWidth, false>(a, shared, block);
  }
}

/// 64 rows of queries against all keys.
template <typename T, int kWidth>
class Attend {
 public:
  static constexpr int kSteps = kWidth / kTile;

  __device__ Attend(const Stored<T, kWidth>& keys, const Stored<T, kWidth>& values, float scale,
                    int tokens)
      : keys_(keys), values_(values), scale_(scale), tokens_(tokens) {}

  /// Of the queries, this warp's; `taken` is called when they are in registers.
  template <typename Taken>
  __device__ void run(const Stored<T, kWidth>& queries, const Taken& taken) {
    queries.to(queries_);
    taken();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      top_[i] = -INFINITY;
      total[i] = 0;
    }
    const int whole = tokens_ / kChunk * kChunk, end = rounded(tokens_, kTile);
    float rest[2][4];
    Left rest_weights[1];
    int column = 0;
    if (whole > 0) {
      float scores[kChunk / 8][4];
      Left weights[kChunk / kTile];
      start(scores, 0);
      weigh<0>(weights, scores, 0);
      for (; column + kChunk < whole; column += kChunk) {
        start(scores, column + kChunk);
        add(weights, column);
        weigh<1>(weights, scores, column + kChunk);
      }
      if (whole < end) {
        start(rest, whole);
        add(weights, column);
        weigh<1>(rest_weights, rest, whole);
      } else {
        add(weights, column);
      }
      column = whole;
    } else {
      start(rest, 0);
      weigh<0>(rest_weights, rest, 0);
    }
    for (; column < end; column += kTile) {
      add(rest_weights, column);
      if (column + kTile < end) {
        start(rest, column + kTile);
        weigh<0>(rest_weights, rest, column + kTile);
      }
    }
    wgmma::wait<0>();
    wgmma::pin(sums);
#pragma unroll
    for (float& x : total) x = quad_sum(x);
  }

  [[nodiscard]] __device__ float log_sum_exp(int i) const {
    return (top_[i] + log2f(total[i])) * kLn2;
  }

  float sums[kWidth / 8][4], total[2];

 private:
  template <int kTiles>
  __device__ void start(float (&scores)[kTiles][4], int column) {
    const std::uint64_t keys =
        wgmma::moved(keys_.columns(), column / 8 * Stored<T, kWidth>::kEightBytes);
    wgmma::begin();
#pragma unroll
    for (int k = 0; k < kSteps; ++k)
      wgmma::multiply<T, false>(scores, queries_[k],
                                wgmma::moved(keys, 2 * k * Stored<T, kWidth>::kMatrixBytes), k > 0);
    wgmma::commit();
  }

  /// Waits for what start() began, and the products of the chunk before.
  template <int kBefore, int kTiles>
  __device__ void weigh(Left (&weights)[kTiles / 2], float (&scores)[kTiles][4], int column) {
    wgmma::wait<kBefore>();
    wgmma::pin(scores);
    float highest[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (kTiles * 8 < kChunk && column + n * 8 + lane_.column + i % 2 >= tokens_)
          scores[n][i] = -INFINITY;
        highest[i / 2] = fmaxf(highest[i / 2], scores[n][i]);
      }
    }
    float factor[2] = {1, 1};
#pragma unroll
    for (int i = 0; i < 2; ++i) highest[i] = quad_max(highest[i]) * scale_;
    const bool grown = __any_sync(
        0xffffffffu, highest[0] > top_[0] + kSlack || highest[1] > top_[1] + kSlack);
    if (grown) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float next = fmaxf(top_[i], highest[i]);
        factor[i] = exp2_of(top_[i] - next);
        total[i] *= factor[i];
        top_[i] = next;
      }
    }
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        scores[n][i] = exp2_of(fmaf(scores[n][i], scale_, -top_[i / 2]));
        total[i / 2] += scores[n][i];
      }
    }
    wgmma::pin(scores);
    wgmma::wait<0>();
    if (kBefore > 0 || column > 0) {
      wgmma::pin(sums);
      if (grown) {
#pragma unroll
        for (auto& tile : sums) {
#pragma unroll
          for (int i = 0; i < 4; ++i) tile[i] *= factor[i / 2];
        }
      }
    }
#pragma unroll
    for (int k = 0; k < kTiles / 2; ++k) weights[k] = left_of<T>(scores, 2 * k);
  }

  template <int kTiles>
  __device__ void add(const Left (&weights)[kTiles], int column) {
    const std::uint64_t values =
        wgmma::moved(values_.summed(), column / 8 * Stored<T, kWidth>::kEightBytes);
    wgmma::begin();
#pragma unroll
    for (int k = 0; k < kTiles; ++k)
      wgmma::multiply<T, true>(sums, weights[k],
                               wgmma::moved(values, 2 * k * Stored<T, kWidth>::kEightBytes),
                               column > 0 || k > 0);
    wgmma::commit();
  }

  Stored<T, kWidth> keys_, values_;
  float scale_;
  int tokens_;
  Lane lane_;
  Left queries_[kSteps];
  float top_[2];
};

#ifndef FORWARD_GROUPS
#define FORWARD_GROUPS 2
#endif
constexpr int kForwardGroups = FORWARD_GROUPS;

template <typename T, int kWidth>
__global__ void __launch_bounds__(kForwardGroups * kThreads, kBlocks)
    short_attention_kernel(const ShortAttention a) {
  extern __shared__ __align__(128) char shared[];
  const int tokens = static_cast<int>(a.tokens), rows = rounded(tokens, kTile);
  const auto thread = static_cast<int>(threadIdx.x);
  const Lane lane;
  const std::int64_t sample = blockIdx.x / a.heads, number = blockIdx.x - sample * a.heads;
  const Head<T> query(a.query, sample, number), out(a.out, sample, number);
  const Stored<T, kWidth> keys{reinterpret_cast<T*>(shared)}, values{keys.data + rows * kWidth},
      own{values.data + (rows + lane.warp * kTile) * kWidth};
  constexpr int kStride = kForwardGroups * kRows;
  int row = lane.warp * kTile;
  own.template fetch<kWarp>(query, row, kTile, tokens, lane.index);
  keys.template fetch<kForwardGroups * kThreads>({a.key, sample, number}, 0, rows, tokens, thread);
  values.template fetch<kForwardGroups * kThreads>({a.value, sample, number}, 0, rows, tokens, thread);
  __pipeline_commit();
  __pipeline_wait_prior(0);
  wgmma::publish_shared();
  __syncthreads();
  Attend<T, kWidth> work(keys, values, a.scale * kLog2E, tokens);
  for (; row / kRows * kRows < tokens; row += kStride) {
    __pipeline_wait_prior(0);
    __syncwarp();
    work.run(own, [&] {
      __syncwarp();
      if ((row + kStride) / kRows * kRows < tokens)
        own.template fetch<kWarp>(query, row + kStride, kTile, tokens, lane.index);
      __pipeline_commit();
    });
    store_rows(out, work.sums, 1 / work.total[0], 1 / work.total[1], row, tokens);
    if (lane.column == 0) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int place = row + lane.row + 8 * i;
        if (place < tokens) a.log_sum_exp[blockIdx.x * a.tokens + place] = work.log_sum_exp(i);
      }
    }
  }
}

}  // namespace

void short_attention_sm90(const ShortAttention& args, cudaStream_t stream) {
  with_heads(args, [&]<typename T, int kWidth>() {
    const std::size_t rows = rounded(static_cast<int>(args.tokens), kTile),
                      bytes = (2 * rows + kForwardGroups * kRows) * kWidth * 2;
    allow_shared(short_attention_kernel<T, kWidth>, bytes);
    const auto blocks = static_cast<unsigned>(args.batch * args.heads);
    if (blocks > 0)
      short_attention_kernel<T, kWidth>
          <<<blocks, kForwardGroups * kThreads, bytes, stream>>>(args);
  });
  check_launch("short_attention");
}

void short_attention_backward_sm90(const ShortAttentionBackward& args, cudaStream_t stream) {
  with_heads(args.forward, [&]<typename T, int kWidth>() {
    const std::size_t bytes = Room<T, kWidth>::bytes(static_cast<int>(args.forward.tokens));
    allow_shared(short_attention_backward_kernel<T, kWidth>, bytes);
    const auto blocks = static_cast<unsigned>(2 * args.forward.batch * args.forward.heads);
    if (blocks > 0)
      short_attention_backward_kernel<T, kWidth><<<blocks, kThreads, bytes, stream>>>(args);
  });
  check_launch("short_attention_backward");
}

}  // namespace dstrain::kernels::cuda
