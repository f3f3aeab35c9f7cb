#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "engine/program/builder/writer.h"

namespace dstrain::builder {

/// Gathers and releases of whole parameters, and the slots that hold them.
class Parameters {
 public:
  Parameters(Writer& writer, const std::vector<GroupUse>& uses);

  /// Before visit `visit`: its groups are on their way, and those of the visits after it as far as
  /// slots and the prefetch distance allow.
  void before(int visit);
  /// Adds to `action`, the first of a visit that reads the block's parameters, its waits.
  void wait(int block, Action& action);
  /// Action `index` reads the block's parameters.
  void read_by(int block, int index);
  /// After visit `visit`: what no visit needs next is released.
  void after(int visit);
  /// After the whole list: what the gathers and first readers of one run wait for in the run before
  /// it. `committed`: by group, the action that ends its update.
  void close(const std::vector<int>& committed);
  /// The buffer in which a visit reads the group now.
  [[nodiscard]] int buffer(int group) const;

 private:
  /// Where a group's whole parameters are, as far as the list is written.
  struct Held {
    bool held = false;
    int buffer = -1;
    int last_visit = -1;          ///< known so far
    std::optional<int> awaited;   ///< gather, by the first reader of each lane
    std::map<Lane, int> readers;  ///< by lane: the last action so far
  };
  struct FreeSlot {
    int slot = -1;
    std::optional<int> released_by;
  };
  void add_slots();
  [[nodiscard]] std::vector<std::vector<int>> windows(
      const std::vector<std::int64_t>& pooled) const;
  [[nodiscard]] std::deque<FreeSlot>& free_slots_of(int group) {
    return free_slots_[to_index(pool_of_[to_index(group)])];
  }
  bool gather_for(int visit);
  bool gather(int group, int visit);
  /// The actions that bring whole parameters into `buffer`; returns the last.
  int fill(int group, int buffer, std::vector<int> after);
  void add_second_shards();

  Writer& writer_;
  const std::vector<GroupUse>& uses_;
  int lookahead_ = 0;
  int codes_ = -1;             ///< scratch of gathers, -1: nothing travels as codes
  std::vector<int> own_slot_;  ///< by group: of a shared one
  std::vector<Held> held_;     ///< by group
  std::vector<bool> filled_;   ///< by group: its parameters have been whole in this program
  std::vector<int> pool_of_;   ///< by group; -1: it takes no slot of a pool
  /// By pool, longest free first.
  std::vector<std::deque<FreeSlot>> free_slots_;
};

/// Takes out the waits that others imply, of this run and of the run before.
void remove_implied_waits(Program& program);

/// All-gathers of what rests whole.
void gather_resident(Writer& writer);

}  // namespace dstrain::builder
