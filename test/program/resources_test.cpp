#include "engine/program/resources.h"

#include <vector>

#include "engine/program/simulate.h"
#include "test/support/catch.h"

namespace dstrain {
namespace {

Demand demand(double busy_s, std::initializer_list<Demand::Use> uses) {
  Demand made{.busy_s = busy_s};
  for (const Demand::Use& use : uses) made.use(use.resource, use.seconds);
  return made;
}

std::vector<double> speeds(const std::vector<Demand>& running, double product_share = 0) {
  std::vector<const Demand*> list;
  for (const Demand& each : running) list.push_back(&each);
  std::vector<double> result(running.size());
  share_resources(list, product_share, result);
  return result;
}

TEST_CASE("what fits beside each other is not slowed", "[resources]") {
  const auto found = speeds({demand(1, {{Resource::sm, 0.6}, {Resource::memory, 0.4}}),
                             demand(1, {{Resource::link_out, 1}, {Resource::memory, 0.2}})});
  CHECK(found == std::vector<double>{1, 1});
}

TEST_CASE("two that want one resource wholly get half of it each", "[resources]") {
  const auto found =
      speeds({demand(2, {{Resource::link_out, 2}}), demand(1, {{Resource::link_out, 1}})});
  CHECK(found[0] == Approx(0.5));
  CHECK(found[1] == Approx(0.5));
}

TEST_CASE("who asks for less than its share gets all of it", "[resources]") {
  const auto found = speeds({demand(1, {{Resource::host_memory, 1}}),
                             demand(1, {{Resource::to_host, 1}, {Resource::host_memory, 0.3}})});
  CHECK(found[0] + 0.3 * found[1] == Approx(1));
  CHECK(found[0] < 1);
  // Both directions of a host link, which carries 88 GB/s of 2 x 52.
  const double share = 52.0 / 88;
  const auto both = speeds({demand(1, {{Resource::to_host, 1}, {Resource::duplex, share}}),
                            demand(1, {{Resource::to_device, 1}, {Resource::duplex, share}})});
  CHECK(both[0] == Approx(44.0 / 52));
  CHECK(both[1] == Approx(44.0 / 52));
}

TEST_CASE("no resource is used beyond what it has, and none is left idle for nothing",
          "[resources][property]") {
  const double a = GENERATE(0.1, 0.5, 1.0), b = GENERATE(0.2, 0.9), c = GENERATE(0.0, 0.7);
  const std::vector<Demand> running = {demand(1, {{Resource::sm, a}, {Resource::memory, b}}),
                                       demand(1, {{Resource::memory, 1}, {Resource::duplex, c}}),
                                       demand(1, {{Resource::duplex, 1}, {Resource::sm, b}})};
  const auto found = speeds(running);
  std::array<double, 3> load{};
  const std::array resources = {Resource::sm, Resource::memory, Resource::duplex};
  for (std::size_t i = 0; i < running.size(); ++i) {
    for (std::size_t m = 0; m < resources.size(); ++m)
      load.at(m) += found[i] * running[i].seconds_of(resources.at(m));
  }
  CAPTURE(a, b, c);
  for (const double each : load) CHECK(each <= 1 + 1e-6);
  for (std::size_t i = 0; i < running.size(); ++i) {
    bool bound = found[i] > 1 - 1e-6;
    for (std::size_t m = 0; m < resources.size(); ++m)
      bound = bound || (running[i].seconds_of(resources.at(m)) > 0 && load.at(m) > 1 - 1e-6);
    CHECK(bound);
  }
}

TEST_CASE("a collective on processors slows products, not kernels bound by memory", "[resources]") {
  Demand collective = demand(1, {{Resource::link_out, 1}});
  collective.slows_products = true;
  const auto found =
      speeds({demand(1, {{Resource::sm, 1}}), demand(1, {{Resource::memory, 1}}), collective}, 0.2);
  CHECK(found[0] == Approx(0.8));
  CHECK(found[1] == Approx(1));
  CHECK(found[2] == Approx(1));
}

}  // namespace
}  // namespace dstrain
