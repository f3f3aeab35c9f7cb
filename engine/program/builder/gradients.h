#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <optional>
#include <vector>

#include "engine/program/builder/writer.h"

namespace dstrain::builder {

/// Buffers of whole gradients, reductions and norm.
class Gradients {
 public:
  Gradients(Writer& writer, const std::vector<GroupUse>& uses);

  /// Gives the group's gradient an empty buffer unless it has one that it still collects in.
  void clear(int group, int micro_batch);
  /// The buffer in which the group's gradient of the micro-batch collects now.
  [[nodiscard]] int buffer(int group, int micro_batch) const {
    return collecting_[place(group, micro_batch)].buffer[to_index(group)];
  }
  /// After the backward `index` of the visit: reduces what is complete.
  void after(const Visit& visit, int index);
  /// Returns norm.
  int finish();
  /// By group: the action after which the rank has the whole sum of its gradient; -1: norm waits.
  [[nodiscard]] const std::vector<int>& gathered_sums() const { return gathered_sums_; }

 private:
  /// By group: where gradients collect.
  struct Collecting {
    std::vector<int> own_slot;  ///< of a group that needs one of its own
    std::vector<int> cleared;   ///< micro-batch whose gradient its buffer collects, -1: none
    std::vector<int> buffer;
  };
  /// In collecting_: slots of the micro-batches of each lane; all add to one gradient at rest.
  [[nodiscard]] std::size_t place(int group, int micro_batch) const {
    const bool beside = writer_.lane_of(micro_batch) == Lane::compute_beside;
    return beside && writer_.layout.reduced_from_slot(group) ? 1 : 0;
  }
  void add_slots();
  void add_reduction_buffers();
  void reduce(int group, int micro_batch, int after);

  Writer& writer_;
  const std::vector<GroupUse>& uses_;
  std::array<Collecting, 2> collecting_;
  std::vector<int> pool_;  ///< buffers that groups share
  std::size_t next_ = 0;   ///< in the pool
  int shard_sum_ = -1;     ///< buffers of the reduction, -1: it needs none
  int wire_ = -1;
  int codes_ = -1;
  std::vector<int> backwards_;         ///< by group: added to its whole gradient so far
  std::map<int, int> last_reduce_of_;  ///< by buffer
  std::optional<int> last_reduce_;
  std::vector<int> gathered_sums_;
  struct Late {
    int group = -1, micro_batch = -1, after = -1;
  };
  std::vector<Late> over_stages_;  ///< tied groups whose gradient is complete on this rank
};

}  // namespace dstrain::builder
