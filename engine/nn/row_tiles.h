#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/kernels/parameter.h"

namespace dstrain {

/// Work on rows that are independent of each other, in tiles: what it keeps for backward exists for
/// the rows of one tile at a time. Only x is saved; backward runs `work` of each tile again. ALST,
/// arXiv:2506.13996, sec. 3.1.
struct RowTiles {
  std::int64_t rows = 0;  ///< of a tile; the last may have fewer
  /// What `work` reads. Their gradients are added up tile by tile, and none is put off
  /// (Parameter::later).
  std::vector<Parameter*> parameters = {};
  /// [r, D] -> [r, D]; `begin` is the first row's place in x.
  std::function<at::Tensor(const at::Tensor& rows, std::int64_t begin)> work = {};
};

/// work(x) [M, D]. `skip`: it runs for its backward alone, and the result holds anything.
[[nodiscard]] at::Tensor in_tiles(const at::Tensor& x_MD, RowTiles tiles, bool skip);

}  // namespace dstrain
