#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

#include "engine/kernels/dtype.h"
#include "engine/kernels/taken_sizes.h"

/// What lies between a product and attention: arguments, the GPU version and the reference. The
/// rules are in engine/kernels/kernels.h.
namespace dstrain::kernels {

/// Where attention's heads lie in a row of qkv: all queries, all keys, all values; or, interleaved,
/// query, key and value of one head after the other (then kv_heads = heads).
struct HeadLayout {
  std::int64_t heads, kv_heads, head_dim;
  bool interleaved;

  struct Place {
    int part;  ///< 0 query, 1 key, 2 value
    std::int64_t head;
  };
  [[nodiscard]] constexpr std::int64_t slots() const { return heads + 2 * kv_heads; }
  [[nodiscard]] constexpr std::int64_t width() const { return slots() * head_dim; }
  [[nodiscard]] constexpr Place place(std::int64_t slot) const {
    if (interleaved) return {static_cast<int>(slot % 3), slot / 3};
    if (slot < heads) return {0, slot};
    if (slot < heads + kv_heads) return {1, slot - heads};
    return {2, slot - heads - kv_heads};
  }
  [[nodiscard]] constexpr std::int64_t slot(Place place) const {
    if (interleaved) return 3 * place.head + place.part;
    return place.head + (place.part > 0 ? heads : 0) + (place.part > 1 ? kv_heads : 0);
  }
};

/// Rotary positions in place on the query and key heads: of each head, elements (i, i + head_dim/2)
/// turn by position * theta^(-2i/head_dim). Su et al. 2021, arXiv:2104.09864, eq. 34, pairs as in
/// Qwen2.
struct RotateHeads {
  void* qkv;           ///< [rows, layout.width()]
  const float* table;  ///< [length, head_dim/2, 2]: cosine and sine; length > any position
  const std::int32_t* positions;  ///< [rows]; null: row % tokens
  std::int64_t rows, tokens;
  HeadLayout layout;  ///< head_dim: head_dims(true)
  DType dtype;
  bool back = false;  ///< turn by the negative angle, as gradients do
};

/// Gradients of query, key, value, each [batch, its heads, tokens, head_dim or more] of any strides
/// (last one 1), into rows like qkv; further elements of a head are left out. With a table, query
/// and key turn back on the way.
struct PackHeads {
  const void* source[3];
  std::int64_t stride[3][3];      ///< of batch, head, token, in elements; multiples of 8
  const float* table;             ///< as in RotateHeads; null: no turn
  const std::int32_t* positions;  ///< as in RotateHeads
  void* out;                      ///< [batch * tokens, layout.width()]
  std::int64_t batch, tokens;
  HeadLayout layout;  ///< head_dim: head_dims()
  DType dtype;
};

/// Query, key and value heads with further elements behind their own that make softmax(scale * q
/// k^T) the one with linear biases: q gets slope / scale in two roundings hi + lo, as (256 hi, hi,
/// 256 lo, lo); k gets its position 256 a + b, as (a, b, a, b), exact in bf16 and fp16; the rest is
/// zero. Press et al. 2022, arXiv:2108.12409, sec. 3; the part of the bias that is the same for all
/// keys drops out of the softmax.
struct StretchHeads {
  const void* qkv;                       ///< [rows, layout.width()]
  const std::int32_t* positions;         ///< [rows]; null: row % tokens; below kAlibiPositions
  void* query;                           ///< [rows, heads, stretched]
  void* key;                             ///< [rows, kv_heads, stretched]
  void* value;                           ///< the same; null: values stay as they are
  std::int64_t rows, tokens, stretched;  ///< stretched: head_dim + 4 or more, a multiple of 8
  HeadLayout layout;                     ///< head_dim: head_dims(false)
  float inverse_scale;
  DType dtype;
  std::int64_t first_head = 0;   ///< of the query heads in the model
  std::int64_t model_heads = 0;  ///< that the model has
};
inline constexpr std::int64_t kAlibiPositions = 1 << 16;

/// Slope of one head's linear bias: 2^(-8 (head + 1) / p), p the largest power of two not above
/// `heads`; the heads beyond p have 2^(-4 (2 (head - p) + 1) / p), as BLOOM has them.
[[nodiscard]] double alibi_slope(std::int64_t head, std::int64_t heads);

/// Rows of `from` elements to rows of `to`: cut, or zeros behind.
struct ResizeRows {
  const void* source;
  void* out;
  std::int64_t rows, from, to;  ///< from and to multiples of 8
  DType dtype;
};

/// Key and value heads of rows of qkv into a cache, each at its sequence's slot and its position.
struct StoreHeads {
  const void* qkv;                ///< [rows, layout.width()]
  void *keys, *values;            ///< [slots, capacity, kv_heads, head_dim]
  const std::int32_t* slots;      ///< [rows]
  const std::int32_t* positions;  ///< [rows], below `capacity`
  std::int64_t rows, capacity;
  HeadLayout layout;  ///< head_dim: head_dims(false)
  DType dtype;
};

/// How cached_attention is cut into blocks, each with up to kCachedHeads of the query heads that
/// share keys: the fastest of those measured on an H200 with 1 to 256 rows of 250 to 4,000 keys.
struct CachedBlocks {
  std::int64_t splits;  ///< of the `longest` keys of a row
  int warps;            ///< of a block
};
inline constexpr std::int64_t kCachedHeads = 8;
[[nodiscard]] constexpr CachedBlocks cached_blocks(std::int64_t rows, const HeadLayout& layout,
                                                   std::int64_t longest) {
  constexpr std::int64_t kMinKeys = 96, kMaxSplits = 16, kAtOnce = 132, kManyBlocks = 384;
  const std::int64_t group = layout.heads / layout.kv_heads,
                     blocks = rows * layout.kv_heads * ((group + kCachedHeads - 1) / kCachedHeads);
  if (blocks >= kManyBlocks) return {1, 4};
  const std::int64_t wanted = blocks == 0 ? 1 : std::min(longest / kMinKeys, kAtOnce / blocks);
  return {std::clamp<std::int64_t>(wanted, 1, kMaxSplits), 8};
}

/// Softmax attention of the queries of each row to its slot's keys up to its position. The row's
/// own key and value are those in qkv, and are stored into the cache. Where there is a table,
/// queries and own keys turn by their positions. The keys of a row are cut into runs, whose results
/// are joined by their maxima and sums (Dao et al. 2023, "Flash-Decoding").
struct CachedAttention {
  const void* qkv;      ///< [rows, layout.width()]
  void *keys, *values;  ///< as in StoreHeads
  const float* table;   ///< as in RotateHeads; null: no turn
  const std::int32_t* slots;
  const std::int32_t* positions;
  void* out;       ///< [rows, heads * head_dim]
  float* partial;  ///< [rows, heads, splits, head_dim + 2]; null: one split
  std::int64_t rows, capacity;
  CachedBlocks blocks;
  HeadLayout layout;  ///< head_dim: cached_head_dims()
  float scale;
  bool alibi;
  std::int64_t first_head;   ///< of the query heads in the model
  std::int64_t model_heads;  ///< that the model has
  DType dtype;
  std::int64_t window = 0;  ///< keys that a row sees, its own included; 0: all
  float softcap = 0;        ///< c: scores are c tanh(score / c); 0: as they are
};

/// Which keys a query sees.
struct SeenKeys {
  const std::int32_t* places;     ///< [queries]: row of each query among all keys
  const std::int32_t* sequences;  ///< [all keys]: which sequence has it; null: there is one
  std::int64_t queries;           ///< a row r of scores is of query r % queries
  std::int64_t first_key;         ///< of the scores' keys among all
  std::int64_t window;            ///< keys that a query sees, its own included; 0: all
  bool causal;
};

/// Softmax of capped scores c tanh(scale s / c) over the keys that a query sees; without a cap of
/// scale s. Gemma 2 (arXiv:2408.00118, section 2).
struct CappedSoftmax {
  const float* scores;  ///< [rows, keys]
  void* shares;         ///< [rows, keys]
  float* log_sum_exp;   ///< [rows]
  std::int64_t rows, keys;
  float scale, softcap;  ///< softcap 0: no cap
  SeenKeys seen;
  DType dtype;  ///< of shares
};

/// Shares again, and the gradient of the scores.
struct CappedSoftmaxBackward {
  const float* scores;       ///< [rows, keys]
  const float* d_shares;     ///< [rows, keys]
  const float* log_sum_exp;  ///< [rows]
  const void *out, *d_out;   ///< [rows, width] of attention
  void *shares, *d_scores;   ///< [rows, keys]
  std::int64_t rows, keys, width;
  float scale, softcap;
  SeenKeys seen;
  DType dtype;  ///< of out, d_out, shares and d_scores
};

namespace cuda {
void capped_softmax(const CappedSoftmax& args, cudaStream_t stream);
void capped_softmax_backward(const CappedSoftmaxBackward& args, cudaStream_t stream);
void store_heads(const StoreHeads& args, cudaStream_t stream);
void cached_attention(const CachedAttention& args, cudaStream_t stream);
void rotate_heads(const RotateHeads& args, cudaStream_t stream);
void pack_heads(const PackHeads& args, cudaStream_t stream);
void stretch_heads(const StretchHeads& args, cudaStream_t stream);
void resize_rows(const ResizeRows& args, cudaStream_t stream);
}  // namespace cuda

namespace reference {
void capped_softmax(const CappedSoftmax& args);
void capped_softmax_backward(const CappedSoftmaxBackward& args);
void store_heads(const StoreHeads& args);
void stretch_heads(const StretchHeads& args);
void resize_rows(const ResizeRows& args);
}  // namespace reference

}  // namespace dstrain::kernels
