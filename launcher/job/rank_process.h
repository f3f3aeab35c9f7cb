#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "engine/base/rank_record.h"
#include "launcher/base/fd.h"

namespace dstrain::launcher {

/// What a rank inherits beside its environment. Descriptors of -1 are not passed on.
struct RankStart {
  std::vector<std::string> command;
  std::vector<std::string> environment;  ///< NAME=VALUE, added to this process's own
  std::vector<int> cpus = {};            ///< that the rank may run on; empty: not bound
  bool rank_zero = false;                ///< gets a report pipe
  int master_fd = -1;                    ///< listening socket of the rendezvous
};

/// A started rank, as its agent sees it.
struct RankProcess {
  pid_t pid = -1;   ///< also its session and process group
  UniqueFd output;  ///< its standard output and error, non-blocking
  UniqueFd report;  ///< rank zero's report pipe, non-blocking
  RankRecordFile record = RankRecordFile::anonymous();
};

/// Forks and executes a rank: own session, SIGKILL when the agent dies, default signals, no
/// descriptor but those above. The caller is single-threaded and calls from its main thread: the
/// death signal follows the thread that forked.
[[nodiscard]] RankProcess start_rank(const RankStart& start);

}  // namespace dstrain::launcher
