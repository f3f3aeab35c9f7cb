#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/trace/scanner.h"

namespace dstrain::trace {

/// A measured difference between a host's clock and the controller's.
struct ClockSample {
  std::int64_t t_ns = 0;
  std::int64_t offset_ns = 0;  ///< clock of the host minus clock of the controller
  std::int64_t bound_ns = 0;
};

/// How the times of one host become common times.
struct HostClock {
  std::string host;
  std::vector<ClockSample> samples = {};  ///< by time; empty: none measured
  bool bounded = false;                   ///< something joins it to the reference
  bool stepped = false;                   ///< its clock jumped: `pieces` hold for its steps
  std::int64_t offset_ns = 0;             ///< added, beside the samples; the middle of its interval
  std::int64_t half_interval_ns = 0;
  struct Piece {
    std::int64_t from_ns = 0;
    std::int64_t offset_ns = 0;
  };
  std::vector<Piece> pieces = {};  ///< by time

  /// The common time of `ns` of this host.
  [[nodiscard]] std::int64_t align(std::int64_t ns) const;
};

/// Samples of clocks.jsonl by host; lines that are broken are left out and counted.
struct ClockFile {
  std::unordered_map<std::string, std::vector<ClockSample>> hosts;
  std::uint64_t broken_lines = 0;
};
[[nodiscard]] ClockFile read_clocks(const std::filesystem::path& path);

/// Finds the offsets of hosts from measured samples and from causality: a collective in which all
/// wait for all ends nowhere before it has started everywhere. All bounds are intersected by
/// shortest paths. A drift of up to 50 ppm of each
/// clock is allowed for; offsets hold at the middle of the collectives.
class ClockSolver {
 public:
  /// `alone`: hosts are not known, so that 0 is taken wherever nothing contradicts it.
  explicit ClockSolver(std::vector<HostClock> hosts, bool alone = false);

  /// One rank's part in the instance `key` of a collective, in the clock of host `host`.
  void add(std::size_t host, std::uint64_t key, std::int64_t step, std::int64_t start_ns,
           std::int64_t end_ns);
  /// A message: only that its start lies before the other host's end is known.
  void add_send(std::size_t host, std::uint64_t key, std::int64_t step, std::int64_t start_ns);
  void add_receive(std::size_t host, std::uint64_t key, std::int64_t step, std::int64_t end_ns);

  [[nodiscard]] std::vector<HostClock> solve();

 private:
  struct Part {
    std::uint32_t host = 0;
    std::int64_t last_start = 0;
    std::int64_t first_end = 0;
  };
  struct Instance {
    std::int64_t step = -1;
    std::vector<Part> parts;
  };
  Part& part(std::size_t host, std::uint64_t key, std::int64_t step);

  std::vector<HostClock> hosts_;
  bool alone_;
  std::unordered_map<std::uint64_t, Instance> instances_;
};

/// Adds the collectives of an event of host `host`, if it is one on a device.
class CollectiveReader {
 public:
  CollectiveReader(ClockSolver& solver, std::size_t host) : solver_(solver), host_(host) {}
  void take(const Event& event, std::int64_t late_base_ns);

 private:
  ClockSolver& solver_;
  std::size_t host_;
  std::unordered_map<std::uint64_t, std::uint64_t> order_;  ///< per communicator
};

}  // namespace dstrain::trace
