#include "engine/base/handshake.h"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "engine/base/error.h"

namespace dstrain {
namespace {

// The bytes on the wire, all of fixed size, so that a stranger cannot make us hold more:
//   client -> server  its challenge
//   server -> client  its challenge, HMAC("dstrain server" | purpose | both challenges)
//   client -> server  HMAC("dstrain client" | purpose | both challenges)
// The two labels are equally long and the challenges stand last: no two meanings have one text.
constexpr std::size_t kDigestBytes = 32;
constexpr std::size_t kChallengeBytes = 32;
constexpr std::string_view kServerLabel = "dstrain server";
constexpr std::string_view kClientLabel = "dstrain client";
static_assert(kServerLabel.size() == kClientLabel.size());

using Bytes32 = std::array<std::uint8_t, 32>;

std::string_view as_text(const Bytes32& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

template <std::size_t N>
void draw(std::array<std::uint8_t, N>& bytes) {
  if (RAND_bytes(bytes.data(), static_cast<int>(bytes.size())) != 1) {
    throw Error(ErrorKind::internal, "the system gives no random bytes for the job's secret");
  }
}

/// `client` and `server`: the challenges of 32 bytes.
Bytes32 proof(const JobSecret& secret, std::string_view label, std::string_view purpose,
              std::string_view client, std::string_view server) {
  std::string message;
  message.append(label).append(purpose).append(client).append(server);
  Bytes32 digest{};
  unsigned int size = 0;
  const auto* data = reinterpret_cast<const unsigned char*>(message.data());
  if (HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()), data, message.size(),
           digest.data(), &size) == nullptr ||
      size != kDigestBytes) {
    throw Error(ErrorKind::internal, "libcrypto has no HMAC-SHA256");
  }
  return digest;
}

bool equal(const Bytes32& ours, std::string_view theirs) {
  return theirs.size() == ours.size() && CRYPTO_memcmp(ours.data(), theirs.data(), 32) == 0;
}

int nibble(char digit) {
  if (digit >= '0' && digit <= '9') return digit - '0';
  if (digit >= 'a' && digit <= 'f') return digit - 'a' + 10;
  if (digit >= 'A' && digit <= 'F') return digit - 'A' + 10;
  return -1;
}

using Clock = std::chrono::steady_clock;

/// Waits until `fd` can do `events`; false when the time is up.
bool wait_for(int fd, short events, Clock::time_point deadline) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return false;
    pollfd entry{.fd = fd, .events = events, .revents = 0};
    const int ready = ::poll(&entry, 1, static_cast<int>(left));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return true;  // the call that follows says why
  }
}

[[noreturn]] void fail(std::string_view purpose, std::string_view reason,
                       ErrorKind kind = ErrorKind::hosts) {
  throw Error(kind, fmt::format("handshake for '{}' failed: {}", purpose, reason),
              "another job, or an earlier start of this one, may hold that address and port");
}

bool would_block(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

}  // namespace

JobSecret draw_secret() {
  JobSecret secret{};
  draw(secret);
  return secret;
}

std::string to_hex(const JobSecret& secret) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const unsigned byte : secret) {
    text.push_back(kDigits[byte >> 4U]);
    text.push_back(kDigits[byte & 15U]);
  }
  return text;
}

JobSecret secret_from_hex(std::string_view text) {
  JobSecret secret{};
  bool good = text.size() == 2 * secret.size();
  for (std::size_t i = 0; good && i < secret.size(); ++i) {
    const int high = nibble(text[2 * i]);
    const int low = nibble(text[2 * i + 1]);
    good = high >= 0 && low >= 0;
    if (good) secret[i] = static_cast<std::uint8_t>(high * 16 + low);
  }
  if (!good) {
    throw Error(
        ErrorKind::usage,
        fmt::format("the job's secret is not 64 hexadecimal digits ({} characters)", text.size()),
        "the launcher draws it; do not set DSTRAIN_JOB_SECRET by hand");
  }
  return secret;
}

