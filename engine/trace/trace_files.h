#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace dstrain::trace {

/// What the traces are wanted for. To merge, a folder must hold one window, and its merged file is
/// none of them; to analyze, the newest of several windows is taken, and the merged file where
/// there are none of single ranks.
enum class TraceUse : std::uint8_t { merge, analyze };

struct TracePaths {
  std::vector<std::filesystem::path> files;  ///< of each source by name
  std::filesystem::path run;                 ///< the first source that is a run; empty: none is
  std::vector<std::string> notes;            ///< windows left out, traces of another run
};

/// The files that `sources` name: files as they are, folders or ZIPs of them (their paths lead into
/// the ZIP), or runs (traces_of_run()).
/// Error{usage} where there is none, or where a folder holds several windows of which `use` needs
/// one.
[[nodiscard]] TracePaths find_traces(std::span<const std::filesystem::path> sources, TraceUse use);

/// The folder that holds the traces of a run: its traces/; where that holds none, the folder that
/// `trace.output` of its recipe names.
[[nodiscard]] std::filesystem::path traces_of_run(const std::filesystem::path& run);

/// The name of the run that wrote a trace: many may write to the folder that trace.output names.
/// Empty: the trace does not say.
[[nodiscard]] std::string run_of_trace(const std::filesystem::path& file);

/// Folders of the windows in `folder` that hold traces (trace.every), oldest first.
[[nodiscard]] std::vector<std::filesystem::path> trace_windows(const std::filesystem::path& folder);

/// The rank that "distributedInfo" of a trace says, else the name of its file ("rank3").
[[nodiscard]] std::optional<int> rank_of_trace(const std::filesystem::path& file,
                                               const std::optional<std::string>& distributed_info);

/// A trace of one rank.
struct TraceFile {
  std::filesystem::path path;
  int rank = 0;
  int world_size = 0;           ///< 0: the file does not say
  std::string host = {};        ///< empty: not known
  std::string run = {};         ///< name and program of the run; empty: not ours
  std::string incomplete = {};  ///< why events are missing
  std::int64_t base_ns = 0;
};

struct TraceSources {
  std::vector<TraceFile> files;    ///< by rank
  std::filesystem::path clocks;    ///< clocks.jsonl of the run; empty: none
  std::filesystem::path folder;    ///< of the first file, or of its ZIP
  std::vector<std::string> notes;  ///< missing ranks, events that a rank lost, find_traces()
};

/// The traces of single ranks that `sources` name, as find_traces() to merge. Error{usage} where a
/// rank is there twice; Error{data} for a file that is merged already, comes from another run or
/// does not tell its rank.
[[nodiscard]] TraceSources find_rank_traces(std::span<const std::filesystem::path> sources);

}  // namespace dstrain::trace
