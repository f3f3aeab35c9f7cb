#include "engine/program/resources.h"

#include <algorithm>
#include <limits>

#include "engine/base/error.h"

namespace dstrain {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kTolerance = 1e-9;

using Loads = std::array<double, kNumResources>;

std::size_t slot(Resource resource) { return static_cast<std::size_t>(resource); }

void add_load(const Demand& demand, double speed, Loads& loads) {
  const double scale = speed / demand.total_s();
  for (std::size_t u = 0; u < demand.num_uses; ++u)
    loads.at(slot(demand.uses.at(u).resource)) += demand.uses.at(u).seconds * scale;
}

bool fits(const Loads& loads) {
  return std::ranges::all_of(loads, [](double load) { return load <= 1 + kTolerance; });
}

}  // namespace

void Demand::use(Resource resource, double seconds) {
  if (!(seconds > 0)) return;
  for (std::size_t u = 0; u < num_uses; ++u) {
    if (uses.at(u).resource != resource) continue;
    uses.at(u).seconds += seconds;
    return;
  }
  uses.at(num_uses++) = {.resource = resource, .seconds = seconds};
}

double Demand::seconds_of(Resource resource) const {
  for (std::size_t u = 0; u < num_uses; ++u) {
    if (uses.at(u).resource == resource) return uses.at(u).seconds;
  }
  return 0;
}

void share_resources(std::span<const Demand* const> running, double product_share,
                 std::span<double> speeds) {
  DSTRAIN_CHECK(running.size() <= 16 && speeds.size() >= running.size(), "more actions than lanes");
  const bool slowed = product_share > 0 && std::ranges::any_of(running, [](const Demand* d) {
                        return d->slows_products;
                      });
  Loads loads{};
  for (std::size_t i = 0; i < running.size(); ++i) {
    speeds[i] = 1;
    // Products take turns with other kernels; only they have processors to lose.
    if (slowed && !running[i]->slows_products) {
      const double products = running[i]->seconds_of(Resource::sm) / running[i]->total_s();
      speeds[i] = 1 / (1 + products * product_share / (1 - product_share));
    }
    add_load(*running[i], speeds[i], loads);
  }
  if (fits(loads)) return;

  // All shares grow alike, until an action has its full speed or a resource of it is used up.
  std::array<double, 16> greatest{};
  std::array<bool, 16> done{};
  for (std::size_t i = 0; i < running.size(); ++i) {
    const Demand& demand = *running[i];
    for (std::size_t u = 0; u < demand.num_uses; ++u)
      greatest.at(i) = std::max(greatest.at(i), demand.uses.at(u).seconds / demand.total_s());
    done.at(i) = demand.num_uses == 0;
  }
  Loads fixed{};
  for (;;) {
    Loads growing{};  // by each unit of share
    double share = kNever;
    for (std::size_t i = 0; i < running.size(); ++i) {
      if (done.at(i)) continue;
      add_load(*running[i], 1 / greatest.at(i), growing);
      share = std::min(share, speeds[i] * greatest.at(i));
    }
    if (share == kNever) return;
    Loads full{};  // at which share each resource is used up
    for (std::size_t m = 0; m < kNumResources; ++m) {
      full.at(m) = growing.at(m) > 0 ? std::max(0.0, 1 - fixed.at(m)) / growing.at(m) : kNever;
      share = std::min(share, full.at(m));
    }
    for (std::size_t i = 0; i < running.size(); ++i) {
      if (done.at(i)) continue;
      const Demand& demand = *running[i];
      bool stops = speeds[i] * greatest.at(i) <= share * (1 + kTolerance);
      for (std::size_t u = 0; u < demand.num_uses; ++u)
        stops = stops || full.at(slot(demand.uses.at(u).resource)) <= share * (1 + kTolerance);
      if (!stops) continue;
      done.at(i) = true;
      speeds[i] = std::min(speeds[i], share / greatest.at(i));
      add_load(demand, speeds[i], fixed);
    }
  }
}

}  // namespace dstrain
