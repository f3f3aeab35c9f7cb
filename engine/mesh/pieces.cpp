#include "engine/mesh/pieces.h"

#include <algorithm>
#include <utility>

#include "engine/base/error.h"
#include "engine/mesh/slices.h"

namespace dstrain {
namespace {

std::int64_t num_rows(const std::vector<std::int64_t>& shape) {
  return shape.empty() ? 1 : shape.front();
}

std::int64_t elements_of_row(const std::vector<std::int64_t>& shape) {
  return shape.empty() ? 1 : num_elements({shape.begin() + 1, shape.end()});
}

}  // namespace

std::int64_t num_elements(const std::vector<std::int64_t>& shape) {
  constexpr std::int64_t kMax = std::int64_t{1} << 60;
  // A zero makes the product zero whatever the other dims are, yet these must not overflow on the
  // way.
  std::int64_t elements = 1;
  for (const std::int64_t dim : shape) {
    if (dim < 0 || (dim > 0 && elements > kMax / dim)) return -1;
    if (dim > 0) elements *= dim;
  }
  return std::ranges::count(shape, 0) > 0 ? 0 : elements;
}

Piece::Piece(std::string tensor, std::vector<std::int64_t> whole_shape)
    : name(std::move(tensor)),
      shape(std::move(whole_shape)),
      rows{0, num_rows(shape)},
      columns{0, elements_of_row(shape)} {}

Piece::Piece(std::string tensor, std::vector<std::int64_t> whole_shape, Range box_rows,
             Range box_columns)
    : name(std::move(tensor)),
      shape(std::move(whole_shape)),
      rows(box_rows),
      columns(box_columns) {}

std::int64_t Piece::row_length() const { return elements_of_row(shape); }

std::int64_t Piece::whole_index(std::int64_t element) const {
  return (rows.begin + element / columns.size()) * row_length() + columns.begin +
         element % columns.size();
}

std::int64_t Piece::run_length() const {
  return columns.size() == row_length() ? numel() : columns.size();
}

std::vector<std::int64_t> stacked_shape(const std::vector<Piece>& pieces) {
  const Piece& first = pieces.at(0);
  std::int64_t rows = 0;
  for (const Piece& piece : pieces) {
    DSTRAIN_CHECK(piece.columns.size() == first.columns.size(),
                  piece.name + " and " + first.name + " are stacked but differ in width");
    rows += piece.rows.size();
  }
  std::vector<std::int64_t> shape = {rows};
  if (first.shape.empty()) return shape;
  if (first.columns.size() == first.row_length()) {
    shape.insert(shape.end(), first.shape.begin() + 1, first.shape.end());
  } else {
    shape.push_back(first.columns.size());
  }
  return shape;
}

std::vector<PieceSlice> slices_of(const std::vector<Piece>& pieces, Range range) {
  std::vector<PieceSlice> slices;
  const std::int64_t end =
      for_each_slice(pieces, range, [&](const Piece& piece, Range rows, Range columns, auto at) {
        slices.push_back({{piece.name, piece.shape, rows, columns}, at});
      });
  DSTRAIN_CHECK(range.begin >= 0 && range.begin <= range.end && range.end <= end,
                "a range outside of " + (pieces.empty() ? "nothing" : pieces.front().name));
  return slices;
}

}  // namespace dstrain
