#pragma once

#include <csignal>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "engine/base/nvml.h"
#include "engine/bench/bench_log.h"
#include "launcher/base/interrupts.h"

namespace dstrain {

inline constexpr std::size_t kBenchColumns = 200;  ///< a bench is wide; its tables stay tables

/// Whether a run is left out, and which one is made again.
struct BenchChoice {
  /// Why it cannot run; empty: it can.
  std::function<std::string(const bench::Turn&)> refusal = {};
  bool retry = false;  ///< runs that failed are made again
};

/// SIGINT and SIGTERM of a bench while its runs are made. Made before they are planned, as that
/// starts threads, which signals would go to.
struct BenchInterrupts : launcher::Interrupts {
  BenchInterrupts() : Interrupts{SIGINT, SIGTERM} {}
};

/// Starts the runs of a bench one after the other. A signal goes on to the run under way, and no
/// further one is started.
class BenchRunner {
 public:
  BenchRunner(const bench::BenchPlan& plan, bench::BenchLog& log, BenchChoice choice = {});

  /// Whether all runs have ended.
  bool run_all(BenchInterrupts& interrupts);

 private:
  [[nodiscard]] bool is_done(const bench::Turn& turn) const;
  bool run(const bench::Turn& turn, const std::string& place, BenchInterrupts& interrupts);
  /// False where a signal ended it.
  bool wait_for(const std::vector<std::string>& command, const std::filesystem::path& output,
                bench::Record& record, BenchInterrupts& interrupts);
  [[nodiscard]] std::string summary(const bench::Record& record) const;

  const bench::BenchPlan& plan_;
  bench::BenchLog& log_;
  BenchChoice choice_;
  Nvml nvml_;
};

}  // namespace dstrain
