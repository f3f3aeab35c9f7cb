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
};

/// The folder of a bench: bench.json (the plan), bench.jsonl (a line for each run that has ended),
/// runs/NAME and runs/NAME.log.
class BenchLog {
 public:
  /// Begins a bench, or goes on with one. Error{usage} where the folder holds one and `resume` is
  /// not set, or one of another plan; the message names what differs.
  BenchLog(std::filesystem::path folder, const BenchPlan& plan, bool resume);

  [[nodiscard]] std::filesystem::path runs() const { return folder_ / "runs"; }
  [[nodiscard]] const std::vector<Record>& records() const { return records_; }
  /// Of the run with that name, if it has ended.
  [[nodiscard]] std::optional<Record> find(const std::string& run) const;
  void add(const Record& record);

 private:
  std::filesystem::path folder_;
  AppendFile file_;
  std::vector<Record> records_;
};

}  // namespace dstrain::bench
