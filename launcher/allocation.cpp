#include "launcher/allocation.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/error.h"

namespace dstrain::launcher {

Allocation allocate_local(const Machine& machine, int ranks) {
  constexpr int kMostRanks = 1024;
  if (ranks < 0 || ranks > kMostRanks) {
    throw Error(ErrorKind::usage,
                fmt::format("--ranks {}: a machine takes 1 to {} ranks", ranks, kMostRanks));
  }
  Allocation allocation;
  if (machine.gpus_hidden && machine.gpus_installed > 0) {
    allocation.remarks.push_back(
        fmt::format("CUDA_VISIBLE_DEVICES shows none of the {} GPUs of {}: the ranks run on CPU",
                    machine.gpus_installed, machine.host));
  }
  if (machine.gpus > 0 && ranks > machine.gpus) {
    throw Error(ErrorKind::usage,
                fmt::format("--ranks {}: {} has {} visible GPU{}", ranks, machine.host,
                            machine.gpus, machine.gpus == 1 ? "" : "s"),
                fmt::format("use --ranks {} or fewer, or CUDA_VISIBLE_DEVICES= for CPU ranks",
                            machine.gpus));
  }
  const int slots = ranks > 0 ? ranks : std::max(1, machine.gpus);
  allocation.hosts.push_back({.name = machine.host,
                              .address = "127.0.0.1",
                              .slots = slots,
                              .gpus = machine.gpus,
                              .cores = machine.cores});
  return allocation;
}

}  // namespace dstrain::launcher
