#include "engine/base/own_addresses.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>

namespace dstrain {
namespace {

/// A network card has a device behind it; bridges of containers and tunnels have none, and their
/// addresses are often the same on every host.
bool is_hardware(const std::string& interface) {
  std::error_code error;
  return std::filesystem::exists("/sys/class/net/" + interface + "/device", error);
}

}  // namespace

std::vector<std::string> own_addresses() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return {"127.0.0.1"};
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, &::freeifaddrs);
  std::vector<std::pair<bool, std::string>> found;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    const bool usable = (entry->ifa_flags & IFF_UP) != 0 && (entry->ifa_flags & IFF_LOOPBACK) == 0;
    if (!usable || entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != AF_INET) continue;
    std::array<char, INET_ADDRSTRLEN> text{};
    const auto* address = reinterpret_cast<const sockaddr_in*>(entry->ifa_addr);
    ::inet_ntop(AF_INET, &address->sin_addr, text.data(), text.size());
    found.emplace_back(!is_hardware(entry->ifa_name), text.data());
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> addresses;
  for (auto& [virtual_link, address] : found) addresses.push_back(std::move(address));
  if (addresses.empty()) addresses.emplace_back("127.0.0.1");
  return addresses;
}

}  // namespace dstrain
