#pragma once

#include <filesystem>

#include "engine/base/rank_record.h"
#include "engine/train/session/world.h"

namespace dstrain {

/// What `launch --preflight` compares hosts by. Each rank multiplies matrices, all at once (2 s on
/// a GPU in bf16, 0.5 s on a CPU rank in fp32); then the ranks of each host sum 64 MiB, then those
/// of two hosts, each host with both neighbours in the list. Rank 0 writes `file`:
///   {"hosts": [{"first_rank": 0, "product_tflops": [of each rank], "host_gb_s": ..., "pair_gb_s":
///   ...}]}
/// in FLOP and bytes of the summed tensor a second, of the better pair; null where a host has one
/// rank, or is the only one. Collective.
void measure_hosts(const World& world, RankRecordFile& record, const std::filesystem::path& file);

}  // namespace dstrain
