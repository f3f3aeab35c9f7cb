#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "engine/program/measured_machine.h"
#include "launcher/hosts/placement.h"

namespace dstrain::launcher {

/// What the ranks of one host reached in the measurement of `launch --preflight`
/// (engine/train/measure/measure_hosts.h).
struct HostRates {
  std::string host;
  std::vector<double> product_tflops;  ///< of each rank
  double host_gb_s = 0;                ///< sum over its ranks; 0: it has one
  double pair_gb_s = 0;                ///< sum with a neighbour, the better one; 0: it is alone
};

/// Rates of the hosts in their order. Error{hosts} for a file that is not of so many hosts and
/// ranks.
[[nodiscard]] std::vector<HostRates> read_host_rates(const std::filesystem::path& file,
                                                     const std::vector<NodePlacement>& nodes);

/// And of all hosts together, with the device they are of; the day is empty.
struct RatesTogether {
  std::string device;
  NetworkRates network;
};
/// Error{hosts} where the file has none: there was one host.
[[nodiscard]] RatesTogether read_rates_together(const std::filesystem::path& file);

/// A host below this share of the median of all in a figure is slow.
inline constexpr double kSlowShare = 0.8;
struct SlowHost {
  std::string host;
  double share = 1;  ///< of the median, in its slowest figure
  std::string text;  ///< "products 0.05 TFLOP/s on its rank 0, 23 % of the median 0.22; ..."
};
/// The slowest first. Products are compared over all ranks.
[[nodiscard]] std::vector<SlowHost> slow_hosts(const std::vector<HostRates>& hosts);

/// "products 0.20 to 0.22 TFLOP/s, sums in a host 3.1 to 3.3 GB/s, of two hosts 0.9 to 1.0 GB/s".
[[nodiscard]] std::string describe(const std::vector<HostRates>& hosts);

}  // namespace dstrain::launcher
