#pragma once

#include <csignal>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "engine/base/nvml.h"
#include "engine/bench/bench_results.h"
#include "launcher/base/interrupts.h"

namespace dstrain {

/// SIGINT and SIGTERM of a bench while its runs are made. Made before they are planned, as that
/// starts threads, which signals would go to.
struct BenchInterrupts : launcher::Interrupts {
  BenchInterrupts() : Interrupts{SIGINT, SIGTERM} {}
};

/// Starts the runs of a bench one after the other. What does not fit this machine is left out, and
/// a run that has ended is kept. A signal goes on to the run under way, and no further one is
/// started.
class BenchRunner {
 public:
  /// `retry`: runs that failed are made again.
  BenchRunner(const bench::BenchPlan& plan, bench::BenchLog& log, bool retry)
      : plan_(plan), log_(log), retry_(retry) {}

  /// Whether all runs have ended.
  bool run_all(BenchInterrupts& interrupts);
  /// The plan of a case for this machine: of its GPUs, of the ones planned for where it has none,
  /// or of its CPU under gloo.
  const bench::CellPlan& planned(std::size_t index);

 private:
  [[nodiscard]] bool is_done(const bench::Turn& turn) const;
  bool run(const bench::Turn& turn, const std::string& place, BenchInterrupts& interrupts);
  /// False where a signal ended it.
  bool wait_for(const std::vector<std::string>& command, const std::filesystem::path& output,
                bench::Record& record, BenchInterrupts& interrupts);
  [[nodiscard]] std::string summary(const bench::Record& record) const;

  const bench::BenchPlan& plan_;
  bench::BenchLog& log_;
  bool retry_;
  std::map<std::size_t, bench::CellPlan> planned_;
  Nvml nvml_;
};

}  // namespace dstrain
