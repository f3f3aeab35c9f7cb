#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/mesh/shard.h"

namespace dstrain {

/// Elements of a shape; -1 when a dim is negative or the product exceeds 2^60.
[[nodiscard]] std::int64_t num_elements(const std::vector<std::int64_t>& shape);

/// A box of a tensor, which is seen as a matrix [shape[0], product of the other dims]; a scalar is
/// [1, 1]. It knows the whole tensor, so that boxes of another cut can be read from what it wrote.
/// The elements of a box lie in memory and in files row after row.
struct Piece {
  std::string name;                 ///< as checkpoints and Hugging Face files call the tensor
  std::vector<std::int64_t> shape;  ///< of the whole tensor
  Range rows, columns;

  /// The whole tensor.
  Piece(std::string tensor, std::vector<std::int64_t> whole_shape);
  Piece(std::string tensor, std::vector<std::int64_t> whole_shape, Range box_rows,
        Range box_columns);

  [[nodiscard]] std::int64_t numel() const { return rows.size() * columns.size(); }
  /// Elements of a row of the whole tensor.
  [[nodiscard]] std::int64_t row_length() const;
  /// Where an element of the box lies in the flattened whole tensor.
  [[nodiscard]] std::int64_t whole_index(std::int64_t element) const;
  /// Elements of the box that follow one another in the whole tensor too: all of them where the
  /// rows are whole, else those of one row.
  [[nodiscard]] std::int64_t run_length() const;
  bool operator==(const Piece&) const = default;
};

/// Shape of pieces of equal width stacked along dim 0: the other dims are those of the whole
/// tensors, or one dim where columns are cut.
[[nodiscard]] std::vector<std::int64_t> stacked_shape(const std::vector<Piece>& pieces);

struct PieceSlice {
  Piece box;
  std::int64_t offset = 0;  ///< of its first element in the buffer of the stacked pieces
};
/// The boxes that `range` of the buffer of stacked pieces holds, in the order of the buffer. Of
/// each piece they are at most three: the end of a row, whole rows, the beginning of a row.
[[nodiscard]] std::vector<PieceSlice> slices_of(const std::vector<Piece>& pieces, Range range);

}  // namespace dstrain
