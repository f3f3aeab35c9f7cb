#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/mesh/zigzag.h"

/// The order of rows between ranks and samples; not for other layers. Legend as in
/// sequence_attention.h, C = T / (2 s) tokens of a part.
namespace dstrain::ops {

/// Sizes of a batch that is cut over the ranks.
struct CutBatch {
  Zigzag zigzag;
  std::int64_t batch = 0;
  std::int64_t tokens = 0;  ///< C

  /// The batch of `rows` own rows. Error{internal} where they are not two parts of each sample.
  [[nodiscard]] static CutBatch of(std::int64_t rows, std::int64_t batch,
                                   const Communicator& ranks);
  [[nodiscard]] std::int64_t own_rows() const { return batch * 2 * tokens; }
  [[nodiscard]] std::int64_t all_rows() const { return own_rows() * zigzag.ranks; }
  [[nodiscard]] std::int64_t sample() const { return zigzag.parts() * tokens; }  ///< T
};

/// [s, M, ...], the rows of each rank, to [B * T, ...], dense.
[[nodiscard]] at::Tensor in_sample_order(const at::Tensor& by_rank, const CutBatch& cut);
/// And back, from [B, 2 s, C, ...].
[[nodiscard]] at::Tensor in_rank_order(const at::Tensor& by_sample, const CutBatch& cut);

}  // namespace dstrain::ops
