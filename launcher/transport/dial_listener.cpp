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

constexpr std::size_t kLongestIntroduction = 4096;
constexpr int kAcceptAtOnce = 256;
constexpr std::chrono::milliseconds kPause{200};

}  // namespace

Channel welcome(Caller caller) {
  // A fresh connection takes these few bytes at once; if not, the agent's silence tells.
  (void)::send(caller.socket.get(), kDialWelcome.data(), kDialWelcome.size(),
               MSG_NOSIGNAL | MSG_DONTWAIT);
  UniqueFd out(::fcntl(caller.socket.get(), F_DUPFD_CLOEXEC, 3));
  if (!out) fail_system("duplicate a socket");
  return {std::move(caller.socket), std::move(out)};
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
  strangers_.clear();
}

void DialListener::close() {
  socket_.reset();
  strangers_.clear();
}

void DialListener::add_polls(std::vector<pollfd>& fds) const {
  if (socket_ && !pause_) fds.push_back({socket_.get(), POLLIN, 0});
  for (const Stranger& stranger : strangers_) {
    const int events = POLLIN | (stranger.output.empty() ? 0 : POLLOUT);
    fds.push_back({stranger.socket.get(), static_cast<short>(events), 0});
  }
}

std::optional<DialListener::Time> DialListener::deadline() const {
  std::optional<Time> next = pause_;
  if (!strangers_.empty() && (!next || strangers_.front().until < *next))
    next = strangers_.front().until;
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
      if (strangers_.empty()) {
        pause_ = now + kPause;
      } else {
        strangers_.pop_front();
      }
      continue;
    }
    const int on = 1;
    ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    // An agent proves itself within milliseconds: the oldest is the likeliest stranger.
    if (strangers_.size() == kMostStrangers) strangers_.pop_front();
    strangers_.push_back({std::move(socket),
                          Handshake(Handshake::Side::server, target_.secret, kDialPurpose),
                          {},
                          {},
                          now + kProofLimit});
  }
}

bool DialListener::flush(Stranger& stranger) {
  stranger.output += stranger.handshake.take_output();
  while (!stranger.output.empty()) {
    const ssize_t sent =
        ::send(stranger.socket.get(), stranger.output.data(), stranger.output.size(), MSG_NOSIGNAL);
    if (sent < 0) return errno == EAGAIN || errno == EINTR;
    stranger.output.erase(0, static_cast<std::size_t>(sent));
  }
  return true;
}

bool DialListener::advance(Stranger& stranger) {
  for (;;) {
    if (!flush(stranger)) return false;
    if (stranger.handshake.state() == Handshake::State::refused) return false;
    if (stranger.line.ends_with('\n')) return true;
    std::array<char, 512> block{};
    const ssize_t got = ::recv(stranger.socket.get(), block.data(), block.size(), 0);
    if (got == 0) return false;
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    std::string_view bytes(block.data(), static_cast<std::size_t>(got));
    bytes.remove_prefix(stranger.handshake.receive(bytes));
    stranger.line += bytes;
    if (stranger.line.size() > kLongestIntroduction) return false;
  }
}

std::vector<Caller> DialListener::advance(Time now) {
  accept_all(now);
  std::vector<Caller> callers;
  for (auto it = strangers_.begin(); it != strangers_.end();) {
    bool keep = advance(*it) && now < it->until;
    if (keep && it->line.ends_with('\n') && it->handshake.state() == Handshake::State::done) {
      keep = false;
      try {
        callers.push_back({introduction_from(it->line), std::move(it->socket)});
      } catch (const Error&) {
        // It knows the secret and speaks otherwise: another build, which nobody waits for.
      }
    }
    it = keep ? std::next(it) : strangers_.erase(it);
  }
  return callers;
}

}  // namespace dstrain::launcher
