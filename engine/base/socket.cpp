#include "engine/base/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string_view>
#include <thread>

#include "engine/base/error.h"
#include "engine/base/open_files.h"

namespace dstrain {
namespace {

using std::chrono::milliseconds;
using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

Addresses resolve(const std::string& host, int port, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  const int result = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (result != 0) {
    throw Error(result == EAI_AGAIN ? ErrorKind::again : ErrorKind::hosts,
                fmt::format("'{}' stands for no address: {}", host, ::gai_strerror(result)));
  }
  return {found, &::freeaddrinfo};
}

void set_option(int fd, int level, int option, int value) {
  (void)::setsockopt(fd, level, option, &value, sizeof value);
}

/// 0, or what went wrong.
int finish_connecting(int fd, std::chrono::steady_clock::time_point deadline) {
  for (;;) {
    const auto left =
        std::chrono::ceil<milliseconds>(deadline - std::chrono::steady_clock::now()).count();
    if (left <= 0) return ETIMEDOUT;
    pollfd entry{.fd = fd, .events = POLLOUT, .revents = 0};
    if (::poll(&entry, 1, static_cast<int>(left)) > 0) break;
  }
  int error = 0;
  socklen_t size = sizeof error;
  return ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 ? error : errno;
}

/// A port of this machine without a listener may be given to the caller's own end, which then
/// is connected to itself.
bool is_own_echo(int fd) {
  sockaddr_storage own{};
  sockaddr_storage peer{};
  socklen_t own_size = sizeof own;
  socklen_t peer_size = sizeof peer;
  return ::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &own_size) == 0 &&
         ::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &peer_size) == 0 &&
         own_size == peer_size && std::memcmp(&own, &peer, own_size) == 0;
}

/// An IPv4 address in IPv6 clothes, as a listener on "::" sees it, is the IPv4 one.
std::string plain_address(const sockaddr* address, socklen_t size) {
  std::array<char, NI_MAXHOST> text{};
  if (::getnameinfo(address, size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) != 0)
    return {};
  constexpr std::string_view kMapped = "::ffff:";
  const std::string_view found = text.data();
  const bool four = found.starts_with(kMapped) && found.find('.') != std::string_view::npos;
  return std::string(four ? found.substr(kMapped.size()) : found);
}

struct SocketName {
  std::string address;  ///< numeric; empty when the connection is gone
  std::string port;
};

/// `name_of_end`: getsockname or getpeername.
SocketName name_of(int fd, int (*name_of_end)(int, sockaddr*, socklen_t*)) {
  sockaddr_storage end{};
  socklen_t size = sizeof end;
  auto* generic = reinterpret_cast<sockaddr*>(&end);
  std::array<char, NI_MAXSERV> port{};
  if (name_of_end(fd, generic, &size) != 0 ||
      ::getnameinfo(generic, size, nullptr, 0, port.data(), port.size(), NI_NUMERICSERV) != 0) {
    return {};
  }
  return {.address = plain_address(generic, size), .port = port.data()};
}

}  // namespace

ListeningSocket listen_on(const std::string& address, int port) {
  const Addresses found = resolve(address, port, AI_PASSIVE);
  UniqueFd fd(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (fd) set_option(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (fd && found->ai_family == AF_INET6) set_option(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  auto* generic = reinterpret_cast<sockaddr*>(&bound);
  if (!fd || ::bind(fd.get(), found->ai_addr, found->ai_addrlen) != 0 ||
      ::listen(fd.get(), SOMAXCONN) != 0 || ::getsockname(fd.get(), generic, &size) != 0) {
    const int error = errno;
    throw Error(ErrorKind::hosts, std::strerror(error) + open_files_note(error));
  }
  const in_port_t bound_port = bound.ss_family == AF_INET6
                                   ? reinterpret_cast<const sockaddr_in6*>(&bound)->sin6_port
                                   : reinterpret_cast<const sockaddr_in*>(&bound)->sin_port;
  return {.fd = std::move(fd), .port = ntohs(bound_port)};
}

void await_address(const std::string& host, milliseconds patience) {
  constexpr milliseconds kPause{500};
  const auto deadline = std::chrono::steady_clock::now() + patience;
  for (;;) {
    try {
      (void)resolve(host, 0, 0);
      return;
    } catch (const Error& error) {
      if (std::chrono::steady_clock::now() + kPause >= deadline)
        throw Error(ErrorKind::hosts, error.what());
    }
    std::this_thread::sleep_for(kPause);
  }
}

std::vector<std::string> addresses_of(const std::string& host) try {
  const Addresses found = resolve(host, 0, 0);
  std::vector<std::string> texts;
  for (const addrinfo* address = found.get(); address != nullptr; address = address->ai_next) {
    std::string text = plain_address(address->ai_addr, address->ai_addrlen);
    if (!text.empty() && std::ranges::find(texts, text) == texts.end())
      texts.push_back(std::move(text));
  }
  return texts;
} catch (const Error&) {
  return {};
}

UniqueFd connect_to(const std::string& host, int port,
                    std::chrono::steady_clock::time_point deadline) {
  const Addresses found = resolve(host, port, 0);
  int error = 0;
  for (const addrinfo* address = found.get(); address != nullptr; address = address->ai_next) {
    UniqueFd fd(::socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!fd) {
      error = errno;
      continue;
    }
    error = ::connect(fd.get(), address->ai_addr, address->ai_addrlen) == 0 ? 0 : errno;
    if (error == EINPROGRESS) error = finish_connecting(fd.get(), deadline);
    if (error == 0 && is_own_echo(fd.get())) error = ECONNREFUSED;
    if (error != 0) continue;
    prepare_stream(fd.get());
    return fd;
  }
  throw Error(ErrorKind::again, std::strerror(error));
}

UniqueFd start_connecting(const std::string& address, int port, int& error) try {
  const Addresses found = resolve(address, port, AI_NUMERICHOST);
  UniqueFd fd(::socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  error = fd && ::connect(fd.get(), found->ai_addr, found->ai_addrlen) == 0 ? 0 : errno;
  return fd;
} catch (const Error&) {
  error = EINVAL;  // no address
  return {};
}

void prepare_stream(int fd) {
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 15);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 6);
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 45'000);  // milliseconds
}

void set_nonblocking(int fd) {
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0) {
    throw Error(ErrorKind::internal,
                fmt::format("cannot set O_NONBLOCK: {}", std::strerror(errno)));
  }
}

std::string own_address(int fd) { return name_of(fd, &::getsockname).address; }

std::string peer_address(int fd) { return name_of(fd, &::getpeername).address; }

std::string peer_name(int fd) {
  const SocketName name = name_of(fd, &::getpeername);
  return name.address.empty() ? "a connection" : fmt::format("{}:{}", name.address, name.port);
}

}  // namespace dstrain
