#pragma once

#include <chrono>
#include <optional>
#include <set>
#include <vector>

#include "launcher/hang/hang_report.h"
#include "launcher/protocol/protocol.h"

namespace dstrain::launcher {

/// The controller's part in finding hangs: an agent reported a rank without progress, and every
/// agent is asked what its ranks are doing.
class HangInquiry {
 public:
  using Time = std::chrono::steady_clock::time_point;
  /// For the stacks of all ranks.
  static constexpr std::chrono::seconds kLimit{8};

  void begin(RankState stalled, Time now);
  void add(RankState state) { states_.push_back(std::move(state)); }
  /// The agent of this node has told all of its ranks.
  void complete(std::size_t node) { complete_.insert(node); }
  [[nodiscard]] bool is_complete(std::size_t node) const { return complete_.contains(node); }
  /// When it concludes with the answers so far; nothing while none is under way.
  [[nodiscard]] std::optional<Time> deadline() const { return deadline_; }
  /// Whether this or an earlier one was ever begun.
  [[nodiscard]] bool was_begun() const { return stalled_.has_value(); }

  /// Ends it with a report. `ends`: of ranks that no agent is left to answer for.
  [[nodiscard]] HangReport conclude(const std::vector<RankEnd>& ends, int world_size);

 private:
  std::optional<Time> deadline_;
  std::optional<RankState> stalled_;  ///< the one that began it
  std::vector<RankState> states_;
  std::set<std::size_t> complete_;
};

}  // namespace dstrain::launcher
