#include "launcher/transport/dial_listener.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "engine/base/error.h"
#include "engine/base/own_addresses.h"

namespace dstrain::launcher {
namespace {

constexpr std::size_t kMaxIntroductionBytes = 4096;
constexpr int kAcceptAtOnce = 256;
constexpr std::size_t kMaxRefused = 16;
constexpr std::chrono::milliseconds kPause{200};

}  // namespace

Channel welcome(DialledAgent agent) {
  // A fresh connection takes these few bytes at once; if not, the agent's silence tells.
  (void)::send(agent.socket.get(), kDialWelcome.data(), kDialWelcome.size(),
               MSG_NOSIGNAL | MSG_DONTWAIT);
  UniqueFd out(::fcntl(agent.socket.get(), F_DUPFD_CLOEXEC, 3));
  if (!out) fail_system("duplicate a socket");
  return {std::move(agent.socket), std::move(out)};
}

DialListener::DialListener(std::size_t awaited) {
  await(awaited);
  listen(0);
  target_.addresses = own_addresses();
  target_.secret = draw_secret();
}

DialListener::DialListener(int port, const JobSecret& secret, std::size_t awaited) {
  await(awaited);
  listen(port);
  target_.secret = secret;
}

namespace {

/// Over IPv4 and IPv6; a kernel may be without the latter.
ListeningSocket listen_everywhere(int port) {
  const UniqueFd six(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return listen_on(six ? "::" : "0.0.0.0", port);
}

}  // namespace

void DialListener::listen(int port) try {
  ListeningSocket listener = listen_everywhere(port);
  set_nonblocking(listener.fd.get());
  socket_ = std::move(listener.fd);
  target_.port = listener.port;
} catch (const Error& error) {
  const std::string where = port == 0 ? "" : fmt::format(" at port {}", port);
  throw Error(error.kind(), fmt::format("cannot listen for agents{}: {}", where, error.what()),
              port == 0 ? "" : "give another port of this host to all processes");
}

void DialListener::renew() {
  target_.secret = draw_secret();
  pending_.clear();
}

void DialListener::close() {
  socket_.reset();
  pending_.clear();
}

void DialListener::add_polls(std::vector<pollfd>& fds) const {
  if (socket_ && !pause_) fds.push_back({socket_.get(), POLLIN, 0});
  for (const Pending& connection : pending_) {
    const int events = POLLIN | (connection.output.empty() ? 0 : POLLOUT);
    fds.push_back({connection.socket.get(), static_cast<short>(events), 0});
  }
}

std::optional<DialListener::Time> DialListener::deadline() const {
  std::optional<Time> next = pause_;
  if (pending_.empty()) return next;
  const Time proof = pending_.front().since + kProofLimit;
  return next ? std::min(*next, proof) : proof;
}

bool DialListener::drop_silent(Time now) {
  const auto silent = std::find_if(pending_.begin(), pending_.end(), [now](const Pending& one) {
    return !one.has_spoken && now - one.since >= kSilentLimit;
  });
  if (silent == pending_.end()) return false;
  pending_.erase(silent);
  return true;
}

void DialListener::accept_all(Time now) {
  if (pause_ && now >= *pause_) pause_.reset();
  for (int i = 0; i < kAcceptAtOnce && socket_ && !pause_; ++i) {
    // Who finds no room waits in the system's queue: nobody who may be an agent is turned away.
    if (pending_.size() >= room_ && !drop_silent(now)) {
      pause_ = now + kPause;
      return;
    }
    UniqueFd socket(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno == EAGAIN) return;
      // No descriptor left: strangers give theirs back first.
      if (!drop_silent(now)) pause_ = now + kPause;
      continue;
    }
    const int on = 1;
    ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    pending_.push_back(
        {.socket = std::move(socket),
         .handshake = Handshake(Handshake::Side::server, target_.secret, kDialPurpose),
         .output = {},
         .line = {},
         .since = now});
    pending_.back().address = peer_address(pending_.back().socket.get());
  }
}

bool DialListener::flush(Pending& connection) {
  connection.output += connection.handshake.take_output();
  while (!connection.output.empty()) {
    const ssize_t sent = ::send(connection.socket.get(), connection.output.data(),
                                connection.output.size(), MSG_NOSIGNAL);
    if (sent < 0) return errno == EAGAIN || errno == EINTR;
    connection.output.erase(0, static_cast<std::size_t>(sent));
  }
  return true;
}

bool DialListener::advance(Pending& connection) {
  for (;;) {
    if (!flush(connection)) return false;
    if (connection.handshake.state() == Handshake::State::refused) return false;
    if (connection.line.ends_with('\n')) return true;
    std::array<char, 512> block{};
    const ssize_t got = ::recv(connection.socket.get(), block.data(), block.size(), 0);
    if (got == 0) return false;
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    connection.has_spoken = true;
    std::string_view bytes(block.data(), static_cast<std::size_t>(got));
    bytes.remove_prefix(connection.handshake.receive(bytes));
    connection.line += bytes;
    if (connection.line.size() > kMaxIntroductionBytes) return false;
  }
}

void DialListener::read_all(Time now, std::vector<DialledAgent>& agents) {
  for (auto it = pending_.begin(); it != pending_.end();) {
    bool keep = advance(*it) && now < it->since + kProofLimit;
    if (keep && it->line.ends_with('\n') && it->handshake.state() == Handshake::State::done) {
      keep = false;
      try {
        agents.push_back({introduction_from(it->line), std::move(it->socket)});
      } catch (const Error&) {
        // It knows the secret and speaks otherwise: another build, which nobody waits for.
      }
    }
    if (!keep && it->handshake.state() != Handshake::State::done && it->has_spoken &&
        refused_.size() < kMaxRefused) {
      refused_.insert(it->address);
    }
    it = keep ? std::next(it) : pending_.erase(it);
  }
}

std::vector<DialledAgent> DialListener::advance(Time now) {
  std::vector<DialledAgent> agents;
  read_all(now, agents);  // before anybody is taken for silent
  accept_all(now);
  read_all(now, agents);
  return agents;
}

}  // namespace dstrain::launcher
