#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace dstrain::trace {

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
  std::filesystem::path folder;    ///< of the first file
  std::vector<std::string> notes;  ///< missing ranks, events that a rank lost
};

/// The traces of single ranks that `sources` name: files, folders of them, or runs (their traces/).
/// A rank is told by distributedInfo, else by the name ("rank3"). Error{usage} where there is none,
/// where a rank is there twice, or where a folder holds several windows; Error{data} for a file
/// that is merged already or comes from another run.
[[nodiscard]] TraceSources find_rank_traces(std::span<const std::filesystem::path> sources);

}  // namespace dstrain::trace
