#pragma once

#include <array>
#include <cstddef>
#include <span>

namespace dstrain {

/// What actions that run at once share.
enum class Resource {
  sm,      ///< the device's processors
  memory,  ///< device memory
  // Between the devices of a node, and between nodes; collectives use both directions.
  link_out,
  link_in,
  network_out,
  network_in,
  to_device,
  to_host,
  duplex,       ///< both directions of the host link together
  host_memory,  ///< this rank's share of it
  file_read,
  file_write,
};
inline constexpr std::size_t kNumResources = 12;

/// How long an action takes alone, and what it uses meanwhile.
struct Demand {
  struct Use {
    Resource resource = Resource::sm;
    double seconds = 0;  ///< for which the resource alone would be kept wholly busy
  };
  double busy_s = 0;
  double launches_s = 0;  ///< in busy_s: starts and ends of kernels, beside which others run
  double comm_s = 0;
  std::array<Use, kNumResources> uses{};
  std::size_t num_uses = 0;
  bool slows_products = false;  ///< a collective that takes processors

  [[nodiscard]] double total_s() const { return busy_s + comm_s; }
  void use(Resource resource, double seconds);
  [[nodiscard]] double seconds_of(Resource resource) const;
};

/// Speeds of actions that run at once, each relative to its own alone: every resource is divided
/// max-min fairly by what each action asks of the resource that it needs most (dominant resource
/// fairness, Ghodsi et al. 2011, NSDI). `product_share`: of the processors, which a collective
/// takes from the products beside it.
void share_resources(std::span<const Demand* const> running, double product_share,
                     std::span<double> speeds);

}  // namespace dstrain
