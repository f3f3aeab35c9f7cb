#include <cooperative_groups.h>

#include <cfloat>

#include "engine/kernels/device.cuh"
#include "engine/kernels/loss/vocab_loss.cuh"

/// Cross entropy over rows of 10^5 classes on GPUs with clusters of blocks: eight blocks hold a row
/// in registers, so that it is read once. They meet through each other's shared memory.
namespace dstrain::kernels::cuda {
namespace {

namespace cg = cooperative_groups;

constexpr int kThreads = 512;
constexpr int kBlocks = 8;  // of a row: the largest cluster that every such GPU runs
constexpr std::int64_t kPacksAtOnce = kThreads * kBlocks;

/// What a block knows of its part of a row, or all of the row.
struct RowPart {
  float max;    // finite: a logit of -inf must not make a nan
  float sum;    // of exp(x - max)
  bool beaten;  // some class stands before the label
};

/// Makes the compiler unpack the numbers again: kept as fp32 they would not fit the registers.
template <typename T>
__device__ void forget_unpacked(Pack<T>& pack) {
  auto* words = reinterpret_cast<unsigned*>(&pack);
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(pack) / sizeof(unsigned)); ++i)
    asm volatile("" : "+r"(words[i]));
}

/// The largest of eight numbers, by pairs; nan only where all are.
template <typename T>
__device__ float largest_of(const Pack<T>& pack) {
  const auto* pairs = reinterpret_cast<const TwoOf<T>*>(&pack);
  const auto pair = __hmax2(__hmax2(pairs[0], pairs[1]), __hmax2(pairs[2], pairs[3]));
  return fmaxf(to_float(pair.x), to_float(pair.y));
}

/// exp(x) as __expf takes it, but 0 where that is below 2^-126: three instructions less for each
/// class, and more than memory, instructions limit this kernel.
__device__ float exponential(float x) { return exp2_of(x * kLog2E); }

/// A row's packs of eight go around its threads; thread 0 of each block also has one of the up to
/// seven classes after the last pack. Up to five packs a thread leave registers for a third block.
template <typename T, int kPacks>
__global__ void __cluster_dims__(kBlocks, 1, 1) __launch_bounds__(kThreads, kPacks <= 5 ? 3 : 2)
    vocab_loss_cluster_kernel(const VocabLoss a) {
  __shared__ float shared[kWarp];
  __shared__ RowPart own_part, whole;
  const cg::cluster_group cluster = cg::this_cluster();
  const std::int64_t row = blockIdx.x / kBlocks, packs = a.classes / kPack;
  const int block = static_cast<int>(cluster.block_rank());
  const std::int64_t first = block * kThreads + static_cast<int>(threadIdx.x);
  const std::int64_t last = packs * kPack + block;  // the class of thread 0 after the packs
  const bool has_last = threadIdx.x == 0 && last < a.classes;
  T* logits = static_cast<T*>(a.logits) + row * a.stride;
  const float weight = a.weights[row];
  if (weight == 0) {
    if (threadIdx.x == 0 && block == 0) a.loss[row] = a.top1[row] = 0;
    if (a.grad_loss == nullptr) return;
    const float zeros[kPack] = {};
    for (std::int64_t pack = first; pack < packs; pack += kPacksAtOnce)
      store(logits, pack, Pack<T>::of(zeros));
    if (has_last) logits[last] = from_float<T>(0.0f);
    return;
  }
  const std::int64_t label = a.labels[row];
  const bool known = label >= 0 && label < a.classes;
  const float own = known ? to_float(logits[label]) : nanf("");

  Pack<T> kept[kPacks];
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    const std::int64_t pack = first + i * kPacksAtOnce;
    if (pack < packs) kept[i] = load<T, kPack>(logits, pack);
  }
  const float last_logit = has_last ? to_float(logits[last]) : -FLT_MAX;

  float max = last_logit;
  bool beaten = has_last && (last_logit > own || (last_logit == own && last < label));
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    const std::int64_t pack = first + i * kPacksAtOnce;
    if (pack >= packs) continue;
    const float largest = largest_of(kept[i]);
    if (largest > own) beaten = true;
    if (largest == own) {
      float x[kPack];
      kept[i].unpack(x);
#pragma unroll
      for (int k = 0; k < kPack; ++k) beaten |= x[k] == own && pack * kPack + k < label;
    }
    max = fmaxf(max, largest);
  }
  max = block_max(max, shared);
  float sum = has_last ? exponential(last_logit - max) : 0;
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    if (first + i * kPacksAtOnce >= packs) continue;
    float x[kPack];
    forget_unpacked(kept[i]);
    kept[i].unpack(x);
