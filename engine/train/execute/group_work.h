#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "engine/device/stream.h"
#include "engine/program/program.h"
#include "engine/train/execute/communicators.h"
#include "engine/train/execute/updater.h"
#include "engine/train/state/offloader.h"
#include "engine/train/state/state_store.h"
#include "engine/train/state/view_memory.h"

namespace dstrain {

struct GroupWorkOptions {
  std::int64_t seed = 0;       ///< of the run
  std::int64_t data_rank = 0;  ///< which share of the global batch this rank has
};

/// Does the work of actions on parameters, gradients and states of groups, on the current stream,
/// which is that of the action's lane.
class GroupWork {
 public:
  /// All that is named here outlives it.
  GroupWork(StateStore& states, Communicators& communicators, Offloader& offloader,
            Updater& updater, const GroupWorkOptions& options);

  /// A program's buffers.
  using Buffers = ViewMemory::Buffers;
  /// An action's exchanges, moves, codes and zeros, in order.
  void run(const Action& action, const Buffers& buffers, std::int64_t step, const Stream& stream);
  /// Points the block's parameters to the gradients that its backward writes.
  void bind_gradients(const Action& action, const std::vector<int>& groups, const Buffers& buffers);
  /// Adds the squares of gradients to the first number of `sums`. Each element counts once, also
  /// where other ranks hold it.
  void add_squares(const work::Norm& norm, const Buffers& buffers, const at::Tensor& sums);
  struct Rates {
    double learning = 0;
    double average_share = 0;  ///< of the new weights in their average; 0: it stays
  };
  /// `control`: StepControl on the device.
  void update(const Action& action, const Buffers& buffers, const Rates& rates,
              const at::Tensor& control, const Stream& stream);

 private:
  void exchange(const Action& action, const work::Exchange& exchange, const Buffers& buffers);
  /// `awaited`: as Offloader::copy has it.
  void move(const work::Move& move, const Buffers& buffers, const Stream& stream, bool awaited);
  void code(const Action& action, const work::Code& code, const Buffers& buffers,
            std::int64_t step);
  /// Points blocks to the parameters that the action made whole in a slot.
  void bind_whole(const Action& action, const Buffers& buffers);

  StateStore& states_;
  Communicators& communicators_;
  Offloader& offloader_;
  Updater& updater_;
  GroupWorkOptions options_;
  ViewMemory memory_;
};

}  // namespace dstrain
