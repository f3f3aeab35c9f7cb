#pragma once

#include <map>
#include <set>
#include <utility>
#include <vector>

#include "engine/program/builder/activations.h"

namespace dstrain::builder {

/// Inputs of recomputed blocks that rest on the host from their forward to their backward: the
/// output of the block before.
class Inputs {
 public:
  Inputs(Writer& writer, Activations& activations);

  /// Before visit `visit`: the input that it reads is on its way back, and that of the visit after
  /// it.
  void before(int visit);
  /// After the forward `index` of `block`: its output goes to the host.
  void after_forward(int block, int micro_batch, int index);
  /// The slot that holds the output of `block` again; -1: the output has not left the device.
  [[nodiscard]] int fetched(int block, int micro_batch) const;
  /// Adds to `action`, the first that reads the fetched output, its wait.
  void wait(int block, int micro_batch, Action& action);
  /// Action `index` freed the slot.
  void freed(int block, int micro_batch, int index);
  /// After the whole list: what the fetches of one run wait for in the run before it.
  void close();

 private:
  using Key = std::pair<int, int>;  ///< block, micro-batch
  [[nodiscard]] bool leaves(int block) const { return block >= 0 && leaves_[to_index(block)]; }
  void fetch(int block, int micro_batch);
  void discard_before(int action);

  Writer& writer_;
  Activations& activations_;
  std::vector<bool> leaves_;  ///< by block: its output goes to the host
  std::vector<int> slots_;
  std::size_t next_slot_ = 0;
  std::map<int, int> first_use_, last_free_;  ///< by slot
  std::map<Key, int> slot_of_;
  std::map<Key, int> awaited_;  ///< fetches
  std::map<Key, int> evict_;    ///< not yet fetched
  std::set<Key> to_discard_;    ///< on the device, too
  std::size_t next_visit_ = 0;  ///< fetches of the visits before it are listed
};

}  // namespace dstrain::builder