#pragma unroll
    for (int k = 0; k < kPack; ++k) sum += exponential(x[k] - max);
  }
  sum = block_sum(sum, shared);
  beaten = __syncthreads_or(beaten) != 0;
  if (threadIdx.x == 0) own_part = {.max = max, .sum = sum, .beaten = beaten};
  cluster.sync();

  if (threadIdx.x < kWarp) {
    RowPart part = {.max = -FLT_MAX, .sum = 0, .beaten = false};
    if (threadIdx.x < kBlocks) part = *cluster.map_shared_rank(&own_part, threadIdx.x);
    const float largest = warp_max(part.max);
    const float together = warp_sum(part.sum * exponential(part.max - largest));
    const bool any = __any_sync(0xffffffffu, part.beaten) != 0;
    if (threadIdx.x == 0) whole = {.max = largest, .sum = together, .beaten = any};
  }
  __syncthreads();
  // A block's shared memory must stay until the others have read it.
  auto arrived = cluster.barrier_arrive();
  const float row_max = whole.max, row_sum = whole.sum;
  if (threadIdx.x == 0 && block == 0) {
    const float loss = row_max + logf(row_sum) - own;
    a.loss[row] = weight * loss;
    // Beside a nan no class scores higher: only a row with a finite loss counts.
    a.top1[row] = isfinite(loss) && !whole.beaten ? weight : 0.0f;
  }
  if (a.grad_loss != nullptr) {
    const float factor = weight * *a.grad_loss, share = factor / row_sum;
    const std::int64_t own_pack = label < 0 ? -1 : label / kPack;
    const int own_place = static_cast<int>(label % kPack);
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      const std::int64_t pack = first + i * kPacksAtOnce;
      if (pack >= packs) continue;
      float x[kPack];
      forget_unpacked(kept[i]);
      kept[i].unpack(x);
#pragma unroll
      for (int k = 0; k < kPack; ++k) x[k] = exponential(x[k] - row_max) * share;
      if (pack == own_pack) {
#pragma unroll
        for (int k = 0; k < kPack; ++k) x[k] -= k == own_place ? factor : 0;
      }
      store(logits, pack, Pack<T>::of(x));
    }
    if (has_last) {
      const float grad = exponential(last_logit - row_max) * share;
      logits[last] = from_float<T>(last == label ? grad - factor : grad);
    }
  }
  cluster.barrier_wait(std::move(arrived));
}

template <typename T, int kPacks>
void launch(const VocabLoss& args, cudaStream_t stream) {
  vocab_loss_cluster_kernel<T, kPacks>
      <<<static_cast<unsigned>(args.rows * kBlocks), kThreads, 0, stream>>>(args);
  check_launch("vocab_loss_cluster");
}

template <typename T>
bool launch_of(const VocabLoss& args, cudaStream_t stream) {
  const std::int64_t each = (args.classes / kPack + kPacksAtOnce - 1) / kPacksAtOnce;
  // Few classes fill no cluster, and more than these no longer fit the registers.
  if (each < 2 || each > 8) return false;
  if (each <= 3) {
    launch<T, 3>(args, stream);
  } else if (each <= 5) {
    launch<T, 5>(args, stream);
  } else {
    launch<T, 8>(args, stream);
  }
  return true;
}

}  // namespace

bool vocab_loss_cluster(const VocabLoss& args, cudaStream_t stream) {
  if (args.dtype == DType::bf16) return launch_of<__nv_bfloat16>(args, stream);
  if (args.dtype == DType::f16) return launch_of<__half>(args, stream);
  return false;
}

}  // namespace dstrain::kernels::cuda
