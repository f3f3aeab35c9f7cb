#include "engine/weights/transposed.h"

#include <algorithm>
#include <numeric>

#include "test/support/catch.h"

namespace dstrain {
namespace {

TEST_CASE("any range of a matrix that files have transposed is read from them", "[weights]") {
  const auto [rows, columns] =
      GENERATE(std::pair<std::int64_t, std::int64_t>{3, 4}, std::pair{4, 3}, std::pair{1, 5},
               std::pair{5, 1}, std::pair{0, 3});
  CAPTURE(rows, columns);
  const TransposedMatrix matrix{.rows = rows, .columns = columns};
  CHECK(matrix.shape_in_file() == std::vector{columns, rows});
  std::vector<float> ours(static_cast<std::size_t>(rows * columns));
  std::iota(ours.begin(), ours.end(), 0.0F);
  const std::vector<float> file = matrix.in_file(ours);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < columns; ++c)
      CHECK(file.at(static_cast<std::size_t>(c * rows + r)) ==
            ours.at(static_cast<std::size_t>(r * columns + c)));
  }
  for (std::size_t begin = 0; begin <= ours.size(); ++begin) {
    for (std::size_t end = begin; end <= ours.size(); ++end) {
      std::vector<float> read(end - begin);
      std::int64_t asked = 0;
      matrix.read(static_cast<std::int64_t>(begin), read,
                  [&](std::int64_t from, std::span<float> out) {
                    ++asked;
                    std::copy_n(file.begin() + from, out.size(), out.begin());
                  });
      CHECK(std::ranges::equal(read, std::span(ours).subspan(begin, end - begin)));
      CHECK(asked <= columns);
    }
  }
}

}  // namespace
}  // namespace dstrain
