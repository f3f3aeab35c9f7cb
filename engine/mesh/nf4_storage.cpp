#include "engine/mesh/nf4_storage.h"

#include <fmt/format.h>

#include "engine/base/error.h"

namespace dstrain {
namespace {

constexpr std::int64_t kAlignment = 16;
constexpr std::int64_t kFloat = sizeof(float);

[[noreturn]] void refuse(const Piece& piece, const std::string& why) {
  throw Error(ErrorKind::usage, fmt::format("lora.base: {} in nf4: {}", piece.name, why),
              fmt::format("blocks have {} elements; leave lora.base at compute", kNf4Block));
}

}  // namespace

Nf4Storage nf4_storage(const std::vector<Piece>& pieces, bool double_coded) {
  Nf4Storage all{.double_coded = double_coded};
  const auto take = [&](std::int64_t bytes) {
    const std::int64_t begin = all.bytes;
    all.bytes += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return begin;
  };
  for (const Piece& piece : pieces) {
    const std::int64_t whole = num_elements(piece.shape), row = piece.row_length();
    if (whole % kNf4Block != 0)
      refuse(piece, fmt::format("{} elements are no whole blocks", whole));
    Nf4Piece own{.blocks = piece.numel() / kNf4Block};
    const bool whole_rows = piece.columns.size() == row;
    if (piece.numel() % kNf4Block != 0 || (piece.rows.begin * row) % kNf4Block != 0 ||
        (!whole_rows && (row % kNf4Block != 0 || piece.columns.begin % kNf4Block != 0 ||
                         piece.columns.size() % kNf4Block != 0)))
      refuse(piece, "ranks of parallel.tensor would cut blocks");
    own.row_blocks = whole_rows ? own.blocks : piece.columns.size() / kNf4Block;
    own.whole_row_blocks = whole_rows ? own.blocks : row / kNf4Block;
    own.first_block = (piece.rows.begin * row + piece.columns.begin) / kNf4Block;
    own.codes = take(piece.numel() / 2);
    own.maxima = take(double_coded ? own.blocks : own.blocks * kFloat);
    if (double_coded && own.blocks > 0) {
      own.first_maxima = own.first_block / kNf4Maxima;
      own.num_maxima = own.whole_block(own.blocks - 1) / kNf4Maxima + 1 - own.first_maxima;
      own.tables = take((kNf4TableMaxima + own.num_maxima) * kFloat);
    }
    all.pieces.push_back(own);
  }
  return all;
}

}  // namespace dstrain