JobSecret secret_from_text(std::string_view text) {
  JobSecret secret{};
  unsigned int size = 0;
  if (EVP_Digest(text.data(), text.size(), secret.data(), &size, EVP_sha256(), nullptr) != 1 ||
      size != secret.size()) {
    throw Error(ErrorKind::internal, "libcrypto has no SHA-256");
  }
  return secret;
}

Handshake::Handshake(Side side, const JobSecret& secret, std::string_view purpose)
    : side_(side), secret_(secret), purpose_(purpose) {
  draw(challenge_);
  if (side_ == Side::client) output_ = as_text(challenge_);
}

std::size_t Handshake::receive(std::string_view bytes) {
  if (state_ != State::going_on) return 0;
  // A server gets the challenge and then the proof, a client both at once.
  const bool challenged = input_.size() >= kChallengeBytes;
  const std::size_t wanted =
      side_ == Side::server && !challenged ? kChallengeBytes : kChallengeBytes + kDigestBytes;
  const std::size_t taken = std::min(bytes.size(), wanted - input_.size());
  input_.append(bytes.substr(0, taken));
  if (input_.size() < wanted) return taken;

  const std::string_view input(input_);
  const std::string_view theirs = input.substr(0, kChallengeBytes);
  const std::string_view client = side_ == Side::client ? as_text(challenge_) : theirs;
  const std::string_view server = side_ == Side::server ? as_text(challenge_) : theirs;
  if (side_ == Side::server && !challenged) {
    output_.append(as_text(challenge_));
    output_.append(as_text(proof(secret_, kServerLabel, purpose_, client, server)));
    return taken + receive(bytes.substr(taken));
  }
  const std::string_view label = side_ == Side::client ? kServerLabel : kClientLabel;
  if (!equal(proof(secret_, label, purpose_, client, server), input.substr(kChallengeBytes))) {
    state_ = State::refused;
    return taken;
  }
  if (side_ == Side::client) {
    output_.append(as_text(proof(secret_, kClientLabel, purpose_, client, server)));
  }
  state_ = State::done;
  return taken;
}

std::string Handshake::take_output() {
  std::string output;
  output.swap(output_);
  return output;
}

void shake_hands(int fd, Handshake::Side side, const JobSecret& secret, std::string_view purpose,
                 int limit_ms) {
  const Clock::time_point deadline = Clock::now() + std::chrono::milliseconds(limit_ms);
  const std::string late = fmt::format("no answer within {} ms", limit_ms);
  Handshake handshake(side, secret, purpose);
  for (;;) {
    for (std::string output = handshake.take_output(); !output.empty();) {
      if (!wait_for(fd, POLLOUT, deadline)) fail(purpose, late);
      const ssize_t sent = ::send(fd, output.data(), output.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (sent < 0 && !would_block(errno)) fail(purpose, std::strerror(errno), ErrorKind::again);
      if (sent > 0) output.erase(0, static_cast<std::size_t>(sent));
    }
    if (handshake.state() == Handshake::State::done) return;
    if (handshake.state() == Handshake::State::refused) {
      fail(purpose, "the other side does not know the job's secret, or means another purpose");
    }
    if (!wait_for(fd, POLLIN, deadline)) fail(purpose, late);
    // Looks first and takes then, so that what follows the handshake stays in the socket.
    std::array<char, kChallengeBytes + kDigestBytes> bytes{};
    const ssize_t seen = ::recv(fd, bytes.data(), bytes.size(), MSG_PEEK | MSG_DONTWAIT);
    if (seen == 0) fail(purpose, "the other side has closed the connection", ErrorKind::again);
    if (seen < 0 && !would_block(errno)) fail(purpose, std::strerror(errno), ErrorKind::again);
    if (seen <= 0) continue;
    const std::size_t taken = handshake.receive({bytes.data(), static_cast<std::size_t>(seen)});
    (void)::recv(fd, bytes.data(), taken, MSG_DONTWAIT);
  }
}

}  // namespace dstrain
