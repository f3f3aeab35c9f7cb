#pragma once

#include <cstdint>
#include <vector>

#include "engine/mesh/pieces.h"

namespace dstrain {

/// Calls `visit(piece, rows, columns, offset)` for the boxes that `range` of the buffer of stacked
/// pieces holds, in the order of the buffer; `offset` is that of the box's first element in it. Of
/// each piece they are at most three: the end of a row, whole rows, the beginning of a row. The one
/// cutter of what is saved and of what is found again. Returns the elements of all pieces.
template <class Visit>
std::int64_t for_each_slice(const std::vector<Piece>& pieces, Range range, Visit visit) {
  std::int64_t begin = 0;
  for (const Piece& piece : pieces) {
    const std::int64_t width = piece.columns.size();
    const Range met = intersect(range, {begin, begin + piece.numel()});
    for (std::int64_t at = met.begin; at < met.end;) {
      const std::int64_t row = piece.rows.begin + (at - begin) / width;
      const std::int64_t column = (at - begin) % width, left = met.end - at;
      const bool whole_rows = column == 0 && left >= width;
      const Range rows = {row, row + (whole_rows ? left / width : 1)};
      const std::int64_t first = piece.columns.begin + column;
      const Range columns = {first, first + (left < width - column ? left : width - column)};
      visit(piece, rows, columns, at);
      at += rows.size() * columns.size();
    }
    begin += piece.numel();
  }
  return begin;
}

}  // namespace dstrain
