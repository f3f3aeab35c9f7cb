#include "engine/program/stages.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/index.h"

namespace dstrain {

int Stages::ranks() const { return *std::ranges::max_element(rank) + 1; }

int Stages::chunk_of(int block) const {
  const auto next = std::ranges::upper_bound(first_block, block);
  return static_cast<int>(next - first_block.begin()) - 1;
}

int Stages::end_block(int chunk, int blocks) const {
  return chunk + 1 < chunks() ? first_block[to_index(chunk) + 1] : blocks;
}

std::vector<int> chunk_ranks(int ranks, int chunks_per_rank, ChunkOrder order) {
  std::vector<int> list;
  for (int turn = 0; turn < chunks_per_rank; ++turn) {
    const bool back = order == ChunkOrder::v && turn % 2 == 1;
    for (int r = 0; r < ranks; ++r) list.push_back(back ? ranks - 1 - r : r);
  }
  return list;
}

Stages even_stages(int blocks, std::vector<int> rank) {
  const int chunks = static_cast<int>(rank.size());
  DSTRAIN_CHECK(chunks >= 1 && chunks <= blocks, "a pipeline needs at least a block per chunk");
  Stages stages{.first_block = {}, .rank = std::move(rank)};
  for (int c = 0; c < chunks; ++c) stages.first_block.push_back(c * blocks / chunks);
  return stages;
}

Stages even_stages(int blocks, int ranks) {
  return even_stages(blocks, chunk_ranks(ranks, 1, ChunkOrder::loop));
}

std::vector<int> minimax_cut(const std::vector<double>& costs, int chunks) {
  const int blocks = static_cast<int>(costs.size());
  DSTRAIN_CHECK(chunks >= 1 && chunks <= blocks, "a pipeline needs at least a block per chunk");
  std::vector<double> sum = {0};
  for (const double cost : costs) sum.push_back(sum.back() + cost);
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  // By chunks and blocks: the least maximum, and where the last chunk begins.
  std::vector best(to_index(chunks) + 1, std::vector(to_index(blocks) + 1, kInfinite));
  std::vector begin(to_index(chunks) + 1, std::vector(to_index(blocks) + 1, 0));
  best[0][0] = 0;
  for (std::size_t c = 1; c < best.size(); ++c) {
    for (std::size_t b = c; b <= to_index(blocks); ++b) {
      for (std::size_t first = c - 1; first < b; ++first) {
        const double max = std::max(best[c - 1][first], sum[b] - sum[first]);
        if (max >= best[c][b]) continue;
        best[c][b] = max;
        begin[c][b] = static_cast<int>(first);
      }
    }
  }
  std::vector<int> cut(to_index(chunks));
  int end = blocks;
  for (std::size_t c = to_index(chunks); c > 0; --c) cut[c - 1] = end = begin[c][to_index(end)];
  return cut;
}

}  // namespace dstrain
