#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>

#include "engine/base/append_file.h"
#include "engine/train/execute/communicators.h"
#include "engine/train/execute/step_outcome.h"
#include "engine/train/session/world.h"

namespace dstrain {

/// What the host did for one step.
struct HostTimes {
  double data_wait_s = 0;  ///< waiting for samples
  double work_s = 0;       ///< enqueuing the step, without that; a full launch queue counts, too
};

/// ranks/rank0003.jsonl: a line per timed step of this rank, as engine/trace/README.md says.
/// Training never ends because of it: after three writes that fail the file is closed.
class RankLines {
 public:
  /// Lines beyond `resumed_step` are dropped. Keeps the references.
  RankLines(const std::filesystem::path& path, std::int64_t resumed_step, const World& world,
            const Communicators& communicators);

  /// Writes nothing where the step was not timed, nor where it is not this rank's turn
  /// (engine/samples/share.h).
  void step(const StepOutcome& outcome, const HostTimes& host, bool traced);

 private:
  [[nodiscard]] std::string line(const StepOutcome& outcome, const HostTimes& host, bool traced);

  AppendFile file_;
  int failed_writes_ = 0;
  std::int64_t timed_ = 0;  ///< steps
  const World& world_;
  const Communicators& communicators_;
  /// Calls and bytes so far, by name: a line has what came since the line before.
  std::map<std::string, std::pair<std::int64_t, Bytes>> called_;
};

}  // namespace dstrain
