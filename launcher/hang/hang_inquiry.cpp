#include "launcher/hang/hang_inquiry.h"

#include <algorithm>
#include <utility>

namespace dstrain::launcher {

void HangInquiry::begin(RankState stalled, Time now) {
  stalled_ = std::move(stalled);
  deadline_ = now + kLimit;
  states_.clear();
  complete_.clear();
}

HangReport HangInquiry::conclude(const std::vector<RankEnd>& ends, int world_size) {
  deadline_.reset();
  std::vector<RankState> states = std::exchange(states_, {});
  for (const RankEnd& end : ends) {
    const bool told = std::any_of(states.begin(), states.end(), [&end](const RankState& state) {
      return state.rank == end.rank;
    });
    if (told) continue;
    RankState state;
    state.rank = end.rank;
    state.host = end.host;
    state.step = end.step;
    state.process_state = 'X';
    states.push_back(std::move(state));
  }
  if (states.empty()) states.push_back(*stalled_);
  return diagnose_hang(std::move(states), world_size);
}

}  // namespace dstrain::launcher
