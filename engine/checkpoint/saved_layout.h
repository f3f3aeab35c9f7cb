#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/mesh/pieces.h"
#include "engine/mesh/slices.h"

namespace dstrain {

// How the states of a run are divided among its ranks: what format 3 of the manifest holds in the
// place of a box for every tensor and rank. Groups of parameters lie in flat buffers; ranks with
// the same parameters divide a group first into shards, then each shard among its holders.

struct SavedParameter {
  std::int64_t offset = 0;   ///< of its first element in the flat group
  std::vector<Piece> parts;  ///< stacked; named without the prefix of a state
  std::size_t rule = 0;      ///< of its optimizer: index in SavedState::prefixes
};

/// One value for each element of a group: weights, a moment, an average.
struct SavedState {
  Range range;                        ///< of the flat group that has it
  std::vector<std::string> prefixes;  ///< before the names of tensors, by rule
};

struct SavedGroup {
  std::int64_t padded = 0;  ///< elements of the flat group, a multiple of `shards`
  int shards = 1;
  int holders = 1;  ///< of each shard: each writes a part of it
  std::size_t place =
      0;  ///< index in the places of a rank; groups that all ranks divide alike share one
  std::vector<SavedParameter> parameters;  ///< by offset, without overlap
  std::vector<SavedState> states;
};

/// What a rank is among those that divide a group.
struct SavedPlace {
  int shard = 0;
  int holder = 0;
  bool operator==(const SavedPlace&) const = default;
};

/// The groups of a rank in the order in which its file holds them: of each group all states.
using SavedLayout = std::vector<SavedGroup>;

/// The part of the flat group that a rank writes of each state.
[[nodiscard]] Range saved_range(const SavedGroup& group, SavedPlace place);

/// Elements of a parameter.
[[nodiscard]] std::int64_t saved_elements(const SavedParameter& parameter);

/// Calls `visit(parameter, piece, rows, columns, at)` for the boxes that `range` of the flat group
/// holds of a state, in the order of the file; `at` is the place of the first element in the group.
template <class Visit>
void for_each_saved_box(const SavedGroup& group, const SavedState& state, Range range,
                        Visit visit) {
  const Range wanted = intersect(range, state.range);
  auto parameter =
      std::ranges::upper_bound(group.parameters, wanted.begin, {}, &SavedParameter::offset);
  if (parameter != group.parameters.begin()) --parameter;
  for (; parameter != group.parameters.end() && parameter->offset < wanted.end; ++parameter) {
    const std::int64_t begin = parameter->offset;
    const Range met = intersect(wanted, {begin, begin + saved_elements(*parameter)});
    if (met.empty()) continue;
    for_each_slice(parameter->parts, {met.begin - begin, met.end - begin},
                   [&](const Piece& piece, Range rows, Range columns, std::int64_t at) {
                     visit(*parameter, piece, rows, columns, begin + at);
                   });
  }
}

/// Hash of a layout: ranks with the same one have the same groups.
[[nodiscard]] std::string layout_hash(const SavedLayout& layout);

}  // namespace dstrain
