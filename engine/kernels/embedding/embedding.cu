#include <bit>
#include <cub/device/device_radix_sort.cuh>
#include <limits>
#include <type_traits>

#include "engine/kernels/device.cuh"
#include "engine/kernels/embedding/kernels.h"
#include "engine/kernels/gradient_format.h"

/// Token embedding. Backward sorts the rows by token (radix sort is stable, so rows of a token keep
/// their order) and sums them in chunks of the sorted list. A token's rows that lie within a chunk
/// go straight to the gradient; where they cross chunks, each chunk leaves a fragment, and a second
/// kernel adds the fragments up, so that no thread walks along a token repeated all over the batch.
namespace dstrain::kernels {
namespace {

constexpr int kWarps = 8;
constexpr int kChunk = cuda::kWarp;  // rows of a chunk: a lane knows one of them
constexpr int kBatch = 4;            // loads that a lane has under way
constexpr std::int64_t kAligned = 256;

std::int64_t aligned(std::int64_t bytes) { return (bytes + kAligned - 1) / kAligned * kAligned; }

std::int64_t num_chunks(std::int64_t rows) { return (rows + kChunk - 1) / kChunk; }

/// Bits that tell tokens apart, `vocab` standing for all unknown ones.
int token_bits(std::int64_t vocab) {
  return static_cast<int>(std::bit_width(static_cast<std::uint64_t>(vocab)));
}

void check(cudaError_t error) {
  if (error != cudaSuccess) {
    throw Error(ErrorKind::internal,
                std::string("embed_tokens_backward: sort: ") + cudaGetErrorString(error));
  }
}

/// The scratch memory, divided.
struct Scratch {
  std::int32_t *tokens, *sorted_tokens, *rows, *sorted_rows;  // [rows]
  float* heads;  // [chunks, dim]: of the token that came from the chunk before
  float* tails;  // [chunks, dim]: of the token that began here and goes on in the chunk after
  void* sort;
  std::size_t sort_bytes = 0;
  std::int64_t bytes = 0;

  Scratch(void* base, std::int64_t num_rows, std::int64_t vocab, std::int64_t dim) {
    const auto take = [&]<typename T>(T*& pointer, std::int64_t count) {
      pointer = reinterpret_cast<T*>(static_cast<char*>(base) + bytes);
      bytes += aligned(count * static_cast<std::int64_t>(sizeof(T)));
    };
    take(tokens, num_rows);
    take(sorted_tokens, num_rows);
    take(rows, num_rows);
    take(sorted_rows, num_rows);
    take(heads, num_chunks(num_rows) * dim);
    take(tails, num_chunks(num_rows) * dim);
    check(cub::DeviceRadixSort::SortPairs(nullptr, sort_bytes, tokens, sorted_tokens, rows,
                                          sorted_rows, static_cast<int>(num_rows), 0,
                                          token_bits(vocab)));
    char* place = nullptr;
    take(place, static_cast<std::int64_t>(sort_bytes));
    sort = place;
  }
};

void check_sizes(std::int64_t rows, std::int64_t vocab, std::int64_t dim) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int32_t>::max();
  require_taken(kEmbeddingDims, dim, "embed_tokens, width");
  if (rows > kMax || vocab >= kMax) {
    throw Error(
        ErrorKind::internal,
        "embed_tokens: " + std::to_string(rows) + " rows, " + std::to_string(vocab) + " tokens",
        "fewer than 2^31 of either work on a GPU");
  }
}

}  // namespace

std::int64_t embed_tokens_scratch(std::int64_t rows, std::int64_t vocab, std::int64_t dim) {
  check_sizes(rows, vocab, dim);
  return Scratch(nullptr, rows, vocab, dim).bytes;
}

namespace cuda {
namespace {

/// A warp copies a row.
template <typename T>
__global__ void __launch_bounds__(kWarps* kWarp) embed_tokens_kernel(const EmbedTokens a) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (row >= a.rows) return;
  const std::int64_t token = a.tokens[row];
  const int packs = static_cast<int>(a.dim) / kPack;
  if (token < 0 || token >= a.vocab) {
    Pack<T> unknown;
#pragma unroll
    for (int i = 0; i < kPack; ++i) unknown.value[i] = from_float<T>(nanf(""));
    for (int pack = static_cast<int>(threadIdx.x) % kWarp; pack < packs; pack += kWarp)
      store(a.out, row * packs + pack, unknown);
    return;
  }
  for (int first = static_cast<int>(threadIdx.x) % kWarp; first < packs; first += kBatch * kWarp) {
    Pack<T> batch[kBatch];
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      const int pack = first + k * kWarp;
      if (pack < packs) batch[k] = load<T, kPack>(a.table, token * packs + pack);
    }
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      const int pack = first + k * kWarp;
      if (pack < packs) store(a.out, row * packs + pack, batch[k]);
    }
  }
}

