#pragma once

#include <vector>

#include "engine/base/rank_record.h"
#include "engine/program/flops_report.h"
#include "engine/recipe/recipe.h"
#include "engine/train/session/world.h"

namespace dstrain {

/// What each block of the model takes for one micro-batch on this process's device, by its clock:
/// means of `steps` training steps of random data after `warmup` ones. Actions run one by one;
/// where the host is slower than the device the times hold its pauses.
[[nodiscard]] std::vector<BlockTime> measure_blocks(Recipe recipe, const World& world, int warmup,
                                                    int steps, RankRecordFile& record);

}  // namespace dstrain
