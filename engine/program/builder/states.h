#pragma once

#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "engine/program/builder/writer.h"

namespace dstrain::builder {

/// How many transient slots lie beside activations, by the actions that run blocks.
struct SlotRoom {
  std::vector<int> until;   ///< from the beginning of the list to the next of these actions
  std::vector<int> behind;  ///< from the end of the action to the end of the list
};
/// In `program`, of training without them; empty where it has no slot, where some slots are filled
/// by updates alone, and where two micro-batches run at once.
[[nodiscard]] SlotRoom slot_room(const Program& program);

/// Updates, and what travels for them where states or parameters rest on the host.
///
/// A streamed update fetches a part of a group's states into a slot on the device, updates it there
/// and evicts it; transient slots are filled behind backwards that leave room, and are empty before
/// forwards that need it. An update by the CPU evicts a part of the gradient into a slot on the
/// host, and fetches the new parameters from it. Parts go in the order of the next forward, which
/// may begin while later groups are updated.
class States {
 public:
  States(Writer& writer, const std::vector<GroupUse>& uses, SlotRoom room);

  /// After action `index` of the compute lane, which runs a block.
  void after_block(int index);

  /// After norm, action `norm`, and those of Gradients::gathered_sums.
  void finish(int norm, const std::vector<int>& gathered_sums);
  /// By group: the action after which all its new parameters rest where they belong; -1: none.
  [[nodiscard]] const std::vector<int>& committed() const { return committed_; }
  /// After the whole list: what slots wait for in the run before it.
  void close();

 private:
  /// Slots that parts take in turn.
  struct Ring {
    std::vector<int> slots;
    std::size_t next = 0;
    std::map<int, int> filled_by;  ///< by slot: the first action of the run that fills it
    std::map<int, int> freed_by;   ///< by slot: the last action so far
  };
  /// The slot of a part before its update, and what that waits for.
  struct Fetched {
    int slot = -1;
    std::optional<int> after;
  };
  struct Part {
    int group = -1;
    int part = -1;
  };
  [[nodiscard]] bool trained(int group) const;
  void add_slots();
  void add_transient_slots();
  /// Those on the device that go through slots, in the order of their updates.
  [[nodiscard]] std::vector<Part> streamed_parts() const;
  /// The next part of streamed_, after `behind` as well where it is an action.
  void fetch_next(int behind);
  void return_transient_slots();
  /// After all slots are empty, in the order in which the next run needs the gradients.
  void evict_parked();
  /// Lets those wait for it that come next in the run after.
  void close_parked();
  /// The next slot of `ring`, and the action that must have freed it, if any of this run.
  std::pair<int, std::optional<int>> take(Ring& ring) const;
  /// Until the rank has the whole sum of the group's gradient.
  void wait_for_sum(int group, Action& action) const;
  void update_whole(int group);
  void stream(int group, int part, int norm);
  void update_on_host(int group, int part, int norm);
  int add(ActionKind kind, Lane lane, int group, int part, Action action);

  Writer& writer_;
  const std::vector<GroupUse>& uses_;
  const SlotRoom room_;
  Ring device_, host_;
  int transient_ = 0;  ///< slots, the last of device_
  std::vector<Part> streamed_;
  std::size_t next_fetched_ = 0;   ///< of streamed_
  std::deque<Fetched> under_way_;  ///< of parts before that one
  std::vector<int> blocks_;        ///< actions that run blocks
  struct Parked {
    Part part;
    int fetch = -1, update = -1, evict = -1;  ///< actions
    int used = -1;                            ///< the first one that changes the gradient
  };
  std::vector<Parked> parked_;
  std::vector<int> gathered_sums_;
  std::vector<int> committed_;  ///< by group; -1: it is not updated
};

}  // namespace dstrain::builder
