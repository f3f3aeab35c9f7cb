#pragma once

#include <map>
#include <vector>

#include "engine/program/builder/activations.h"

namespace dstrain::builder {

/// Sends and receives of what crosses from chunk to chunk between ranks of a pipeline, and the
/// buffers until it has left.
class Transfers {
 public:
  Transfers(Writer& writer, Activations& activations);

  /// Before visit `visit`: what it receives is on its way, and what the next chunk receives.
  void before(int visit);
  /// Adds to `action`, which reads what was received, its wait.
  void wait(BufferRole role, int block, int micro_batch, Action& action);
  /// After action `index` has written the block's output, or the gradient of it: sends it.
  void send(BufferRole role, int block, int micro_batch, int index);
  /// Adds to `action`, which frees what was sent, its wait.
  void wait_sent(BufferRole role, int block, int micro_batch, Action& action);
  /// Before the block computes its output again: the one that was sent is freed.
  void discard(int block, int micro_batch);
  /// At the end: frees what was sent and nobody else frees.
  void finish();
  /// After the whole list: what the receives of one run wait for in the run before it.
  void close();

 private:
  struct Tensor {
    BufferRole role = BufferRole::output;
    int block = -1, micro_batch = -1;
    auto operator<=>(const Tensor&) const = default;
  };
  struct Need {
    int visit = -1;
    Tensor tensor;
  };
  void receive(const Tensor& tensor);
  void discard_before(int send);
  void discard(const Tensor& tensor, int send);
  [[nodiscard]] int other_side(const Tensor& tensor) const;

  Writer& writer_;
  Activations& activations_;
  std::vector<Need> needs_;  ///< in the order of the visits
  std::size_t next_need_ = 0;
  std::map<ActionKind, int> waited_;  ///< by kind of receive: compute action waited for so far
  std::map<Tensor, int> received_;    ///< not yet waited for
  std::map<Tensor, int> sent_;        ///< freed by a backward
  std::vector<std::pair<Tensor, int>> to_discard_;
};

}  // namespace dstrain::builder
