#include "engine/kernels/attention/kernels.h"
#include "engine/kernels/device.cuh"

/// Softmax of capped scores, a block a row.
namespace dstrain::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWide = 4;  ///< scores of a thread at a time where rows are aligned

/// 1 - 2 / (1 + exp(2 x)); errors below 3e-7.
__device__ float tanh_of(float x) { return 1 - 2 * reciprocal_of(1 + exp2_of(2 * kLog2E * x)); }

/// The keys that one row's query sees.
class RowKeys {
 public:
  __device__ RowKeys(const SeenKeys& seen, std::int64_t row, std::int64_t keys)
      : place_(seen.places[row % seen.queries] - seen.first_key),
        begin_(seen.window > 0 ? place_ - seen.window + 1 : 0),
        end_(seen.causal && place_ + 1 < keys ? place_ + 1 : keys),
        sequences_(seen.sequences == nullptr ? nullptr : seen.sequences + seen.first_key) {
    if (sequences_ != nullptr) own_ = sequences_[place_];
  }
  [[nodiscard]] __device__ std::int64_t end() const { return end_; }
  [[nodiscard]] __device__ bool has(std::int64_t key) const {
    return key >= begin_ && key < end_ && (sequences_ == nullptr || sequences_[key] == own_);
  }

 private:
  std::int64_t place_, begin_, end_;
  const std::int32_t* sequences_;
  std::int32_t own_ = 0;
};

/// scale s, or the tanh by which a cap bends it.
struct Bend {
  float factor, softcap;
  __device__ Bend(float scale, float cap) : factor(cap > 0 ? scale / cap : scale), softcap(cap) {}
  [[nodiscard]] __device__ float bent(float score) const {
    return softcap > 0 ? tanh_of(factor * score) : factor * score;
  }
  [[nodiscard]] __device__ float score_of(float bent) const {
    return softcap > 0 ? softcap * bent : bent;
  }
};

template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads) capped_softmax_kernel(const CappedSoftmax a) {
  __shared__ float shared[kWarp];
  const std::int64_t row = blockIdx.x;
  const RowKeys keys(a.seen, row, a.keys);
  const Bend bend(a.scale, a.softcap);
  const float* scores = a.scores + row * a.keys;
  const auto at = [&](std::int64_t pack, float(&out)[kWidth]) {
    const Pack<float, kWidth> loaded = load<float, kWidth>(scores, pack);
#pragma unroll
    for (int i = 0; i < kWidth; ++i)
      out[i] = keys.has(pack * kWidth + i) ? bend.score_of(bend.bent(loaded.value[i])) : -INFINITY;
  };

  const std::int64_t seen = (keys.end() + kWidth - 1) / kWidth, packs = a.keys / kWidth;
  float largest = -INFINITY, sum = 0;
#pragma unroll 2
  for (std::int64_t pack = threadIdx.x; pack < seen; pack += kThreads) {
    float x[kWidth];
    at(pack, x);
    float next = largest;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) next = fmaxf(next, x[i]);
    if (next == -INFINITY) continue;
    sum *= exp2_of(kLog2E * (largest - next));
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sum += exp2_of(kLog2E * (x[i] - next));
    largest = next;
  }
  const float max = block_max(largest, shared);
  sum = block_sum(largest == -INFINITY ? 0 : sum * exp2_of(kLog2E * (largest - max)), shared);
  const float log_sum_exp = max + logf(sum);
  if (threadIdx.x == 0) a.log_sum_exp[row] = log_sum_exp;

  T* shares = static_cast<T*>(a.shares) + row * a.keys;
#pragma unroll 2
  for (std::int64_t pack = threadIdx.x; pack < packs; pack += kThreads) {
    float x[kWidth] = {};
    if (pack < seen) {
      at(pack, x);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) x[i] = exp2_of(kLog2E * (x[i] - log_sum_exp));
    }
    store(shares, pack, Pack<T, kWidth>::of(x));
  }
}

template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    capped_softmax_backward_kernel(const CappedSoftmaxBackward a) {
  __shared__ float shared[kWarp];
  const std::int64_t row = blockIdx.x;
  const RowKeys keys(a.seen, row, a.keys);
  const Bend bend(a.scale, a.softcap);
  const T *out = static_cast<const T*>(a.out) + row * a.width,
          *d_out = static_cast<const T*>(a.d_out) + row * a.width;
  float along = 0;
  for (std::int64_t i = threadIdx.x; i < a.width; i += kThreads)
    along += to_float(out[i]) * to_float(d_out[i]);
  along = block_sum(along, shared);

  const float log_sum_exp = a.log_sum_exp[row];
  const float *scores = a.scores + row * a.keys, *d_shares = a.d_shares + row * a.keys;
  T *shares = static_cast<T*>(a.shares) + row * a.keys,
    *d_scores = static_cast<T*>(a.d_scores) + row * a.keys;
  const std::int64_t seen = (keys.end() + kWidth - 1) / kWidth, packs = a.keys / kWidth;
#pragma unroll 2
  for (std::int64_t pack = threadIdx.x; pack < packs; pack += kThreads) {
    float share[kWidth] = {}, gradient[kWidth] = {};
    if (pack < seen) {
      const auto score = load<float, kWidth>(scores, pack),
                 d_share = load<float, kWidth>(d_shares, pack);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        if (!keys.has(pack * kWidth + i)) continue;
        const float bent = bend.bent(score.value[i]);
        share[i] = exp2_of(kLog2E * (bend.score_of(bent) - log_sum_exp));
        const float slope = a.softcap > 0 ? 1 - bent * bent : 1.0f;
        gradient[i] = share[i] * (d_share.value[i] - along) * slope * a.scale;
      }
    }
    store(shares, pack, Pack<T, kWidth>::of(share));
    store(d_scores, pack, Pack<T, kWidth>::of(gradient));
  }
}

/// The types of a kernel, and whether rows are aligned.
template <typename Body>
void with_width(DType dtype, std::int64_t keys, const Body& body) {
  with_type(dtype, [&](auto zero) {
    if (keys % kWide == 0) {
      body(zero, std::integral_constant<int, kWide>{});
    } else {
      body(zero, std::integral_constant<int, 1>{});
    }
  });
}

}  // namespace

void capped_softmax(const CappedSoftmax& args, cudaStream_t stream) {
  if (args.rows == 0) return;
  with_width(args.dtype, args.keys, [&](auto zero, auto width) {
    capped_softmax_kernel<decltype(zero), decltype(width)::value>
        <<<static_cast<unsigned>(args.rows), kThreads, 0, stream>>>(args);
  });
  check_launch("capped_softmax");
}

void capped_softmax_backward(const CappedSoftmaxBackward& args, cudaStream_t stream) {
  if (args.rows == 0) return;
  with_width(args.dtype, args.keys, [&](auto zero, auto width) {
    capped_softmax_backward_kernel<decltype(zero), decltype(width)::value>
        <<<static_cast<unsigned>(args.rows), kThreads, 0, stream>>>(args);
  });
  check_launch("capped_softmax_backward");
}

}  // namespace dstrain::kernels::cuda
