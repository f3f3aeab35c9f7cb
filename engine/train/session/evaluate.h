#pragma once

#include <string>

#include "engine/base/rank_record.h"
#include "engine/recipe/load.h"
#include "engine/train/session/world.h"

namespace dstrain {

/// Loss and accuracy over the test split of what `source` holds: a run (its best checkpoint, else
/// its newest valid one), a checkpoint, or "-" for the recipe's own weights. Rank 0 prints them and
/// writes evaluation.json into the folder of its job, if it has one; of images also the classes
/// with the smallest recall, and confusion.csv and classes.csv, of the average of the weights where
/// there is one. Collective.
void evaluate_finished(const LoadedRecipe& loaded, const World& world, const std::string& source,
                       RankRecordFile& record);

}  // namespace dstrain
