#include "launcher/job/host_rates.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/json.h"
#include "engine/base/median.h"

namespace dstrain::launcher {
namespace {

/// The median of what is known; 0 where nothing is.
double usual(std::vector<double> values) {
  std::erase_if(values, [](double value) { return value <= 0; });
  return values.empty() ? 0 : median(std::move(values));
}

std::vector<double> all_products(const std::vector<HostRates>& hosts) {
  std::vector<double> all;
  for (const HostRates& host : hosts)
    all.insert(all.end(), host.product_tflops.begin(), host.product_tflops.end());
  return all;
}

std::vector<double> all_of(const std::vector<HostRates>& hosts, double HostRates::*figure) {
  std::vector<double> all;
  for (const HostRates& host : hosts) all.push_back(host.*figure);
  return all;
}

[[noreturn]] void refuse(const std::filesystem::path& file) {
  throw Error(ErrorKind::hosts, fmt::format("{} has no rates of these hosts", file.string()),
              "leave out --preflight or --measure, or look at the ranks' logs beside that file");
}

double rate(const nlohmann::json& host, const char* name) {
  const nlohmann::json value = host.value(name, nlohmann::json());
  return value.is_number() ? value.get<double>() : 0;
}

std::string range(const char* what, std::vector<double> values, const char* unit) {
  std::erase_if(values, [](double value) { return value <= 0; });
  if (values.empty()) return "";
  const auto [min, max] = std::ranges::minmax(values);
  return fmt::format("{} {:.3g} to {:.3g} {}", what, min, max, unit);
}

}  // namespace

std::vector<HostRates> read_host_rates(const std::filesystem::path& file,
                                       const std::vector<NodePlacement>& nodes) {
  const nlohmann::json list = read_json_object(file).value("hosts", nlohmann::json());
  if (!list.is_array() || list.size() != nodes.size()) refuse(file);
  std::vector<HostRates> hosts;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (!list[i].is_object()) refuse(file);
    HostRates host{.host = nodes[i].host.name,
                   .product_tflops = {},
                   .host_gb_s = rate(list[i], "host_gb_s"),
                   .pair_gb_s = rate(list[i], "pair_gb_s")};
    const nlohmann::json products = list[i].value("product_tflops", nlohmann::json());
    if (!products.is_array() || std::cmp_not_equal(products.size(), nodes[i].num_ranks))
      refuse(file);
    for (const nlohmann::json& product : products) {
      if (!product.is_number() || product.get<double>() <= 0) refuse(file);
      host.product_tflops.push_back(product.get<double>());
    }
    hosts.push_back(std::move(host));
  }
  return hosts;
}

RatesTogether read_rates_together(const std::filesystem::path& file) {
  const nlohmann::json all = read_json_object(file).value("all_hosts", nlohmann::json());
  if (!all.is_object()) refuse(file);
  const nlohmann::json device = all.value("device", nlohmann::json());
  RatesTogether rates{
      .device = device.is_string() ? device.get<std::string>() : "",
      .network = {.measured = "",
                  .hosts = static_cast<int>(rate(all, "hosts")),
                  .ranks = static_cast<int>(rate(all, "ranks")),
                  .bytes_per_s = 1e9 * std::min(rate(all, "gather_gb_s"), rate(all, "reduce_gb_s")),
                  .latency_s = 1e-6 * rate(all, "latency_us")}};
  const NetworkRates& network = rates.network;
  if (rates.device.empty() || network.hosts < 2 || network.ranks < network.hosts ||
      network.bytes_per_s <= 0 || network.latency_s <= 0)
    refuse(file);
  return rates;
}

std::vector<SlowHost> slow_hosts(const std::vector<HostRates>& hosts) {
  const double product = usual(all_products(hosts)),
               in_host = usual(all_of(hosts, &HostRates::host_gb_s)),
               in_pair = usual(all_of(hosts, &HostRates::pair_gb_s));
  std::vector<SlowHost> slow;
  for (const HostRates& host : hosts) {
    SlowHost found{.host = host.host, .text = {}};
    const auto look = [&](const std::string& what, double value, double middle, const char* unit) {
      if (value <= 0 || value >= kSlowShare * middle) return;
      found.share = std::min(found.share, value / middle);
      found.text += fmt::format("{}{} {:.3g} {}, {:.0f} % of the median {:.3g}",
                                found.text.empty() ? "" : "; ", what, value, unit,
                                100 * value / middle, middle);
    };
    const auto min = std::ranges::min_element(host.product_tflops);
    look(fmt::format("products on its rank {}", min - host.product_tflops.begin()), *min, product,
         "TFLOP/s");
    look("sums in the host", host.host_gb_s, in_host, "GB/s");
    look("sums with another host", host.pair_gb_s, in_pair, "GB/s");
    if (!found.text.empty()) slow.push_back(std::move(found));
  }
  std::ranges::stable_sort(slow, {}, &SlowHost::share);
  return slow;
}

std::string describe(const std::vector<HostRates>& hosts) {
  std::vector<std::string> parts = {
      range("products", all_products(hosts), "TFLOP/s"),
      range("sums in a host", all_of(hosts, &HostRates::host_gb_s), "GB/s"),
      range("sums of two hosts", all_of(hosts, &HostRates::pair_gb_s), "GB/s")};
  std::erase(parts, "");
  return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace dstrain::launcher
