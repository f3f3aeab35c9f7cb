#include "engine/kernels/attention/short_attention_sm90.cuh"

/// Forward: rows of queries against all keys.
namespace dstrain::kernels::cuda {
namespace {

constexpr int kBlocks = 2;  ///< on a multiprocessor

/// 64 rows of queries against all keys.
template <typename T, int kWidth>
class Attend {
 public:
  static constexpr int kSteps = kWidth / kTile;
  template <int kColumns>
  using ScoresOf = float[kColumns / 8][4];
  template <int kColumns>
  using WeightsOf = Left[kColumns / kTile];

  __device__ Attend(const Stored<T, kWidth>& keys, const Stored<T, kWidth>& values, float scale,
                    int tokens)
      : keys_(keys), values_(values), scale_(scale), tokens_(tokens) {}

  /// Runs this warp's queries; `taken` is called when they are in registers.
  template <typename Taken>
  __device__ void run(const Stored<T, kWidth>& queries, const Taken& taken) {
    queries.to(queries_);
    taken();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      top_[i] = -INFINITY;
      total[i] = 0;
    }
    in_chunks(*this, tokens_);
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
  template <typename Work>
  friend __device__ void cuda::in_chunks(Work& work, int tokens);

  template <int kTiles>
  __device__ void start(float (&scores)[kTiles][4], int column) {
    wgmma::begin();
    multiply_by_rows(scores, queries_, keys_, column);
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
    const bool grown =
        __any_sync(0xffffffffu, highest[0] > top_[0] + kSlack || highest[1] > top_[1] + kSlack);
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
    const std::uint64_t values = values_.operand(column);
    wgmma::begin();
#pragma unroll
    for (int k = 0; k < kTiles; ++k)
      wgmma::multiply<T, true>(sums, weights[k],
                               wgmma::moved(values, 2 * k * Stored<T, kWidth>::kEight),
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

/// A block of one warpgroup for each head: with two of them the registers would not do for products
/// that run on.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads, kBlocks)
    short_attention_kernel(const ShortAttention a) {
  extern __shared__ __align__(1024) char shared[];
  const int tokens = static_cast<int>(a.tokens), rows = rounded(tokens, kTile);
  const auto thread = static_cast<int>(threadIdx.x);
  const Lane lane;
  const std::int64_t sample = blockIdx.x / a.heads, number = blockIdx.x - sample * a.heads;
  const Head<T> query(a.query, sample, number), out(a.out, sample, number);
  using Rows = Stored<T, kWidth>;
  const int own_row = lane.warp * kTile;
  const Rows keys{shared_address(shared)}, values = keys.from(rows),
                                           own = values.from(rows + own_row);
  own.template fetch<kWarp>(query, own_row, kTile, tokens, lane.index);
  keys.template fetch<kThreads>({a.key, sample, number}, 0, rows, tokens, thread);
  values.template fetch<kThreads>({a.value, sample, number}, 0, rows, tokens, thread);
  __pipeline_commit();
  __pipeline_wait_prior(0);
  wgmma::publish_shared();
  __syncthreads();
  Attend<T, kWidth> work(keys, values, a.scale * kLog2E, tokens);
  for (int tile = 0; tile < tokens; tile += kRows) {
    const int row = tile + own_row;
    __pipeline_wait_prior(0);
    __syncwarp();
    work.run(own, [&] {
      __syncwarp();
      if (tile + kRows < tokens)
        own.template fetch<kWarp>(query, row + kRows, kTile, tokens, lane.index);
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
    using Rows = Stored<T, kWidth>;
    const int rows = rounded(static_cast<int>(args.tokens), kTile);
    const auto bytes = static_cast<std::size_t>(2 * Rows::bytes(rows) + Rows::bytes(kRows));
    allow_shared(short_attention_kernel<T, kWidth>, "short_attention_sm90", bytes);
    const auto blocks = static_cast<unsigned>(args.batch * args.heads);
    if (blocks > 0) short_attention_kernel<T, kWidth><<<blocks, kThreads, bytes, stream>>>(args);
  });
  check_launch("short_attention");
}

}  // namespace dstrain::kernels::cuda