__global__ void __launch_bounds__(kWarps* kWarp)
    number_rows_kernel(const EmbedTokensBackward a, const Scratch scratch) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWarps * kWarp + threadIdx.x;
  if (row >= a.rows) return;
  const std::int64_t token = a.tokens[row];
  scratch.tokens[row] = static_cast<std::int32_t>(token < 0 || token >= a.vocab ? a.vocab : token);
  scratch.rows[row] = static_cast<std::int32_t>(row);
}

/// A warp sums 32 packs of columns over one chunk of the sorted rows. G is the table's type.
template <typename T, typename G>
__global__ void __launch_bounds__(kWarps* kWarp)
    sum_chunks_kernel(const EmbedTokensBackward a, const Scratch scratch) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t packs = a.dim / kPack;
  const std::int64_t chunk = blockIdx.x, begin = chunk * kChunk;
  const std::int64_t column =
      static_cast<std::int64_t>(blockIdx.y) * kWarps + threadIdx.x / kWarp;  // in units of 32 packs
  const std::int64_t pack = column * kWarp + lane;
  if (column * kWarp >= packs) return;  // the whole warp
  const bool live = pack < packs;
  const int count = static_cast<int>(min(static_cast<std::int64_t>(kChunk), a.rows - begin));
  constexpr std::int32_t kNone = -1;  // no token's number
  const std::int32_t token = lane < count ? scratch.sorted_tokens[begin + lane] : kNone,
                     row = lane < count ? scratch.sorted_rows[begin + lane] : 0;
  const std::int32_t before = begin > 0 ? scratch.sorted_tokens[begin - 1] : kNone,
                     after = begin + count < a.rows ? scratch.sorted_tokens[begin + count] : kNone;
  bool from_before = before == __shfl_sync(0xffffffffu, token, 0);

  float sum[kPack] = {};
  for (int base = 0; base < count; base += kBatch) {
    // All loads of the batch come first, rows of the gradient among them: no other adds to those
    // of a token whose last row is here.
    Pack<T> grad[kBatch];
    Pack<G> old[kBatch];
    bool ends[kBatch];   // the token's sum, within this chunk
    void* into[kBatch];  // where the sum goes; null: nowhere
    bool whole[kBatch];  // it goes to the gradient, of type G; else to a fragment in fp32
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      const int r = base + k;
      const std::int64_t source = __shfl_sync(0xffffffffu, row, r);
      const std::int32_t own = __shfl_sync(0xffffffffu, token, r),
                         follower = __shfl_sync(0xffffffffu, token, (r + 1) % kWarp);
      const bool goes_on = own == (r + 1 < count ? follower : after);
      ends[k] = r < count && (r + 1 == count || !goes_on);
      into[k] = nullptr;
      whole[k] = false;
      old[k] = {};
      if (!live || r >= count) continue;
      grad[k] = load<T, kPack>(a.grad_out, source * packs + pack);
      if (!ends[k]) continue;
      if (from_before) {
        into[k] = scratch.heads + (chunk * packs + pack) * kPack;
      } else if (goes_on) {
        into[k] = scratch.tails + (chunk * packs + pack) * kPack;
      } else if (own < a.vocab) {
        into[k] = static_cast<G*>(a.grad_table) + (own * packs + pack) * kPack;
        whole[k] = true;
        old[k] = load<G, kPack>(into[k], 0);
      }
      from_before = false;
    }
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      if (!live || base + k >= count) continue;
      float value[kPack];
      grad[k].unpack(value);
#pragma unroll
      for (int i = 0; i < kPack; ++i) sum[i] += value[i];
      if (!ends[k]) continue;
      if (into[k] != nullptr) {
        old[k].unpack(value);
#pragma unroll
        for (int i = 0; i < kPack; ++i) value[i] += sum[i];
        if (std::is_same_v<G, float> || !whole[k]) {
          store(into[k], 0, Pack<float>::of(value));
        } else {
          store(into[k], 0, Pack<G>::of(value));
        }
      }
#pragma unroll
      for (int i = 0; i < kPack; ++i) sum[i] = 0;
    }
  }
}

