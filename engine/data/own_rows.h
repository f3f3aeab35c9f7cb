#pragma once

#include "engine/data/dataset.h"
#include "engine/mesh/zigzag.h"

namespace dstrain {

/// This rank's rows of a batch of text whose samples are spread: the tokens [B, T / s], labels and
/// weights of these rows, and which they are. Labels are those of the whole sample, and
/// `starts` and `positions` stay those of all rows. Error{internal} where a sample lacks 2 s
/// equal parts.
[[nodiscard]] HostBatch own_rows(const HostBatch& whole, const Zigzag& zigzag, bool pinned);

}  // namespace dstrain
