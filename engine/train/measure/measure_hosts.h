#pragma once

#include <filesystem>

#include "engine/base/rank_record.h"
#include "engine/train/session/world.h"

namespace dstrain {

/// What `launch --preflight` compares hosts by, and `doctor --measure` keeps for plans. Each rank
/// multiplies matrices, all at once (2 s on a GPU in bf16, 0.5 s on a CPU rank in fp32); then the
/// ranks of each host sum 64 MiB, then those of two hosts, each host with both neighbours in the
/// list; then all ranks of several hosts gather and reduce parts, 512 MiB on GPUs and 64 MiB on
/// CPUs, and gather 64 bytes. Rank 0 writes `file`:
///   {"hosts": [{"first_rank": 0, "product_tflops": [of each rank], "host_gb_s": ..., "pair_gb_s":
///   ...}], "all_hosts": {"device": "NVIDIA H200", "hosts": 2, "ranks": 16, "gather_gb_s": ...,
///   "reduce_gb_s": ..., "latency_us": ...}}
/// in FLOP and bytes of the summed tensor a second, of the better pair; null where a host has one
/// rank, or is the only one, as `all_hosts` is then. That has the bytes that leave a host a second,
/// beyond the latency, which is that of the 64 bytes. Collective.
void measure_hosts(const World& world, RankRecordFile& record, const std::filesystem::path& file);

}  // namespace dstrain
