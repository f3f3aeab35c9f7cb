#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/trace/clocks.h"
#include "engine/trace/trace_files.h"

namespace dstrain::trace {

enum class MergeFormat : std::uint8_t { json, pftrace };
enum class MergeLanes : std::uint8_t { all, device, host };
/// What the times of several hosts are put together by: measured clocks and collectives, measured
/// clocks only, or nothing.
enum class MergeAlign : std::uint8_t { collectives, offsets, none };

struct MergeOptions {
  std::filesystem::path output = {};
  MergeFormat format = MergeFormat::json;
  std::optional<std::pair<std::int64_t, std::int64_t>> steps = {};  ///< first and last; else all
  std::vector<int> ranks = {};                                      ///< empty: all
  MergeLanes lanes = MergeLanes::all;
  std::int64_t min_ns = 0;  ///< shorter events with a duration are left out
  MergeAlign align = MergeAlign::collectives;
  std::int64_t memory_bytes = std::int64_t{1} << 30;
  /// Called now and then with bytes of the files read and to be read.
  std::function<void(std::uint64_t done, std::uint64_t all)> progress = {};
};

struct MergeResult {
  std::uint64_t events = 0;      ///< written
  std::uint64_t slices = 0;      ///< of those, with a duration
  std::uint64_t bytes = 0;       ///< of the file
  std::uint64_t text_bytes = 0;  ///< of the traces, decompressed
  std::vector<HostClock> clocks;
  std::vector<std::string> notes;
};

/// Writes the traces of many ranks as one, in bounded memory. Errors as Scanner's and OutputFile's.
[[nodiscard]] MergeResult merge_traces(const TraceSources& sources, const MergeOptions& options);

}  // namespace dstrain::trace
