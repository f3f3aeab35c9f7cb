#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "engine/base/unique_fd.h"
#include "engine/comm/group.h"

namespace dstrain::comm {

/// Memory that the ranks of a group share, all of them processes or threads of one host. Each rank
/// has slots in it that all read, and they meet at its gate. Nobody's slot is written before all
/// have read it: turns use two slots of a rank in turn.
class SharedMemory {
 public:
  static constexpr std::size_t kSlot = std::size_t{1} << 20;  ///< bytes

  /// Collective over the group. Null on all ranks where they are of several hosts, more than
  /// kMaxRanks, or may not open each other's memory.
  [[nodiscard]] static std::unique_ptr<SharedMemory> open(Store& store, const Group& group);
  /// Ends the waits of the others.
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  /// A rank's slot of this turn; after meet() that of the others holds what they wrote there.
  [[nodiscard]] std::byte* slot(int rank) const;
  /// Returns when all ranks have come. What the ranks are about to do must be the same `call`,
  /// Error{internal} else. std::runtime_error where a rank has ended, or does not come in time.
  void meet(std::uint64_t call);
  /// The next turn, in which slots are others'.
  void turn() { ++turn_; }

 private:
  static constexpr int kMaxRanks = 256;
  struct Head;

  SharedMemory(const Group& group, UniqueFd file, void* memory, std::size_t size);
  [[nodiscard]] static std::size_t size_for(int ranks);
  void sleep(std::uint32_t gate) const;
  [[nodiscard]] bool lost_a_rank() const;

  const Group group_;
  UniqueFd file_;  ///< locked at byte `rank` while this rank lives
  Head* head_;
  std::size_t size_;
  std::uint64_t turn_ = 0;
};

}  // namespace dstrain::comm
