#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace dstrain {

/// 256 random bits that the processes of one job share; never in argv, on disk or on the console.
using JobSecret = std::array<std::uint8_t, 32>;
[[nodiscard]] JobSecret draw_secret();
[[nodiscard]] std::string to_hex(const JobSecret& secret);
/// Error{usage} unless `text` is 64 hexadecimal digits; does not repeat the text.
[[nodiscard]] JobSecret secret_from_hex(std::string_view text);

/// What people chose as a secret, of any length: the same text is the same secret.
[[nodiscard]] JobSecret secret_from_text(std::string_view text);

/// Mutual proof over a byte stream that both sides know the secret and mean the same `purpose`
/// (e.g. "store, attempt 3"): challenge and response with HMAC-SHA256 (RFC 2104) both ways,
/// fresh random challenges, compared in constant time. Does no input or output itself, so that a
/// server can hold many unfinished ones: give it what arrived, send what it says.
class Handshake {
 public:
  enum class Side { client, server };
  enum class State { going_on, done, refused };

  Handshake(Side side, const JobSecret& secret, std::string_view purpose);

  /// Takes bytes from the other side, at most what the handshake needs; returns how many it took.
  std::size_t receive(std::string_view bytes);
  /// Bytes to send now; empty when there is nothing to say.
  [[nodiscard]] std::string take_output();
  [[nodiscard]] State state() const { return state_; }

 private:
  using Digest = std::array<std::uint8_t, 32>;
  Side side_;
  JobSecret secret_;
  std::string purpose_;
  Digest challenge_{};  ///< ours
  std::string input_;
  std::string output_;
  State state_ = State::going_on;
};

/// Runs a handshake on a connected blocking or non-blocking socket. Error{hosts} when the other
/// side does not know the secret or does not answer within `limit_ms`; Error{again} when it closes
/// the connection, which another attempt may cure.
void shake_hands(int fd, Handshake::Side side, const JobSecret& secret, std::string_view purpose,
                 int limit_ms);

}  // namespace dstrain
