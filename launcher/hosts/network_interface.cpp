#include "launcher/hosts/network_interface.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <netdb.h>
#include <sys/socket.h>

#include <memory>

#include "launcher/base/fd.h"

namespace dstrain::launcher {
namespace {

using Kind = NetworkInterface::Kind;
using Addresses = std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)>;

Addresses own_addresses() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) first = nullptr;
  return {first, &::freeifaddrs};
}

/// Numeric, without the "%eth0" of a link-local IPv6 address.
std::string numeric(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = {};
  if (address == nullptr) return {};
  if (address->sa_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(address);
    ::inet_ntop(AF_INET, &v4->sin_addr, text, sizeof text);
  } else if (address->sa_family == AF_INET6) {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(address);
    // A dual-stack socket shows its IPv4 peers as ::ffff:a.b.c.d.
    if (IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr)) {
      ::inet_ntop(AF_INET, &v6->sin6_addr.s6_addr[12], text, sizeof text);
    } else {
      ::inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof text);
    }
  }
  return text;
}

bool is_link_local(const sockaddr* address) {
  return address->sa_family == AF_INET6 &&
         IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}

/// The interface that holds `address`; empty when none does.
std::string find_interface(const std::string& address) {
  const Addresses all = own_addresses();
  for (const ifaddrs* entry = all.get(); entry != nullptr; entry = entry->ifa_next) {
    if (!address.empty() && numeric(entry->ifa_addr) == address) return entry->ifa_name;
  }
  return {};
}

std::string find_loopback() {
  const Addresses all = own_addresses();
  for (const ifaddrs* entry = all.get(); entry != nullptr; entry = entry->ifa_next) {
    if ((entry->ifa_flags & IFF_LOOPBACK) != 0) return entry->ifa_name;
  }
  return "lo";
}

/// Source address of the route to `target`: connecting a datagram socket sends nothing.
std::string route_source(const addrinfo& target) {
  const UniqueFd fd(::socket(target.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_storage local{};
  socklen_t length = sizeof local;
  auto* address = reinterpret_cast<sockaddr*>(&local);
  if (!fd || ::connect(fd.get(), target.ai_addr, target.ai_addrlen) != 0 ||
      ::getsockname(fd.get(), address, &length) != 0) {
    return {};
  }
  return numeric(address);
}

}  // namespace

const char* kind_name(Kind kind) {
  using enum NetworkInterface::Kind;
  switch (kind) {
    case loopback:
      return "loopback";
    case ethernet:
      return "ethernet";
    case infiniband:
      return "infiniband";
    case wireless:
      return "wireless";
    case virtual_link:
      return "virtual";
    case other:
      return "other";
  }
  return "other";
}

NetworkInterface describe_interface(const std::string& name, const SystemRoots& roots) {
  namespace fs = std::filesystem;
  NetworkInterface interface{.name = name, .address = {}};
  const fs::path folder = roots.sys / "class" / "net" / name;
  std::error_code error;
  const long long type = to_number(read_first_line(folder / "type"), -1);
  if (type == ARPHRD_LOOPBACK) {
    interface.kind = Kind::loopback;
  } else if (type == ARPHRD_INFINIBAND) {
    interface.kind = Kind::infiniband;
  } else if (fs::exists(folder / "wireless", error)) {
    interface.kind = Kind::wireless;
  } else if (type == ARPHRD_ETHER) {
    // Hardware has a device behind it.
    interface.kind = fs::exists(folder / "device", error) ? Kind::ethernet : Kind::virtual_link;
  } else if (type >= 0) {
    interface.kind = Kind::other;
  }
  const long long speed = to_number(read_first_line(folder / "speed"), 0);
  // A link that does not know its rate says -1, read back by some drivers as 2^32 - 1.
  if (speed > 0 && speed < 100'000'000) interface.mbit_per_s = static_cast<int>(speed);
  return interface;
}

std::vector<NetworkInterface> list_interfaces(const SystemRoots& roots) {
  std::vector<NetworkInterface> list;
  const Addresses all = own_addresses();
  for (const ifaddrs* entry = all.get(); entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    const std::string address = numeric(entry->ifa_addr);
    if (address.empty() || is_link_local(entry->ifa_addr)) continue;
    list.push_back(describe_interface(entry->ifa_name, roots));
    list.back().address = address;
  }
  return list;
}

std::optional<NetworkInterface> interface_towards(const std::string& peer_address,
                                                  const SystemRoots& roots) {
  std::string text = peer_address;
  if (text.starts_with('[') && text.ends_with(']')) text = text.substr(1, text.size() - 2);
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_DGRAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  // Port 9 (discard) only because connect() wants one.
  if (text.empty() || ::getaddrinfo(text.c_str(), "9", &hints, &found) != 0) return std::nullopt;
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
  const std::string source = route_source(*found);
  if (source.empty()) return std::nullopt;
  const std::string peer = numeric(found->ai_addr);
  // The kernel delivers to an address of our own through loopback, whichever interface holds it.
  const bool local = !find_interface(peer).empty() || source == peer;
  const std::string name = local ? find_loopback() : find_interface(source);
  if (name.empty()) return std::nullopt;
  NetworkInterface interface = describe_interface(name, roots);
  interface.address = source;
  if (local) interface.kind = Kind::loopback;
  return interface;
}

std::vector<std::string> interface_variables(const std::string& peer_address,
                                             const Variables& variables, const SystemRoots& roots) {
  const auto interface = interface_towards(peer_address, roots);
  if (!interface || interface->kind == Kind::loopback) return {};
  std::vector<std::string> entries;
  if (variables("GLOO_SOCKET_IFNAME") == nullptr)
    entries.push_back("GLOO_SOCKET_IFNAME=" + interface->name);
  // "=": this name alone, and not every name that begins with it.
  if (variables("NCCL_SOCKET_IFNAME") == nullptr)
    entries.push_back("NCCL_SOCKET_IFNAME==" + interface->name);
  return entries;
}

}  // namespace dstrain::launcher
