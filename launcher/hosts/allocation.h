#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "launcher/base/variables.h"
#include "launcher/hosts/machine.h"

namespace dstrain::launcher {

/// How the controller gets an agent onto a host.
enum class Reach {
  local,  ///< a child process
  ssh,    ///< one ssh connection
  slurm,  ///< a task of one srun for all nodes
  joined  ///< already started by another program; it dials (launcher/transport/meeting.h)
};

/// One node that the job may use.
struct Host {
  std::string name;     ///< as reports name it
  std::string address;  ///< where the other nodes reach it; empty until its agent has said hello
  int slots = 1;        ///< ranks that it takes
  int gpus = 0;
  int cores = 1;
  Reach reach = Reach::local;
  std::string user = {};          ///< of ssh; empty: as the user's ssh configuration says
  int port = 0;                   ///< of ssh; 0: as the user's ssh configuration says
  std::vector<int> devices = {};  ///< GPUs to use, by index; empty: those that the host shows
};

/// The nodes of a job, in rank order. This machine alone is the simplest one.
struct Allocation {
  std::vector<Host> hosts;
  std::vector<std::string> remarks;  ///< what a person should know about the choice
};

/// What the command line says about hosts. At most one of `hosts` and `hostfile`.
struct HostRequest {
  int ranks = 0;                        ///< 0: every slot
  std::string hosts = {};               ///< "a:8,b:8"
  std::filesystem::path hostfile = {};  ///< grammar in hostfiles/README.md
  std::string include = {};             ///< "a@b:0,2": these hosts, of b only GPUs 0 and 2
  std::string exclude = {};             ///< the same, taken away
  bool cpu_ranks = false;               ///< the recipe asks for the CPU whatever GPUs there are
};

/// The hosts of `request`; without any, those of the SLURM allocation that `variables` describe
/// (SLURM_JOB_ID without SLURM_STEP_ID); else this machine. Every host with its slots, whatever
/// `ranks` says, so that hosts beyond those ranks are spares. Error{usage} names file, line and
/// column; for more than kMaxSshHosts it says what to do.
[[nodiscard]] Allocation allocate(const HostRequest& request, const Machine& machine,
                                  const Variables& variables);

/// Hosts that one `dstrain launch` or `dstrain doctor` starts agents on by ssh; each is a process
/// of its own here for as long as the job runs.
inline constexpr int kMaxSshHosts = 64;

/// This machine with `ranks` slots; 0 takes one per visible GPU, or one on a machine without.
/// Error{usage} for more ranks than visible GPUs, unless CUDA_VISIBLE_DEVICES hides them all, which
/// asks for CPU ranks.
[[nodiscard]] Allocation allocate_local(const Machine& machine, int ranks);

}  // namespace dstrain::launcher
