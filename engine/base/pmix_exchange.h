#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>

namespace dstrain {

/// The process that talks to the PMIx server for us (lib/dstrain/dstrain-pmix): PMIx starts threads and
/// its calls may never return, so it lives outside and is killed when it does not answer. Ends with
/// this object.
class PmixHelper {
 public:
  PmixHelper(pid_t pid, int input) : pid_(pid), input_(input) {}
  ~PmixHelper();
  PmixHelper(PmixHelper&& other) noexcept;
  PmixHelper& operator=(PmixHelper&& other) noexcept;
  PmixHelper(const PmixHelper&) = delete;
  PmixHelper& operator=(const PmixHelper&) = delete;

 private:
  pid_t pid_ = -1;
  int input_ = -1;  ///< its standard input, whose end lets it leave the namespace
};

/// What a process that srun or mpirun started knows after the exchange.
struct PmixAnswer {
  int rank = 0;
  int size = 1;
  int local_rank = 0;  ///< among those of this node
  int local_size = 1;
  std::string value;  ///< what rank 0 gave
  /// On rank 0: keep it until the others have been heard from, since they fetch the value from it.
  PmixHelper helper;
};

/// Rank in the PMIx namespace (srun --mpi=pmix, mpirun), by PMIX_NAMESPACE and PMIX_RANK; nothing
/// outside of one.
[[nodiscard]] std::optional<int> pmix_rank();

/// Gives every process of the PMIx namespace the `value` of rank 0 (one line of at most 4 KiB; the
/// others' is not looked at). Each calls it once. No fence: a process that is dead or late delays
/// no other, so count the members by other means. Nothing outside of a PMIx namespace, or when its
/// server is gone. Error{hosts} when rank 0 has not answered within `limit`, or this machine lacks
/// libpmix.
[[nodiscard]] std::optional<PmixAnswer> pmix_exchange(const std::string& value,
                                                      std::chrono::milliseconds limit);

}  // namespace dstrain
