#pragma once

#include <array>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "engine/program/builder/activations.h"

namespace dstrain::builder {

/// Sends and receives of what crosses from chunk to chunk between ranks of a pipeline, and the
/// buffers until it has left.
class Transfers {
 public:
  Transfers(Writer& writer, Activations& activations);

  /// Before visit `visit`: what it receives is on its way, what the next chunk receives, and what
  /// the other ranks may have sent by now.
  void before(int visit);
  /// Adds to `action`, which reads what was received, its wait.
  void wait(BufferRole role, int block, int micro_batch, Action& action);
  /// After action `index` has written the block's output, or the gradient of it: sends it.
  void send(BufferRole role, int block, int micro_batch, int index);
  /// Adds to `action`, which frees what was sent, its wait.
  void wait_sent(BufferRole role, int block, int micro_batch, Action& action);
  /// Before the block computes its output again: the one that was sent is freed.
  void discard(int block, int micro_batch);
  /// At the end: frees what was sent and is not freed elsewhere.
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
  /// What comes on one lane, in the order in which it is sent.
  struct Incoming {
    Lane lane = Lane::receive_down;
    std::vector<std::pair<Tensor, std::size_t>> tensors{};  ///< with Arrival::visit
    std::size_t next = 0;
    int waited = -1;  ///< compute action waited for so far
  };
  void add_needs();
  void add_arrivals();
  void receive(Incoming& lane);
  void discard_before(int send);
  void discard(const Tensor& tensor, int send);

  Writer& writer_;
  Activations& activations_;
  std::vector<Need> needs_;  ///< in the order of the visits
  std::size_t next_need_ = 0;
  std::array<Incoming, 2> incoming_;
  std::map<Tensor, std::size_t> lane_of_;
  std::map<Tensor, int> received_;  ///< not yet waited for
  std::set<Tensor> begun_;          ///< receives that are listed
  std::map<Tensor, int> sent_;      ///< freed by a backward
  std::vector<std::pair<Tensor, int>> to_discard_;
};

}  // namespace dstrain::builder
