#include "engine/checkpoint/foreign_box.h"

#include <algorithm>
#include <random>
#include <vector>

#include "engine/mesh/pieces.h"
#include "test/support/catch.h"

namespace dstrain {
namespace {

using Sizes = std::vector<std::int64_t>;

struct ChunkPlace {
  Sizes offsets, sizes;
};

/// Chunks of a tensor that is cut at random places of each dim.
std::vector<ChunkPlace> random_grid(const Sizes& shape, std::mt19937& random) {
  std::vector<ChunkPlace> chunks = {{}};
  for (const std::int64_t dim : shape) {
    std::vector<ChunkPlace> next;
    Sizes edges = {0, dim};
    for (std::int64_t i = 1; i < dim; ++i) {
      if (random() % 3 == 0) edges.push_back(i);
    }
    std::ranges::sort(edges);
    for (const ChunkPlace& chunk : chunks) {
      for (std::size_t e = 0; e + 1 < edges.size(); ++e) {
        next.push_back(chunk);
        next.back().offsets.push_back(edges[e]);
        next.back().sizes.push_back(edges[e + 1] - edges[e]);
      }
    }
    chunks = std::move(next);
  }
  return chunks;
}

TEST_CASE("a box knows the places of its elements", "[checkpoint][property]") {
  std::mt19937 random(GENERATE(range(0, 20)));
  const Sizes shape = GENERATE(Sizes{}, Sizes{7}, Sizes{4, 6}, Sizes{3, 1, 5}, Sizes{2, 3, 4, 3});
  const std::int64_t whole = num_elements(shape);
  std::vector<int> owners(static_cast<std::size_t>(whole));
  for (const ChunkPlace& chunk : random_grid(shape, random)) {
    const ForeignBox box(shape, chunk.offsets, chunk.sizes);
    std::int64_t run_ends = 0;
    for (std::int64_t own = 0; own < box.numel(); ++own) {
      const std::int64_t place = box.place(own);
      ++owners.at(static_cast<std::size_t>(place));
      REQUIRE(box.below(place) == own);
      REQUIRE(box.below(place + 1) == own + 1);
      if (own == run_ends) run_ends = own + box.run(own);
      const bool follows = own + 1 < box.numel() && box.place(own + 1) == place + 1;
      if (own + 1 < run_ends) REQUIRE(follows);
    }
    REQUIRE(box.extent() == Range{box.place(0), box.place(box.numel() - 1) + 1});
    REQUIRE(box.below(whole) == box.numel());
  }
  REQUIRE(owners == std::vector<int>(owners.size(), 1));
}

TEST_CASE("chunks hold each element once, or it is said", "[checkpoint][property]") {
  std::mt19937 random(GENERATE(range(0, 20)));
  const Sizes shape = GENERATE(Sizes{}, Sizes{9}, Sizes{4, 6}, Sizes{3, 2, 5});
  std::vector<ForeignBox> boxes;
  for (const ChunkPlace& chunk : random_grid(shape, random))
    boxes.emplace_back(shape, chunk.offsets, chunk.sizes);
  std::ranges::shuffle(boxes, random);
  CHECK(cover_problem(shape, boxes) == "");
  std::vector<ForeignBox> more = boxes;
  more.push_back(boxes.front());
  CHECK(cover_problem(shape, more) == "two chunks hold a part of it");
  boxes.pop_back();
  CHECK(cover_problem(shape, boxes) == "no chunk holds a part of it");
}

TEST_CASE("a hundred thousand chunks of a column each are held against one another at once",
          "[checkpoint]") {
  constexpr std::int64_t kColumns = 100'000;
  const Sizes shape = {3, kColumns};
  std::vector<ForeignBox> boxes;
  for (std::int64_t c = 0; c < kColumns; ++c) boxes.emplace_back(shape, Sizes{0, c}, Sizes{3, 1});
  CHECK(cover_problem(shape, boxes) == "");
}

}  // namespace
}  // namespace dstrain
