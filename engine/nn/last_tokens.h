#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "engine/comm/communicator.h"
#include "engine/mesh/split.h"

/// Generation where a rank has parts of each sample: the one with the last token answers.
namespace dstrain {

struct LastTokens {
  at::Tensor places;  ///< [B] int64, among the own tokens of its sample; 0 where it is elsewhere
  at::Tensor here;    ///< [B] bool; undefined: all are
};

/// `positions` [B] int64 in whole samples, of which this rank has `tokens` tokens, its `part`.
[[nodiscard]] LastTokens last_tokens(const at::Tensor& positions, std::int64_t tokens,
                                     const AxisPart& part);

/// `found` [B] int64 of the ranks that have the last tokens, on all of them. Collective; `ranks` is
/// null where the part is whole.
[[nodiscard]] at::Tensor agreed(const at::Tensor& found, const LastTokens& last,
                                Communicator* ranks);

}  // namespace dstrain
