#pragma once

#include <cstdint>
#include <filesystem>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/rank_record.h"
#include "engine/program/simulate.h"
#include "engine/recipe/recipe.h"
#include "engine/train/measure/trace_regions.h"
#include "engine/train/session/session.h"
#include "engine/train/session/world.h"

namespace dstrain {

/// Records the steps that recipe.trace names or a request asks for, by Kineto, and writes what
/// engine/trace/README.md says. Recorded steps run action by action, without CUDA graphs
/// unless trace.graphs. A file
/// that cannot be written is a note; training goes on.
class TraceWindow {
 public:
  /// Keeps the references. `folder`: of the files; `first_step`: that the run starts or resumes at.
  TraceWindow(const TraceConfig& config, const World& world, Session& session,
              RankRecordFile& record, const Simulation& plan, std::filesystem::path folder,
              std::string run, std::int64_t first_step);
  ~TraceWindow();

  /// Records `steps` steps, too, the warm-up beginning with `step`. Of equal effect on all ranks.
  void request(int steps, std::int64_t step);
  /// Whether the profiler starts or stops before `step` is enqueued; nothing may be under way then.
  [[nodiscard]] bool changes_before(std::int64_t step) const;
  void change_before(std::int64_t step);
  /// Whether `step` runs under the profiler, warm-up included.
  [[nodiscard]] bool observes(std::int64_t step) const;
  /// Ends a window that the run does not fill, and waits for the files.
  void finish(std::int64_t next_step);
  /// Notes on the files since the last call, for a person.
  [[nodiscard]] std::vector<std::string> take_notes();

 private:
  struct Place {
    std::int64_t window = 0;  ///< number
    std::int64_t warmup = 0;  ///< its first step
    std::int64_t begin = 0;   ///< first recorded step
    std::int64_t end = 0;     ///< behind the last one
  };
  /// The window that `step` is in or before; nothing where there is none.
  [[nodiscard]] std::optional<Place> place(std::int64_t step) const;
  void prepare();
  void start(std::int64_t step);
  void stop(std::int64_t next_step);
  void wait_for_files();

  TraceConfig config_;
  const World& world_;
  Session& session_;
  RankRecordFile& record_;
  const Simulation& plan_;
  std::filesystem::path folder_;
  std::string run_;
  std::int64_t first_step_;
  std::int64_t every_ = 0;  ///< steps from one window to the next; 0: one window
  bool records_ = true;     ///< this rank is one of trace.ranks
  std::optional<Place> requested_;
  std::vector<std::string> names_;  ///< by action
  TraceRegions regions_;
  enum class State { off, warming, recording } state_ = State::off;
  std::int64_t recorded_from_ = 0;
  std::future<std::string> files_;  ///< being written; the note
  std::vector<std::string> notes_;
};

}  // namespace dstrain
