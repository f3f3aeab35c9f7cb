#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/kernels/parameter.h"
#include "engine/nn/layer_pass.h"
#include "engine/nn/workspace.h"

namespace dstrain {

/// Work on rows that are independent of each other, in tiles: what it keeps for backward exists for
/// the rows of one tile at a time. Only x is saved; backward runs `work` of each tile again. ALST,
/// arXiv:2506.13996, sec. 3.1.
struct RowTiles {
  std::int64_t rows = 0;  ///< of a tile; the last may have fewer
  /// What `work` reads. Their gradients are added up tile by tile, and none is put off
  /// (Parameter::later).
  std::vector<Parameter*> parameters = {};
  /// [r, D] -> [r, D], or its cost; where it runs, of the call alone, and also in backward.
  std::function<Features(LayerPass& pass, const Features& rows)> work = {};
};

/// work(x) [M, D], or its cost beside what the block holds. `skip`: it runs for its backward alone,
/// and the result holds anything.
[[nodiscard]] Features run_in_tiles(LayerPass& pass, const Features& x, RowTiles tiles, bool skip,
                                    const Workspace& beside);

}  // namespace dstrain
