#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/append_file.h"
#include "engine/bench/bench_plan.h"

namespace dstrain::bench {

/// How a run of a bench ended; a line of bench.jsonl.
struct Record {
  std::string run;  ///< name of its folder in runs/
  int exit_code = 0;
  std::string reason = {};  ///< of a failure; empty: it ended well
  double seconds = 0;       ///< from the start of the program to its end
  /// turn_fingerprint(); empty: not known.
  std::string fingerprint = {};
  /// MiB that each GPU of this machine held before the start.
  std::vector<double> gpus_before_mib = {};
};

/// The folder of a bench: bench.json (the plan), bench.jsonl (a line for each run that has ended),
/// runs/NAME and runs/NAME.log.
class BenchLog {
 public:
  /// Begins a bench, or goes on with the one that the folder holds, which is Error{usage} unless
  /// `resume`. Its runs are kept, whatever its plan was.
  BenchLog(std::filesystem::path folder, const BenchPlan& plan, bool resume);

  [[nodiscard]] std::filesystem::path runs() const { return folder_ / "runs"; }
  /// One for each name.
  [[nodiscard]] const std::vector<Record>& records() const { return records_; }
  /// The entry of the run with that name, if it has ended: the last one.
  [[nodiscard]] std::optional<Record> find(const std::string& run) const;
  void add(const Record& record);

 private:
  void keep(const Record& record);

  std::filesystem::path folder_;
  AppendFile file_;
  std::vector<Record> records_;
};

}  // namespace dstrain::bench
