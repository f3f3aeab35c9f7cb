#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/units.h"
#include "engine/comm/group.h"

namespace dstrain::comm {

/// Device memory that the other GPUs of a host write into, by copy engines, and the words by which
/// the ranks of a group tell each other what has arrived.
///
/// Exchanges use the two slots by turns, each with words of its
/// own: 1 says that a part has arrived, and the receiver sets it back to 0. No word counts, so that
/// a CUDA graph can hold exchanges: an even number of them, as it always begins with the same slot.
///
/// A rank begins its exchange k + 1 when it has every rank's part of k, so when everyone has read
/// what came before k and set the words of k - 1 back. With `acknowledged` it begins k + 1 when
/// every rank, itself too, has said that it has read k - 1 (read()), so that the copies of the next
/// part travel while a kernel that reads this one waits for room. Not in a graph.
class PeerMemory {
 public:
  /// Collective over the group. Null on all ranks where the GPUs are of several hosts, cannot reach
  /// each other, or are more than kMaxPeers. A slot holds `part` bytes of each rank.
  [[nodiscard]] static std::unique_ptr<PeerMemory> open(Store& store, const Group& group,
                                                        Bytes part, bool acknowledged);
  /// Collective, before the first exchange: what probe_peers() says.
  [[nodiscard]] std::string probe(Store& store, const Group& group);
  /// The streams of the last exchange must have ended.
  ~PeerMemory();
  /// Sets all words, so that waits for peers that may never come end, as many as there are words;
  /// what arrived is of no use. On a stream of its own, as those of exchanges wait.
  void end_waits();
  /// `stream` waits until every rank has read what this one has sent: its memory may go then.
  [[nodiscard]] const char* await_readers(void* stream);
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  /// Bytes of one rank's part that a slot holds.
  [[nodiscard]] std::size_t capacity() const { return part_; }
  /// Begins an exchange: enqueues on `stream` (a cudaStream_t) copies of from[i], of `bytes`, to
  /// rank i; from[this rank] is not read. Copy engines do it, no multiprocessor. Error text of the
  /// driver; null: none.
  [[nodiscard]] const char* send(const std::vector<const void*>& from, std::size_t bytes,
                                 void* stream);
  /// Ends it: `stream` waits until what was sent has left and what others send has come. That lies
  /// in arrived(i) until the next exchange but one begins, or until read(). A warp waits; with
  /// `by_driver` nothing runs meanwhile, but inside a graph.
  [[nodiscard]] const char* receive(void* stream, bool by_driver);
  [[nodiscard]] const void* arrived(int rank) const;
  /// What arrived is not needed any more when `stream` is here. Before the next send.
  [[nodiscard]] const char* read(void* stream);
  /// The next exchange uses the first slot.
  [[nodiscard]] bool settled() const { return sent_ % kSlots == 0; }

 private:
  static constexpr std::size_t kSlots = 2;
  PeerMemory(const Group& group, std::size_t part, bool acknowledged);
  [[nodiscard]] std::size_t offset(int rank) const;
  [[nodiscard]] std::size_t flags() const { return kSlots * slot_; }
  /// Slot of the last exchange; the first one uses slot 0.
  [[nodiscard]] std::size_t last() const { return (sent_ + 1) % kSlots; }
  /// What words of a slot say: that a rank has filled it, or that it has read its own.
  enum class Said : std::size_t { filled, read };
  /// Addresses: of the word of rank `of` in rank `at`'s memory, and of those of all ranks in this
  /// rank's.
  [[nodiscard]] std::uintptr_t word(int at, int of, Said said, std::size_t slot) const;
  [[nodiscard]] std::vector<std::uintptr_t> words_here(Said said, std::size_t slot) const;

  int rank_;
  bool acknowledged_;
  std::uint64_t sent_ = 0;  ///< exchanges
  std::size_t part_ = 0, slot_ = 0;
  std::vector<char*> memory_;  ///< of each rank, mapped here; null: not mapped
};

}  // namespace dstrain::comm
