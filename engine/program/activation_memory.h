#pragma once

#include <vector>

#include "engine/program/program.h"

/// Device memory that is allocated and freed within a step: activations, and slots of states that
/// lie where activations leave room (Buffer::transient).
namespace dstrain {

/// By action of the list: bytes of activations while it runs, its workspace included. Outputs,
/// saved and held tensors exist from the action that writes them to the one that frees them.
[[nodiscard]] std::vector<Bytes> activation_memory(const Program& program);

/// What a transient slot of so many bytes may take: a quarter more, as the allocator cannot use all
/// that lies between activations.
[[nodiscard]] constexpr Bytes transient_memory(Bytes bytes) { return bytes + bytes / 4; }

[[nodiscard]] bool has_transient_slots(const Program& program);

/// When a transient slot has memory: from action `taken` to the end of the list and, in the run
/// after that, up to action `returned`.
struct TransientSlot {
  int buffer = -1;
  int taken = -1;     ///< the first action that fills it
  int returned = -1;  ///< the first one on a compute lane that waits until it is empty; -1: none
};
/// In the order of buffers.
[[nodiscard]] std::vector<TransientSlot> transient_slots(const Program& program);

/// The largest sum of both. Where two micro-batches run at once, that of the largest of each lane:
/// streams and graphs have memory of their own.
[[nodiscard]] Bytes peak_activations(const Program& program);

}  // namespace dstrain
