#include "engine/weights/transposed.h"

#include <algorithm>

namespace dstrain {

void TransposedMatrix::read(
    std::int64_t begin, std::span<float> out,
    const std::function<void(std::int64_t begin, std::span<float> out)>& file) const {
  const std::int64_t end = begin + static_cast<std::int64_t>(out.size());
  std::vector<float> run;
  for (std::int64_t column = 0; column < columns; ++column) {
    // The first row whose element in this column is not before `index`.
    const auto row_at = [&](std::int64_t index) {
      return std::max<std::int64_t>(index - column + columns - 1, 0) / columns;
    };
    const std::int64_t first = row_at(begin), last = row_at(end);
    if (first >= last) continue;
    run.resize(static_cast<std::size_t>(last - first));
    file(column * rows + first, run);
    for (std::int64_t row = first; row < last; ++row)
      out[static_cast<std::size_t>(row * columns + column - begin)] =
          run[static_cast<std::size_t>(row - first)];
  }
}

std::vector<float> TransposedMatrix::in_file(std::span<const float> values) const {
  std::vector<float> turned(values.size());
  for (std::size_t i = 0; i < values.size(); ++i)
    turned[static_cast<std::size_t>(place(static_cast<std::int64_t>(i)))] = values[i];
  return turned;
}

}  // namespace dstrain
