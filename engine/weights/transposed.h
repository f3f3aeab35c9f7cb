#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace dstrain {

/// A matrix [rows, columns] that files have as [columns, rows].
struct TransposedMatrix {
  std::int64_t rows = 0, columns = 0;

  [[nodiscard]] std::vector<std::int64_t> shape_in_file() const { return {columns, rows}; }
  /// Where its element lies in the file's matrix.
  [[nodiscard]] std::int64_t place(std::int64_t element) const {
    return element % columns * rows + element / columns;
  }
  /// Its elements [begin, begin + out.size()); `file` reads such a range of the file's matrix, and
  /// is asked once at most for each row of that.
  void read(std::int64_t begin, std::span<float> out,
            const std::function<void(std::int64_t begin, std::span<float> out)>& file) const;
  /// All elements in the order of the file.
  [[nodiscard]] std::vector<float> in_file(std::span<const float> values) const;
};

}  // namespace dstrain
