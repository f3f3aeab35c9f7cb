#include "engine/kernels/attention/short_attention_sm90.cuh"

/// Backward: one warpgroup makes the gradients of keys and values, another one those of queries.
namespace dstrain::kernels::cuda {
namespace {

/// Per row of a head, as in RowFacts; a row behind the last one has no probability.
struct Facts {
  float *log_sums, *products;
};

/// By two warpgroups; gradients come to shared memory as the oldest group of copies. Eight lanes
/// have eight rows, four of them 16 bytes each of a row at a time.
template <typename T, int kWidth>
__device__ void find_facts(const Facts& facts, const Head<T>& out, const Stored<T, kWidth>& grads,
                           const float* log_sum_exp, int tokens, int rows) {
  constexpr int kPacks = kWidth / kPack, kSteps = (kPacks + 3) / 4;
  constexpr int kStride = 2 * kWarps * 8;
  constexpr int kAtOnce = 5;  // rows of a lane whose reads are under way
  const Lane lane;
  const int part = lane.index / 8;
#pragma unroll 1
  for (int start = lane.warp * 8 + lane.index % 8; start < rows; start += kStride * kAtOnce) {
    uint4 x[kAtOnce][kSteps];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int row = start + i * kStride;
#pragma unroll
      for (int k = 0; k < kSteps; ++k)
        x[i][k] = row < tokens && 4 * k + part < kPacks
                      ? *reinterpret_cast<const uint4*>(out.rows + row * out.stride +
                                                        (4 * k + part) * kPack)
                      : uint4{0, 0, 0, 0};
    }
    if (start < kStride) {
      const auto thread = static_cast<int>(threadIdx.x);
      const float first = thread < tokens ? log_sum_exp[thread] : INFINITY,
                  second = thread + 2 * kThreads < tokens ? log_sum_exp[thread + 2 * kThreads]
                                                          : INFINITY;
      if (thread < rows) facts.log_sums[thread] = first * kLog2E;
      if (thread + 2 * kThreads < rows) facts.log_sums[thread + 2 * kThreads] = second * kLog2E;
      __pipeline_wait_prior(1);
      __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int row = start + i * kStride, stored = min(row, tokens - 1);
      float product = 0;
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
        const uint4 y = grads.load(stored, min(4 * k + part, kPacks - 1));
        const std::uint32_t a[4] = {x[i][k].x, x[i][k].y, x[i][k].z, x[i][k].w},
                            b[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float2 p = unpack_pair<T>(a[j]), q = unpack_pair<T>(b[j]);
          product += p.x * q.x + p.y * q.y;
        }
      }
      product += __shfl_xor_sync(0xffffffffu, product, 8);
      product += __shfl_xor_sync(0xffffffffu, product, 16);
      if (part == 0 && row < rows) facts.products[row] = product;
    }
  }
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
  template <int kColumns>
  using ScoresOf = Scores<kColumns>;
  template <int kColumns>
  using WeightsOf = Weights<kColumns, kOfKeys>;

  __device__ Gradients(const Stored<T, kWidth>& firsts, const Stored<T, kWidth>& seconds,
                       const Facts& facts, float scale, int tokens)
      : firsts_(firsts), seconds_(seconds), facts_(facts), scale_(scale), tokens_(tokens) {}

  /// Loads this warp's rows of `first` and `second`, from row `row` on.
  __device__ void load(const Stored<T, kWidth>& first, const Stored<T, kWidth>& second, int row) {
    first.to(first_);
    second.to(second_);
    if constexpr (!kOfKeys) {
      const int place = row + Lane().row;
#pragma unroll
      for (int i = 0; i < 2; ++i)
        row_[i] = {facts_.log_sums[place + 8 * i], facts_.products[place + 8 * i]};
    }
  }

  __device__ void run() {
    in_chunks(*this, tokens_);
    wgmma::wait<0>();
    wgmma::pin(first_sums);
    if constexpr (kOfKeys) wgmma::pin(second_sums);
  }

