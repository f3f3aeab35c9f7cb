#pragma once

#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "engine/program/builder/writer.h"

namespace dstrain::builder {

/// Updates, and what travels for them where states or parameters rest on the host.
///
/// A streamed update fetches a part of a group's states into a slot on the device, updates it there
/// and evicts it. An update by the CPU evicts a part of the gradient into a slot on the host, and
/// fetches the new parameters from it. Parts go in the order of the next forward, which may begin
/// while later groups are updated.
class States {
 public:
  States(Writer& writer, const std::vector<GroupUse>& uses);

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
  void add_slots();
  /// The next slot of `ring`, and the action that must have freed it, if any of this run.
  std::pair<int, std::optional<int>> take(Ring& ring) const;
  /// Until the rank has the whole sum of the group's gradient.
  void wait_for_sum(int group, Action& action) const;
  void update_whole(int group);
  void stream(int group, int part, int norm);
  void update_on_host(int group, int part, int norm);
  [[nodiscard]] std::vector<int> resting_states(int group) const;
  int add(ActionKind kind, Lane lane, int group, int part, Action action);

  Writer& writer_;
  const std::vector<GroupUse>& uses_;
  Ring device_, host_;
  std::vector<int> gathered_sums_;
  std::vector<int> committed_;  ///< by group; -1: it is not updated
};

}  // namespace dstrain::builder
