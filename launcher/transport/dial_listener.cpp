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

DialListener::DialListener() {
  try {
    ListeningSocket listener = listen_on("0.0.0.0", 0);
    set_nonblocking(listener.fd.get());
    socket_ = std::move(listener.fd);
    target_ = {own_addresses(), listener.port, draw_secret()};
  } catch (const Error& error) {
    throw Error(error.kind(), fmt::format("cannot listen for agents: {}", error.what()));
  }
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
  if (!pending_.empty() && (!next || pending_.front().until < *next)) next = pending_.front().until;
  return next;
}

void DialListener::accept_all(Time now) {
  if (pause_ && now >= *pause_) pause_.reset();
  for (int i = 0; i < kAcceptAtOnce && socket_ && !pause_; ++i) {
    UniqueFd socket(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno == EAGAIN) return;
      // No descriptor left: strangers give theirs back first.
      if (pending_.empty()) {
        pause_ = now + kPause;
      } else {
        pending_.pop_front();
      }
      continue;
    }
    const int on = 1;
    ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    // An agent proves itself within milliseconds: the oldest is the likeliest stranger.
    if (pending_.size() == kMaxPending) pending_.pop_front();
    pending_.push_back({std::move(socket),
                        Handshake(Handshake::Side::server, target_.secret, kDialPurpose),
                        {},
                        {},
                        now + kProofLimit});
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
    std::string_view bytes(block.data(), static_cast<std::size_t>(got));
    bytes.remove_prefix(connection.handshake.receive(bytes));
    connection.line += bytes;
    if (connection.line.size() > kMaxIntroductionBytes) return false;
  }
}

std::vector<DialledAgent> DialListener::advance(Time now) {
  accept_all(now);
  std::vector<DialledAgent> agents;
  for (auto it = pending_.begin(); it != pending_.end();) {
    bool keep = advance(*it) && now < it->until;
    if (keep && it->line.ends_with('\n') && it->handshake.state() == Handshake::State::done) {
      keep = false;
      try {
        agents.push_back({introduction_from(it->line), std::move(it->socket)});
      } catch (const Error&) {
        // It knows the secret and speaks otherwise: another build, which nobody waits for.
      }
    }
    it = keep ? std::next(it) : pending_.erase(it);
  }
  return agents;
}

}  // namespace dstrain::launcher
