#pragma once

#include <cstdint>
#include <vector>

#include "engine/mesh/pieces.h"

/// Where the parts of a matrix in 4 bits lie in memory: what a plan needs of it, without LibTorch.
namespace dstrain {

/// Elements of the flattened whole tensor that share a maximum.
inline constexpr std::int64_t kNf4Block = 64;
/// Maxima that share one of their own where they are coded, too.
inline constexpr std::int64_t kNf4Maxima = 256;

/// Numbers of a table of coded maxima: fp32 offset and three that are empty, the values of 256
/// codes, then maxima of maxima.
inline constexpr int kNf4Codes = 4, kNf4TableMaxima = 4 + 256;

/// Where a box of a tensor lies; places are bytes from the beginning of the parameter's memory,
/// multiples of 16.
struct Nf4Piece {
  std::int64_t codes = 0;   ///< two elements a byte, the first in the upper half
  std::int64_t maxima = 0;  ///< of the box's blocks: codes of 8 bits, or fp32
  /// The table of coded maxima, with maxima of maxima from `first_maxima` on.
  std::int64_t tables = 0;
  std::int64_t blocks = 0;            ///< of the box
  std::int64_t row_blocks = 0;        ///< that follow one another in the whole tensor
  std::int64_t whole_row_blocks = 0;  ///< from the first of these to the next such first
  std::int64_t first_block = 0;       ///< of the whole tensor
  std::int64_t first_maxima = 0;      ///< of the whole tensor's maxima of maxima
  std::int64_t num_maxima = 0;
  /// Where block `index` of the box is in the whole tensor.
  [[nodiscard]] constexpr std::int64_t whole_block(std::int64_t index) const {
    return first_block + index / row_blocks * whole_row_blocks + index % row_blocks;
  }
};

/// NF4: Dettmers et al. 2023, arXiv:2305.14314, sec. 3; blocks and tables are those of
/// bitsandbytes' files. Ranks that have parts of a matrix hold its codes and maxima as all of them
/// would, so that every rank decodes the same values.
struct Nf4Storage {
  bool double_coded = false;  ///< maxima are codes, too
  std::vector<Nf4Piece> pieces = {};
  std::int64_t bytes = 0;
};

/// A parameter made of `pieces`. Error{usage} names the first whose blocks are cut.
[[nodiscard]] Nf4Storage nf4_storage(const std::vector<Piece>& pieces, bool double_coded);

}  // namespace dstrain
