#pragma once

#include "engine/data/dataset.h"
#include "engine/mesh/zigzag.h"

namespace dstrain {

/// Of a batch of text whose samples are spread over ranks: the tokens [B, T / s], labels and
/// weights of the rank's rows, and which these are. Labels are those of the whole sample, and
/// `starts` and `positions` stay those of all rows. Error{internal} where a sample has not 2 s
/// equal parts.
[[nodiscard]] HostBatch own_rows(const HostBatch& whole, const Zigzag& zigzag, bool pinned);

}  // namespace dstrain
