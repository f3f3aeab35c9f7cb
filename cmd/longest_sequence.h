#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cmd/memory_planner.h"

namespace dstrain {

/// The longest samples with which a step of one sample a rank fits a device.
struct LongestSequence {
  Bytes device = 0;
  std::int64_t tokens = 0;  ///< 0: not even the shortest fits
  PlannedMemory planned{};  ///< of that
};

/// One way to save memory, and what it allows.
struct LongestRow {
  std::string method;
  std::vector<std::string> settings;  ///< beside the recipe's
  std::string refused{};              ///< why the recipe cannot have it; empty: it can
  std::vector<LongestSequence> of{};  ///< each device
};

struct LongestTable {
  std::string model, machine;
  std::vector<LongestRow> rows;
};

/// For devices of `memories` bytes at the rates of `machine`: the longest data.sequence of the
/// recipe, in steps of 128 tokens, as it is, with blocks computed again, with MLPs in tiles, and
/// with inputs of blocks and then weights on the host. batch.micro is 1, and batch.global the
/// number of data ranks. Plans leave kMemoryReserve of a device. Error{usage} for a recipe of
/// images.
[[nodiscard]] LongestTable longest_sequences(const std::string& recipe,
                                             const std::vector<std::string>& overrides, int ranks,
                                             const Machine& machine,
                                             const std::vector<Bytes>& memories);

[[nodiscard]] std::string longest_text(const LongestTable& table);
[[nodiscard]] std::string longest_json(const LongestTable& table);

}  // namespace dstrain
