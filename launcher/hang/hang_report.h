#pragma once

#include <string>
#include <vector>

#include "launcher/protocol/protocol.h"

namespace dstrain::launcher {

/// Why a rank is taken to be what the others wait for, the surest first.
enum class HangCause {
  stopped,     ///< its process is stopped (state T)
  ended,       ///< it ended well while others wait for it
  behind,      ///< has not entered, or not left, the collective that the others wait in
  other_call,  ///< waits in another collective than the others, as the same number of its calls
  outside,     ///< in no collective, though others are
  uninterruptible,  ///< held by the kernel (state D)
  silent,           ///< its node did not answer
  other_place,      ///< none is in a collective, but it is in another place than the others
  everybody,        ///< all are in the same place: network or device
};

/// Who is to blame for a hang and what all ranks were doing.
struct HangReport {
  /// Whether there is a hang at all. False when the ranks to blame have not used up the time of
  /// their section: what was reported as stalled waits for a long save, say.
  bool hung = false;
  HangCause cause = HangCause::everybody;
  RankState root;           ///< the first of `blamed`; of a silent one only the number is known
  std::vector<int> blamed;  ///< in rank order
  std::string summary;      ///< one line: which rank, where, why it is blamed, who waits
  std::string stacks;       ///< for a person: equal stacks once, the blamed first, bounded
  std::string stacks_json;  ///< array, one object per stack: ranks, stack, states of these ranks
};

/// `states`: at least one, of all ranks that could be asked; `world_size`: how many there should
/// be.
[[nodiscard]] HangReport diagnose_hang(std::vector<RankState> states, int world_size);

/// "collective 57, all_reduce(norm), 4 ranks, 40 B"; empty before the first.
[[nodiscard]] std::string describe_collective(const RankState& state);

}  // namespace dstrain::launcher
