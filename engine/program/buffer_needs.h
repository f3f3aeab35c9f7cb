#pragma once

#include <cstdint>
#include <vector>

#include "engine/program/coordinate_part.h"
#include "engine/program/program.h"

namespace dstrain {

/// A buffer that an action of some kind must name.
struct Need {
  BufferRole role = BufferRole::parameters;
  int owner = -1;             ///< group or block; -1: any buffer of the role
  int group = -1;             ///< or block, that it must hold; -1: any
  int micro_batch = -1;       ///< that it must hold; -1: any
  std::int64_t elements = 0;  ///< at least
};

struct Needs {
  std::vector<Need> reads, writes, frees;
};

/// The buffers that each action of a program must read, write and free, by its kind, the layout and
/// the model. Keeps references to its arguments. The first `run_length` actions are one run, which
/// the others repeat.
class BufferNeeds {
 public:
  BufferNeeds(const Program& program, int run_length, const Layout& layout, const ModelCost& cost);
  /// Needs of action `i`.
  [[nodiscard]] Needs of(int i) const;

 private:
  [[nodiscard]] bool training() const { return kind_ == ProgramKind::training; }
  [[nodiscard]] bool trainable(int group) const {
    return layout_.groups[static_cast<std::size_t>(group)].trainable;
  }
  void block_needs(const Action& a, Needs& needs) const;
  void gradient_needs(const Action& a, Needs& needs) const;
  void weight_needs(const Action& a, Needs& needs) const;
  void gather_needs(int i, Needs& needs) const;
  void reduce_needs(const Action& a, Needs& needs) const;
  void offload_needs(const Action& a, Needs& needs) const;

  /// A gather is one of several of its group in a run.
  struct Turn {
    int index = 0, count = 0;
  };
  const Program& program_;
  const ProgramKind kind_;
  const Layout& layout_;
  const ModelCost& cost_;
  const CoordinatePart own_;
  std::vector<bool> recomputed_;  ///< [micro-batch, block]
  std::vector<bool> evicted_;     ///< [micro-batch, block]: output goes to the host
  std::vector<bool> backward_;    ///< by block: this rank runs it
  std::vector<Turn> turns_;       ///< by action of a run; of gathers
  int last_reader_ = -1;          ///< block that reads a batch last
};

}  // namespace dstrain