/// A block adds up the fragments of the token that began in its chunk and went on, for 32 packs of
/// columns: warp w takes fragments w, w + 8, ..., then the warps are added in order.
template <typename G>
__global__ void __launch_bounds__(kWarps* kWarp)
    add_fragments_kernel(const EmbedTokensBackward a, const Scratch scratch) {
  const std::int64_t chunk = blockIdx.x, begin = chunk * kChunk, end = begin + kChunk;
  if (end >= a.rows) return;
  const std::int32_t token = scratch.sorted_tokens[end];
  if (token >= a.vocab || scratch.sorted_tokens[end - 1] != token ||
      (begin > 0 && scratch.sorted_tokens[begin - 1] == token)) {
    return;
  }
  // The token's fragments lie in as many chunks as begin with it; they follow one another.
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t chunks = (a.rows + kChunk - 1) / kChunk;
  std::int64_t fragments = 1;
  for (std::int64_t first = chunk + 1;; first += kWarps * kWarp) {
    const std::int64_t other = first + thread;
    const int same = __syncthreads_count(
        other < chunks && scratch.sorted_tokens[other * kChunk] == token ? 1 : 0);
    fragments += same;
    if (same < kWarps * kWarp) break;
  }

  __shared__ float sums[kWarps][kWarp][kPack + 1];  // one more, so that lanes meet no bank twice
  const int lane = thread % kWarp, warp = thread / kWarp;
  const std::int64_t packs = a.dim / kPack;
  const std::int64_t pack = static_cast<std::int64_t>(blockIdx.y) * kWarp + lane;
  float sum[kPack] = {};
  if (pack < packs) {
#pragma unroll 4
    for (std::int64_t f = warp; f < fragments; f += kWarps) {
      float value[kPack];
      load<float, kPack>(f == 0 ? scratch.tails : scratch.heads, (chunk + f) * packs + pack)
          .unpack(value);
#pragma unroll
      for (int i = 0; i < kPack; ++i) sum[i] += value[i];
    }
  }
#pragma unroll
  for (int i = 0; i < kPack; ++i) sums[warp][lane][i] = sum[i];
  __syncthreads();
  if (warp > 0 || pack >= packs) return;
  float total[kPack];
  load<G, kPack>(a.grad_table, token * packs + pack).unpack(total);
#pragma unroll
  for (int i = 0; i < kPack; ++i) {
    for (int w = 1; w < kWarps; ++w) sum[i] += sums[w][lane][i];
    total[i] += sum[i];
  }
  store(a.grad_table, token * packs + pack, Pack<G>::of(total));
}

}  // namespace

void embed_tokens(const EmbedTokens& args, cudaStream_t stream) {
  check_sizes(args.rows, args.vocab, args.dim);
  if (args.rows == 0) return;
  with_type(args.dtype, [&](auto zero) {
    embed_tokens_kernel<decltype(zero)>
        <<<blocks_for(args.rows, kWarps), kWarps * kWarp, 0, stream>>>(args);
  });
  check_launch("embed_tokens");
}

void embed_tokens_backward(const EmbedTokensBackward& args, cudaStream_t stream) {
  check_sizes(args.rows, args.vocab, args.dim);
  if (args.rows == 0) return;
  Scratch scratch(args.scratch, args.rows, args.vocab, args.dim);
  number_rows_kernel<<<blocks_for(args.rows, kWarps * kWarp), kWarps * kWarp, 0, stream>>>(args,
                                                                                           scratch);
  check_launch("number_rows");
  check(cub::DeviceRadixSort::SortPairs(
      scratch.sort, scratch.sort_bytes, scratch.tokens, scratch.sorted_tokens, scratch.rows,
      scratch.sorted_rows, static_cast<int>(args.rows), 0, token_bits(args.vocab), stream));
  const unsigned chunks = static_cast<unsigned>(num_chunks(args.rows));
  const unsigned columns = blocks_for(args.dim, kPack * kWarp);
  const dim3 blocks(chunks, blocks_for(columns, kWarps)), fragments(chunks, columns);
  with_gradient(args.table, [&]<DType kType>(GradientFormat<kType>) {
    using G = GradientElement<kType>;
    with_type(args.dtype, [&](auto zero) {
      // A gradient in 16 bits is one of a computation in them.
      if constexpr (std::is_same_v<G, float> || std::is_same_v<G, decltype(zero)>) {
        sum_chunks_kernel<decltype(zero), G><<<blocks, kWarps * kWarp, 0, stream>>>(args, scratch);
      }
    });
    check_launch("sum_chunks");
    add_fragments_kernel<G><<<fragments, kWarps * kWarp, 0, stream>>>(args, scratch);
  });
  check_launch("add_fragments");
}

}  // namespace cuda
}  // namespace dstrain::kernels
