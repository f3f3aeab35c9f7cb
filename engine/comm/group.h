#pragma once

#include <exception>
#include <string>
#include <string_view>

#include "engine/comm/communicator.h"

namespace dstrain::comm {

/// Who a backend's object is, for its messages and keys.
struct Group {
  std::string name;
  int rank = 0;  ///< index in the group
  int size = 1;
  double timeout_s = 600;

  /// Index of options.rank in options.ranks; Error{internal} when the list is wrong.
  static Group of(const CommunicatorOptions& options);
  /// "group 'shard-gather', rank 1 of 4"
  [[nodiscard]] std::string text() const;
  /// Key of this group in the job's store.
  [[nodiscard]] std::string key(std::string_view what) const;
  /// Error{again}: the operation ended because a peer or the network was lost.
  [[noreturn]] void fail(std::string_view operation, std::string_view reason) const;
};

/// Equal on the ranks of one host. NCCL_HOSTID, which tells NCCL so, counts here, too.
[[nodiscard]] std::string host_id();

/// Waits until every rank of the group has come, so that a missing one is an error with names and
/// not a hang in a library's start; Error{hosts} says how many came.
void wait_for_all(Store& store, const Group& group);

/// A group of one: every operation is a copy or nothing.
[[nodiscard]] std::unique_ptr<Communicator> make_single();
/// Gloo over TCP, for tensors on the CPU.
[[nodiscard]] std::unique_ptr<Communicator> make_gloo(const std::shared_ptr<Store>& store,
                                                      const Group& group);
/// NCCL on the calling thread's current GPU. Sets NCCL_NVLS_ENABLE=0 in the environment unless it
/// is set: NVLink multicast stays off.
[[nodiscard]] std::unique_ptr<Communicator> make_nccl(Store& store, const Group& group,
                                                      const CommunicatorOptions& options);

}  // namespace dstrain::comm
