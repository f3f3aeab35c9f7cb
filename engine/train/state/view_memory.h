#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "engine/mesh/shard.h"
#include "engine/program/program.h"
#include "engine/train/state/group_memory.h"
#include "engine/train/state/state_store.h"

namespace dstrain {

/// Elements in memory, or of a state in a file.
struct Memory {
  at::Tensor tensor = {};              ///< flat; undefined: in a file
  const GroupMemory* state = nullptr;  ///< of what rests, else null
  int group = -1;                      ///< of the state
  Range range = {};                    ///< of the group's part of the state

  [[nodiscard]] FilePart file() const { return state->in_file(group, range); }
  [[nodiscard]] Memory narrow(std::int64_t begin, std::int64_t elements) const;
};

/// What an update of a part of a group has in hand.
struct UpdateMemory {
  int group = -1;
  Range part = {};  ///< counted from the first element that the rank owns
  bool on_host = false;
  bool in_file = false;  ///< some of it
  Memory gradient, parameters;
  std::vector<Memory> states;  ///< master weights, where parameters are not; moments
};

/// The memory that the views of a program name on this rank.
class ViewMemory {
 public:
  /// `indices`: of this rank along each axis that has several ranks. `states` outlives this.
  ViewMemory(StateStore& states, std::map<CommAxis, int> indices)
      : states_(states), indices_(std::move(indices)) {}

  /// A program and, by its buffers, the memory of those that do not rest. Both outlive what is
  /// asked of them.
  struct Buffers {
    const Program& program;
    const std::vector<at::Tensor>& tensors;
  };
  /// `begin`, in the own share.
  [[nodiscard]] std::int64_t begin_of(std::int64_t begin, const std::optional<Share>& share) const;
  /// One for each tensor that the view covers: of moments, one for each moment.
  [[nodiscard]] std::vector<Memory> of(const View& view, const Buffers& buffers) const;
  /// A view of one tensor on the device.
  [[nodiscard]] at::Tensor tensor(const View& view, const Buffers& buffers) const;

  struct Copy {
    Memory from, to;
  };
  /// What a move copies or adds. Bytes of a slot take the type of the other side.
  [[nodiscard]] std::vector<Copy> copies(const work::Move& move, const Buffers& buffers) const;
  /// What the update of a part of a group has in hand.
  [[nodiscard]] UpdateMemory operands(const work::Update& update, const Buffers& buffers) const;

 private:
  StateStore& states_;
  std::map<CommAxis, int> indices_;
};

}  // namespace dstrain
