#include "engine/store/route.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>

namespace dstrain {
namespace {

constexpr const char* kLoopback = "127.0.0.1";

std::string numeric(const sockaddr* address, socklen_t length) {
  char text[NI_MAXHOST] = {};
  if (::getnameinfo(address, length, text, sizeof text, nullptr, 0, NI_NUMERICHOST) != 0) return {};
  return text;
}

bool is_loopback(const std::string& address) {
  return address.empty() || address == "localhost" || address == "::1" ||
         address.starts_with("127.");
}

/// Source address that the kernel would choose: connecting a datagram socket sends nothing.
std::string route_source(const addrinfo& target) {
  const int fd = ::socket(target.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return {};
  std::string source;
  sockaddr_storage local{};
  socklen_t length = sizeof local;
  auto* address = reinterpret_cast<sockaddr*>(&local);
  if (::connect(fd, target.ai_addr, target.ai_addrlen) == 0 &&
      ::getsockname(fd, address, &length) == 0) {
    source = numeric(address, length);
  }
  ::close(fd);
  return source;
}

/// First address of an interface that is up and not loopback.
std::string interface_address() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(first, &::freeifaddrs);
  for (const ifaddrs* entry = first; entry != nullptr; entry = entry->ifa_next) {
    const bool usable = entry->ifa_addr != nullptr && entry->ifa_addr->sa_family == AF_INET &&
                        (entry->ifa_flags & IFF_UP) != 0 && (entry->ifa_flags & IFF_LOOPBACK) == 0;
    if (usable) return numeric(entry->ifa_addr, sizeof(sockaddr_in));
  }
  return {};
}

}  // namespace

std::string local_address_towards(const std::string& address) {
  if (is_loopback(address)) return kLoopback;
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  // Port 9 (discard) only because connect() wants one.
  if (::getaddrinfo(address.c_str(), "9", &hints, &found) == 0) {
    const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
    for (const addrinfo* target = found; target != nullptr; target = target->ai_next) {
      const std::string source = route_source(*target);
      if (!is_loopback(source)) return source;
    }
  }
  const std::string fallback = interface_address();
  return fallback.empty() ? kLoopback : fallback;
}

}  // namespace dstrain
