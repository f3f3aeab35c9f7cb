#pragma once

#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "engine/program/builder/writer.h"

namespace dstrain::builder {

/// Inputs of the micro-batches: loads, and the buffers that they fill in turn.
class Batches {
 public:
  explicit Batches(Writer& writer);

  /// Before a visit of the micro-batch: it and the next one are on their way.
  void before(int micro_batch);
  /// Adds to `action`, which reads the batch of the micro-batch first, its wait.
  void wait(int micro_batch, Action& action);
  [[nodiscard]] int buffer(int micro_batch) const {
    return buffers_[to_index(micro_batch) % buffers_.size()];
  }
  /// Action `index` reads the batch of the micro-batch.
  void read_by(int micro_batch, int index) { reader_[to_index(micro_batch)] = index; }
  /// After the whole list: what the loads of one run wait for in the run before it.
  void close();

 private:
  void load(int micro_batch);

  Writer& writer_;
  std::vector<int> buffers_;
  std::vector<std::optional<int>> load_;    ///< by micro-batch
  std::vector<std::optional<int>> reader_;  ///< by micro-batch: the last so far
  std::vector<bool> awaited_;               ///< by micro-batch
  int next_ = 0;
};

/// Outputs of blocks and what autograd saves, for each micro-batch under way.
class Activations {
 public:
  explicit Activations(Writer& writer) : writer_(writer) {}

  /// An empty buffer of the role for block and micro-batch.
  int take(BufferRole role, int block, int micro_batch);
  /// The buffer that was taken.
  [[nodiscard]] int at(BufferRole role, int block, int micro_batch) const;
  /// The same; it is empty from now on.
  int give_back(BufferRole role, int block, int micro_batch);
  /// The same by an action of its own, after `copied`, which has brought its content elsewhere.
  void discard(BufferRole role, int block, int micro_batch, int copied);
  /// The last action so far that freed buffer `id`.
  [[nodiscard]] std::optional<int> freed_by(int id) const;
  void set_freed(int id, int action) { freed_by_[id] = action; }

 private:
  struct Key {
    BufferRole role = BufferRole::output;
    int block = -1, micro_batch = -1;
    auto operator<=>(const Key&) const = default;
  };
  Writer& writer_;
  std::map<Key, int> taken_;
  std::map<int, int> freed_by_;
  /// By role, block and the lane that uses them in turn.
  std::map<std::tuple<BufferRole, int, Lane>, std::vector<int>> empty_;
};

}  // namespace dstrain::builder
