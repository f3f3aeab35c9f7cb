#pragma once

#include <string>
#include <vector>

#include "launcher/machine.h"

namespace dstrain::launcher {

/// One node that the job may use.
struct Host {
  std::string name;     ///< as reports name it
  std::string address;  ///< where the other nodes reach it
  int slots = 1;        ///< ranks that it takes
  int gpus = 0;
  int cores = 1;
};

/// The nodes of a job, in rank order. This machine alone is the simplest one.
struct Allocation {
  std::vector<Host> hosts;
  std::vector<std::string> remarks;  ///< what a person should know about the choice
};

/// This machine with `ranks` slots; 0 takes one per visible GPU, or one on a machine without.
/// Error{usage} for more ranks than visible GPUs, unless CUDA_VISIBLE_DEVICES hides them all, which
/// asks for CPU ranks.
[[nodiscard]] Allocation allocate_local(const Machine& machine, int ranks);

}  // namespace dstrain::launcher
