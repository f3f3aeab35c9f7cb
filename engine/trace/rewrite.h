#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace dstrain::trace {

/// An action of the program as a trace names it.
struct RecordedAction {
  std::string name;   ///< "backward(layer.7), micro-batch 2"
  std::string lane;   ///< "gather"
  std::string phase;  ///< "forward", "backward", "optimizer"
};

/// An action in a graph.
struct ReplayedPart {
  int action = 0;                  ///< index in Recording::actions
  std::int64_t device_events = 0;  ///< as captured; they run in order
};

/// An action that ran while everything was recorded, or a graph whose first action it is.
struct RecordedRun {
  std::int64_t step = 0;       ///< from 1
  int action = 0;              ///< index in Recording::actions
  std::int64_t allocated = 0;  ///< bytes, at its end
  std::int64_t reserved = 0;
  std::vector<ReplayedPart> replayed = {};  ///< all actions of the graph; empty: there is none
};

/// What the profiler wrote of a window, and what only the rank knows of it.
struct Recording {
  std::filesystem::path source;  ///< as Kineto writes it; removed when the rewrite is done
  std::filesystem::path target;
  int rank = 0;
  int world_size = 1;
  std::string backend;  ///< "nccl" or "gloo"
  std::string run;
  std::string host;
  std::string program;  ///< hash
  bool cuda = false;
  std::int64_t first_step = 0;  ///< from 1
  std::int64_t last_step = 0;
  int warmup = 0;
  bool graphs = false;  ///< graphs were launched as ever
  std::vector<RecordedAction> actions;
  std::vector<RecordedRun> runs;  ///< in the order in which the host began them
};

struct RewriteResult {
  std::uint64_t bytes = 0;           ///< of the file
  std::uint64_t device_events = 0;   ///< kernels, copies, fills of the traced steps
  std::uint64_t without_action = 0;  ///< of those, before a step's first action
  std::string incomplete;            ///< why events are missing; empty: none are
};

/// Writes `target` as engine/trace/README.md says: each device event gets its step and action, and
/// rows of steps, phases, lanes, memory and queue are added. Error{data} when the source cannot be
/// read, Error{checkpoint} when the target cannot be written.
[[nodiscard]] RewriteResult rewrite(const Recording& recording);

}  // namespace dstrain::trace
