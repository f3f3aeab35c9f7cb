#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/rank_record.h"
#include "engine/base/units.h"
#include "engine/store/store.h"

namespace dstrain {

enum class ReduceOp { sum, max };

/// How many rows go to each rank of a group, and how many come from each.
struct ExchangedRows {
  std::vector<std::int64_t> sent, received;
};

/// Collectives over one group of ranks. Every member calls the same operations in the same order.
///
/// On a GPU a call is enqueued on the calling thread's current stream and returns at once; the
/// caller orders streams. On the CPU it returns when done. Tensors are contiguous and on this
/// rank's device. A dead peer ends a call on the CPU with an Error{again} that names the
/// operation, the group and the rank's index; on a GPU the launcher ends the ranks that wait for
/// it. Not thread-safe; one per lane.
class Communicator {
 public:
  virtual ~Communicator() = default;

  [[nodiscard]] virtual int rank() const = 0;  ///< index in the group
  [[nodiscard]] virtual int size() const = 0;

  /// In place.
  virtual void all_reduce(at::Tensor& x, ReduceOp op) = 0;
  /// `output` holds size() times `input`, in rank order; `input` may be this rank's part of
  /// `output`.
  virtual void all_gather(at::Tensor& output, const at::Tensor& input) = 0;
  /// Sum over ranks of `input` (size() equal parts); this rank's part goes to `output`, which may
  /// be that part of `input`.
  virtual void reduce_scatter(at::Tensor& output, const at::Tensor& input) = 0;

  /// Work that an exchange may run beside: called once, in the call, on the caller's stream.
  using Work = std::function<void()>;
  /// Whether the next two let their work run while parts travel, and nothing is slower for it.
  [[nodiscard]] virtual bool overlaps() const { return false; }
  /// all_gather. `meanwhile` may read `input`; nothing need be in `output` then.
  virtual void all_gather(at::Tensor& output, const at::Tensor& input, const Work& meanwhile) {
    all_gather(output, input);
    meanwhile();
  }
  /// reduce_scatter. `meanwhile` may still write this rank's part of `input`, and no other;
  /// `output` is no part of it.
  virtual void reduce_scatter(at::Tensor& output, const at::Tensor& input, const Work& meanwhile) {
    meanwhile();
    reduce_scatter(output, input);
  }

  virtual void broadcast(at::Tensor& x, int root) = 0;
  /// Part i of `input` goes to rank i; part i of `output` comes from rank i. Equal parts, no
  /// aliasing.
  virtual void all_to_all(at::Tensor& output, const at::Tensor& input) = 0;
  /// The same with parts of any number of rows: `input` [all sent, width] has those for rank 0
  /// first, `output` [all received, width] those from rank 0. What a rank sends to another one is
  /// what that one receives from it; the width is the same on all.
  virtual void all_to_all(at::Tensor& output, const at::Tensor& input,
                          const ExchangedRows& rows) = 0;
  virtual void send(const at::Tensor& x, int peer) = 0;
  virtual void receive(at::Tensor& x, int peer) = 0;
  /// Returns when all ranks have called it (waits also on a GPU).
  virtual void barrier() = 0;
  /// A CUDA graph of which calls are a part begins and ends with it.
  virtual void settle() {}
  /// After a failure: ends waits of the device for peers that may never come, as many as it can at
  /// once. Whether there is still work, so that it should be called again.
  virtual bool end_waits() { return false; }
  /// On the CPU: a send or receive that another thread is in, and later ones, end with an
  /// Error{again}.
  virtual void cancel() {}
};

enum class CommBackend { nccl, gloo };

struct CommunicatorOptions {
  CommBackend backend = CommBackend::gloo;
  std::string name;        ///< unique per group and lane within a job, e.g. "shard-gather"
  std::vector<int> ranks;  ///< global ranks of the group, in coordinate order
  int rank = 0;            ///< this process's global rank; must be in `ranks`
  int max_ctas = 0;        ///< NCCL: thread blocks at most; 0 = NCCL's choice
  /// Gathers and reductions of up to so many bytes in one piece are to run by copies between the
  /// GPUs where these are of one host (peer_copies.h); 0: all by NCCL.
  Bytes copied_bytes = 0;
  /// Peers often come late: the stream waits for copies without a kernel, which would keep a
  /// multiprocessor, and sees them some microseconds later; slots are acknowledged (peer_memory.h).
  bool waits_long = false;
  /// Nothing but what copies do is expected there, so NCCL is opened when it is asked for after
  /// all.
  bool only_copies = false;
  /// The first of two ranks only sends and the second only receives. Then no send or receive makes
  /// the host wait for the peer; otherwise the first one may.
  bool link = false;
  /// While it is true, collectives do nothing (skipping.h); null: they never do.
  std::shared_ptr<const std::atomic<bool>> skips = nullptr;
  double timeout_s = 600;
  /// Is told, in one line, what is done in another way than was asked for.
  std::function<void(const std::string&)> note = {};
};
/// Collective over `ranks`. A group of one needs no backend: every operation is then a copy or
/// nothing.
[[nodiscard]] std::unique_ptr<Communicator> make_communicator(const std::shared_ptr<Store>& store,
                                                              const CommunicatorOptions& options);

/// What one kind of call amounted to since the start.
struct CallCount {
  std::string operation;
  std::int64_t calls = 0;
  Bytes bytes = 0;    ///< full buffer of each call
  double host_s = 0;  ///< time inside the call on the host
};
/// A Communicator that counts the calls it passes on, and names them where a profiler runs.
class CountingCommunicator : public Communicator {
 public:
  /// From here on each call is entered into `record`, which must outlive this, so that a hang can
  /// be told apart by who came how far. A group of one leaves it alone.
  virtual void watch(RankRecordFile& record) = 0;
  [[nodiscard]] virtual std::vector<CallCount> counts() const = 0;
  /// Counts calls once more that a CUDA graph repeats.
  virtual void add(const std::vector<CallCount>& calls) = 0;
};
/// `options`: of `inner`.
[[nodiscard]] std::unique_ptr<CountingCommunicator> make_counting(
    std::unique_ptr<Communicator> inner, const CommunicatorOptions& options);

}  // namespace dstrain