  float first_sums[kWidth / 8][4];
  float second_sums[kOfKeys ? kWidth / 8 : 1][4];

 private:
  template <typename Work>
  friend __device__ void cuda::in_chunks(Work& work, int tokens);

  /// Scores from `column` on, and their gradients, as two groups of products.
  template <int kColumns>
  __device__ void start(Scores<kColumns>& scores, int column) {
    wgmma::begin();
    multiply_by_rows(scores.score, first_, firsts_, column);
    wgmma::commit();
    multiply_by_rows(scores.grad, second_, seconds_, column);
    wgmma::commit();
  }

  /// Waits for what start() began, and the products of the chunk before, whose weights then may be
  /// overwritten.
  template <int kBefore, int kColumns>
  __device__ void weigh(Weights<kColumns, kOfKeys>& weights, Scores<kColumns>& scores, int column) {
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
      const int place = column + n * 8 + Lane().column;
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
      const int place = column + n * 8 + Lane().column;
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
  __device__ static void pack(Weights<kColumns, kOfKeys>& weights, const Scores<kColumns>& scores) {
#pragma unroll
    for (int k = 0; k < kColumns / kTile; ++k) {
      if constexpr (kOfKeys) weights.probability[k] = left_of<T>(scores.score, 2 * k);
      weights.grad[k] = left_of<T>(scores.grad, 2 * k);
    }
  }

  /// Adds the products with the rows from `column` on, one group.
  template <int kColumns>
  __device__ void add(const Weights<kColumns, kOfKeys>& weights, int column) {
    const std::uint64_t firsts = firsts_.operand(column), seconds = seconds_.operand(column);
    wgmma::begin();
#pragma unroll
    for (int k = 0; k < kColumns / kTile; ++k) {
      const int further = 2 * k * Stored<T, kWidth>::kEight;
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
  Left first_[kSteps], second_[kSteps];
  RowFacts row_[kOfKeys ? 1 : 2];
};

/// Sums over a warp's rows of what it stores of the gradient of queries. A lane holds those of half
/// the tiles, of one of their two columns: lanes exchange halves before they add.
template <typename T, int kTiles>
class StoredSums {
 public:
  /// What store_rows writes of the same sums.
  __device__ void add(const float (&sums)[kTiles][4], float scale, int first, int tokens) {
    const bool has_low = first + Lane().row < tokens, has_high = first + Lane().row + 8 < tokens;
    float2 rows[kTiles];
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const float2 low = unpack_pair<T>(
                       has_low ? pack_pair<T>(sums[n][0] * scale, sums[n][1] * scale) : 0),
                   high = unpack_pair<T>(
                       has_high ? pack_pair<T>(sums[n][2] * scale, sums[n][3] * scale) : 0);
      rows[n] = {low.x + high.x, low.y + high.y};
    }
#pragma unroll
    for (int n = 0; n < kHalf; ++n) {
      const float2 own = late_ ? rows[kHalf + n] : rows[n],
                   other = late_ ? rows[n] : rows[kHalf + n];
      const float x = own.x + __shfl_xor_sync(0xffffffffu, other.x, 16),
                  y = own.y + __shfl_xor_sync(0xffffffffu, other.y, 16);
      const float sum = (odd_ ? y : x) + __shfl_xor_sync(0xffffffffu, odd_ ? x : y, 8);
      own_[n] += sum + __shfl_xor_sync(0xffffffffu, sum, 4);
    }
  }

  /// To a row of kTiles * 8 columns.
  __device__ void store(float* row) const {
    if ((Lane().row & 1) != 0) return;
#pragma unroll
    for (int n = 0; n < kHalf; ++n)
      row[((late_ ? kHalf : 0) + n) * 8 + Lane().column + (odd_ ? 1 : 0)] = own_[n];
  }

 private:
  static constexpr int kHalf = kTiles / 2;
  bool late_ = (Lane().row & 4) != 0, odd_ = (Lane().row & 2) != 0;
  float own_[kHalf] = {};
};

/// Sums over rows in shared memory, eight at a time and those of this warp, to a row of kWidth
/// columns.
template <typename T, int kWidth>
__device__ void store_sums(float* row, const Stored<T, kWidth>& stored, int rows) {
  constexpr int kPacks = kWidth / kPack, kGroups = kWarp / 8;
  const Lane lane;
  const int of_eight = lane.index % 8, group = lane.index / 8;
#pragma unroll 1
  for (int pack = group; pack < rounded(kPacks, kGroups); pack += kGroups) {
    float2 sums[kPack / 2] = {};
#pragma unroll 4
    for (int first = lane.warp % kWarps * 8; first < rows && pack < kPacks; first += kWarps * 8) {
      const uint4 x = stored.load(first + of_eight, pack);
      const std::uint32_t words[kPack / 2] = {x.x, x.y, x.z, x.w};
#pragma unroll
      for (int i = 0; i < kPack / 2; ++i) {
        const float2 pair = unpack_pair<T>(words[i]);
        sums[i].x += pair.x;
        sums[i].y += pair.y;
      }
    }
#pragma unroll
    for (int offset = 4; offset > 0; offset /= 2) {
#pragma unroll
      for (float2& sum : sums) {
        sum.x += __shfl_xor_sync(0xffffffffu, sum.x, offset);
        sum.y += __shfl_xor_sync(0xffffffffu, sum.y, offset);
      }
    }
    if (of_eight == 0 && pack < kPacks) {
#pragma unroll
      for (int i = 0; i < kPack / 2; ++i)
        *reinterpret_cast<float2*>(row + pack * kPack + 2 * i) = sums[i];
    }
  }
}

/// What a block keeps in shared memory: query, key, value and gradient of the output, facts of
/// rows.
template <typename T, int kWidth>
struct Plan {
  using Rows = Stored<T, kWidth>;
  Rows query, key, value, grad;
  Facts facts;

  __device__ Plan(char* shared, int tokens)
      : query{shared_address(shared)},
        key(query.from(rounded(tokens, kTile))),
        value(key.from(rounded(tokens, kTile))),
        grad(value.from(rounded(tokens, kTile))),
        facts{reinterpret_cast<float*>(shared + 4 * Rows::bytes(rounded(tokens, kTile))), nullptr} {
    facts.products = facts.log_sums + rounded(tokens, kRows);
  }

  static std::size_t bytes(int tokens) {
    return static_cast<std::size_t>(4 * Rows::bytes(rounded(tokens, kTile))) +
           static_cast<std::size_t>(2 * rounded(tokens, kRows)) * sizeof(float);
  }
};

/// All gradients of keys and values, or of queries, by one warpgroup.
template <typename T, int kWidth, bool kOfKeys, bool kSums>
__device__ void gradients(const ShortAttentionBackward& a, const Plan<T, kWidth>& plan, int sample,
                          int number) {
  StoredSums<T, kWidth / 8> stored;
  const int tokens = static_cast<int>(a.forward.tokens);
  const Lane lane;
  const int own_row = lane.warp % kWarps * kTile;
  const auto& firsts = kOfKeys ? plan.query : plan.key;
  const auto& seconds = kOfKeys ? plan.grad : plan.value;
  Gradients<T, kWidth, kOfKeys> work(firsts, seconds, plan.facts, a.forward.scale * kLog2E, tokens);
#pragma unroll 1
  for (int row = own_row; row - own_row < tokens; row += kRows) {
    // Rows that are not there may be any others.
    const int place = min(row, rounded(tokens, kTile) - kTile);
    work.load((kOfKeys ? plan.key : plan.query).from(place),
              (kOfKeys ? plan.value : plan.grad).from(place), row);
    work.run();
    // Nothing of where rows go is kept in registers, of which products leave none.
    asm volatile("" : "+r"(sample), "+r"(number));
    store_rows(Head<T>(kOfKeys ? a.key_grad : a.query_grad, sample, number), work.first_sums,
               a.forward.scale, a.forward.scale, row, tokens);
    if constexpr (kOfKeys)
      store_rows(Head<T>(a.value_grad, sample, number), work.second_sums, 1, 1, row, tokens);
    if constexpr (kSums && !kOfKeys) stored.add(work.first_sums, a.forward.scale, row, tokens);
  }
  if constexpr (kSums && !kOfKeys) {
    const std::int64_t start = (sample * kShortAttentionSums + lane.warp % kWarps) * a.sums.stride;
    stored.store(a.sums.query + start + number * a.query_grad.head);
    store_sums(a.sums.value + start + number * a.value_grad.head, plan.grad,
               rounded(tokens, kTile));
    float* keys = a.sums.key + start + number * a.key_grad.head;
    for (int i = lane.index; i < kWidth; i += kWarp) keys[i] = 0;
  }
}

/// A block for each head: one warpgroup for the gradients of keys and values, one for those of
/// queries.
template <typename T, int kWidth, bool kSums>
__global__ void __launch_bounds__(2 * kThreads, 1)
    short_attention_backward_kernel(const ShortAttentionBackward a) {
  extern __shared__ __align__(1024) char shared[];
  const int tokens = static_cast<int>(a.forward.tokens), rows = rounded(tokens, kTile);
  const Plan<T, kWidth> plan(shared, tokens);
  const std::int64_t sample = blockIdx.x / a.forward.heads,
                     number = blockIdx.x - sample * a.forward.heads;
  const auto head = [&](const HeadsView& view) { return Head<T>(view, sample, number); };
  const auto thread = static_cast<int>(threadIdx.x);
  plan.grad.template fetch<2 * kThreads>(head(a.grad), 0, rows, tokens, thread);
  __pipeline_commit();
  plan.query.template fetch<2 * kThreads>(head(a.forward.query), 0, rows, tokens, thread);
  plan.key.template fetch<2 * kThreads>(head(a.forward.key), 0, rows, tokens, thread);
  plan.value.template fetch<2 * kThreads>(head(a.forward.value), 0, rows, tokens, thread);
  __pipeline_commit();
  find_facts<T, kWidth>(plan.facts, head(a.forward.out), plan.grad,
                        a.forward.log_sum_exp + blockIdx.x * a.forward.tokens, tokens,
                        rounded(tokens, kRows));
  __pipeline_wait_prior(0);
  wgmma::publish_shared();
  __syncthreads();
  if (thread < kThreads) {
    gradients<T, kWidth, true, kSums>(a, plan, static_cast<int>(sample), static_cast<int>(number));
  } else {
    gradients<T, kWidth, false, kSums>(a, plan, static_cast<int>(sample), static_cast<int>(number));
  }
}

}  // namespace

void short_attention_backward_sm90(const ShortAttentionBackward& args, cudaStream_t stream) {
  with_heads(args.forward, [&]<typename T, int kWidth>() {
    const std::size_t bytes = Plan<T, kWidth>::bytes(static_cast<int>(args.forward.tokens));
    const auto kernel = args.sums.query == nullptr
                            ? short_attention_backward_kernel<T, kWidth, false>
                            : short_attention_backward_kernel<T, kWidth, true>;
    allow_shared(kernel, "short_attention_backward_sm90", bytes);
    const auto blocks = static_cast<unsigned>(args.forward.batch * args.forward.heads);
    if (blocks > 0) kernel<<<blocks, 2 * kThreads, bytes, stream>>>(args);
  });
  check_launch("short_attention_backward");
}

}  // namespace dstrain::kernels::cuda
