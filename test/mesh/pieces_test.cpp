#include "engine/mesh/pieces.h"

#include <algorithm>

#include "engine/base/error.h"
#include "test/support/catch.h"

namespace dstrain {
namespace {

using Shape = std::vector<std::int64_t>;

/// Where each element of the stacked pieces lies in its flattened whole tensor, told one by one.
std::vector<std::pair<std::string, std::int64_t>> elements_of(const std::vector<Piece>& pieces) {
  std::vector<std::pair<std::string, std::int64_t>> elements;
  for (const Piece& piece : pieces) {
    for (std::int64_t row = piece.rows.begin; row < piece.rows.end; ++row) {
      for (std::int64_t column = piece.columns.begin; column < piece.columns.end; ++column)
        elements.emplace_back(piece.name, row * piece.row_length() + column);
    }
  }
  return elements;
}

TEST_CASE("a piece is the whole tensor unless it names a box", "[pieces]") {
  const Piece whole("w", {6, 2, 5});
  CHECK(whole.rows == Range{0, 6});
  CHECK(whole.columns == Range{0, 10});
  CHECK(whole.numel() == 60);
  CHECK(whole.run_length() == 60);
  CHECK(Piece("bias", {6}).columns == Range{0, 1});
  CHECK(Piece("scale", {}).numel() == 1);
  CHECK(Piece("nothing", {0, 5}).numel() == 0);
  CHECK(Piece("nothing", {5, 0}).numel() == 0);

  const Piece box("w", {6, 2, 5}, {2, 4}, {3, 7});
  CHECK(box.numel() == 8);
  CHECK(box.run_length() == 4);
  CHECK(box.whole_index(0) == 23);
  CHECK(box.whole_index(5) == 34);
}

TEST_CASE("sizes too large for a product are told", "[pieces]") {
  CHECK(num_elements({}) == 1);
  CHECK(num_elements({3, 0, std::int64_t{1} << 40}) == 0);
  CHECK(num_elements({std::int64_t{1} << 30, std::int64_t{1} << 30}) == std::int64_t{1} << 60);
  CHECK(num_elements({std::int64_t{1} << 31, std::int64_t{1} << 30}) == -1);
  CHECK(num_elements({0, std::int64_t{1} << 40, std::int64_t{1} << 40}) == -1);
  CHECK(num_elements({2, -1}) == -1);
}

TEST_CASE("stacked pieces keep the dims of files where rows are whole", "[pieces]") {
  CHECK(stacked_shape({{"q", {4, 3, 2}}, {"k", {2, 3, 2}}}) == Shape{6, 3, 2});
  CHECK(stacked_shape({{"q", {4, 3, 2}, {1, 3}, {0, 6}}}) == Shape{2, 3, 2});
  CHECK(stacked_shape({{"q", {4, 3, 2}, {0, 4}, {2, 4}}}) == Shape{4, 2});
  CHECK(stacked_shape({{"q", {4}, {1, 3}, {0, 1}}}) == Shape{2});
  CHECK(stacked_shape({{"scale", {}}}) == Shape{1});
  CHECK_THROWS_AS(stacked_shape({{"q", {4, 3}}, {"k", {2, 5}}}), Error);
}

TEST_CASE("any range of stacked pieces is at most three boxes of each, element by element",
          "[pieces][property]") {
  const std::vector<Piece> pieces =
      GENERATE(std::vector<Piece>{{"w", {5, 4}}, {"v", {2, 4}}},
               std::vector<Piece>{{"w", {5, 12}, {1, 4}, {3, 7}}, {"w", {5, 12}, {4, 5}, {8, 12}}},
               std::vector<Piece>{{"b", {9}, {2, 8}, {0, 1}}, {"none", {0, 1}}, {"c", {1}}},
               std::vector<Piece>{{"conv", {3, 2, 2, 2}, {0, 3}, {2, 6}}, {"s", {1, 4}}});
  const auto expected = elements_of(pieces);
  const auto total = static_cast<std::int64_t>(expected.size());
  for (std::int64_t begin = 0; begin <= total; ++begin) {
    for (std::int64_t end = begin; end <= total; ++end) {
      CAPTURE(begin, end);
      const std::vector<PieceSlice> slices = slices_of(pieces, {begin, end});
      std::vector<std::pair<std::string, std::int64_t>> found;
      std::int64_t num_of_piece = 0;
      for (std::size_t i = 0; i < slices.size(); ++i) {
        const Piece& box = slices[i].box;
        REQUIRE(slices[i].offset == begin + static_cast<std::int64_t>(found.size()));
        REQUIRE(box.numel() > 0);
        for (std::int64_t element = 0; element < box.numel(); ++element)
          found.emplace_back(box.name, box.whole_index(element));
        num_of_piece = i > 0 && slices[i - 1].box.name == box.name ? num_of_piece + 1 : 1;
        REQUIRE(num_of_piece <= 3 * std::ranges::count(pieces, box.name, &Piece::name));
      }
      REQUIRE(
          std::ranges::equal(found, std::vector(expected.begin() + begin, expected.begin() + end)));
    }
  }
  CHECK_THROWS_AS(slices_of(pieces, {0, total + 1}), Error);
  CHECK_THROWS_AS(slices_of(pieces, {-1, total}), Error);
}

TEST_CASE("a run of a box is as long as its elements follow one another", "[pieces]") {
  CHECK(Piece("w", {6, 10}, {2, 5}, {0, 10}).run_length() == 30);
  CHECK(Piece("w", {6, 10}, {2, 5}, {1, 10}).run_length() == 9);
  CHECK(Piece("b", {6}, {2, 5}, {0, 1}).run_length() == 3);
}

}  // namespace
}  // namespace dstrain
