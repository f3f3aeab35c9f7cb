#include "engine/base/handshake.h"

#include <openssl/sha.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <thread>

#include "engine/base/error.h"
#include "test/support/catch.h"

namespace dstrain {
namespace {

using enum Handshake::Side;
using enum Handshake::State;
constexpr std::string_view kPurpose = "store, attempt 3";

JobSecret secret_of(std::uint8_t byte) {
  JobSecret secret{};
  secret.fill(byte);
  return secret;
}

/// RFC 2104 by its definition, so that the handshake is compared with something that is not its
/// own.
std::string hmac_sha256(std::string key, const std::string& message) {
  const auto sha256 = [](const std::string& text) {
    std::string digest(SHA256_DIGEST_LENGTH, '\0');
    ::SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(),
             reinterpret_cast<unsigned char*>(digest.data()));
    return digest;
  };
  key.resize(SHA256_CBLOCK, '\0');
  const auto padded = [&key](char pad) {
    std::string text(key);
    for (char& c : text) c = static_cast<char>(c ^ pad);
    return text;
  };
  return sha256(padded(0x5c) + sha256(padded(0x36) + message));
}

std::string key_of(const JobSecret& secret) { return {secret.begin(), secret.end()}; }

std::string hex(const std::string& bytes) {
  JobSecret digest{};
  std::copy(bytes.begin(), bytes.end(), digest.begin());
  return to_hex(digest);
}

/// Carries bytes between both until neither has anything to say, `step` bytes at a time.
void talk(Handshake& a, Handshake& b, std::size_t step = 1000) {
  std::string to_a;
  std::string to_b;
  const auto carry = [step](std::string& bytes, Handshake& to) {
    while (!bytes.empty()) {
      const std::size_t taken = to.receive(std::string_view(bytes).substr(0, step));
      if (taken == 0) return;
      bytes.erase(0, taken);
    }
  };
  for (bool spoke = true; spoke;) {
    to_b += a.take_output();
    to_a += b.take_output();
    spoke = !to_a.empty() || !to_b.empty();
    carry(to_b, b);
    carry(to_a, a);
    if (a.state() != going_on && b.state() != going_on) return;
  }
}

Error error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  return {ErrorKind::internal, "no error"};
}

struct Sockets {
  Sockets() { REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds.data()) == 0); }
  ~Sockets() {
    for (const int fd : fds) {
      if (fd >= 0) ::close(fd);
    }
  }
  Sockets(const Sockets&) = delete;
  Sockets& operator=(const Sockets&) = delete;
  std::array<int, 2> fds{-1, -1};
};

TEST_CASE("a secret survives its text, and no two are equal", "[handshake]") {
  const JobSecret secret = draw_secret();
  REQUIRE(to_hex(secret).size() == 64);
  REQUIRE(secret_from_hex(to_hex(secret)) == secret);
  REQUIRE(draw_secret() != secret);
  REQUIRE(to_hex(secret_of(0xa7)).substr(0, 4) == "a7a7");
  REQUIRE(secret_from_hex(std::string(64, 'F')) == secret_of(0xff));
}

TEST_CASE("a text that is no secret is refused without being repeated", "[handshake]") {
  const std::string text = GENERATE(std::string(), std::string(63, 'a'), std::string(65, 'a'),
                                    std::string(63, 'a') + "g", std::string(62, 'a') + " 1",
                                    std::string(62, 'a') + "-1", std::string(62, '0') + "0x");
  const Error error = error_of([&] { (void)secret_from_hex(text); });
  REQUIRE(error.kind() == ErrorKind::usage);
  if (text.size() > 8) {
    REQUIRE(std::string(error.what()).find(text.substr(0, 8)) == std::string::npos);
  }
}

TEST_CASE("HMAC-SHA256 of this test gives the published answers", "[handshake]") {
  // RFC 4231, test cases 1 and 2.
  REQUIRE(hex(hmac_sha256(std::string(20, 0x0b), "Hi There")) ==
          "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  REQUIRE(hex(hmac_sha256("Jefe", "what do ya want for nothing?")) ==
          "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}

TEST_CASE("the messages are those that the protocol says", "[handshake]") {
  const JobSecret secret = secret_of(9);
  const std::string key = key_of(secret);
  const std::string challenge(32, 'c');

  Handshake server(Handshake::Side::server, secret, kPurpose);
  REQUIRE(server.take_output().empty());
  REQUIRE(server.receive(challenge) == 32);
  const std::string answer = server.take_output();
  REQUIRE(answer.size() == 64);
  const std::string both = challenge + answer.substr(0, 32);
  REQUIRE(answer.substr(32) == hmac_sha256(key, "dstrain server" + std::string(kPurpose) + both));
  REQUIRE(server.receive(hmac_sha256(key, "dstrain client" + std::string(kPurpose) + both)) == 32);
  REQUIRE(server.state() == done);

  Handshake client(Handshake::Side::client, secret, kPurpose);
  const std::string theirs = client.take_output() + challenge;
  REQUIRE(theirs.size() == 64);
  REQUIRE(client.receive(challenge + hmac_sha256(key, "dstrain server" + std::string(kPurpose) +
                                                          theirs)) == 64);
  REQUIRE(client.state() == done);
  REQUIRE(client.take_output() ==
          hmac_sha256(key, "dstrain client" + std::string(kPurpose) + theirs));
}

TEST_CASE("two that know the secret agree, however the bytes arrive", "[handshake]") {
  const std::size_t step = GENERATE(1U, 3U, 31U, 33U, 1000U);
  CAPTURE(step);
  Handshake a(client, secret_of(1), kPurpose);
  Handshake b(server, secret_of(1), kPurpose);
  talk(a, b, step);
  REQUIRE(a.state() == done);
  REQUIRE(b.state() == done);
}

TEST_CASE("a wrong secret or purpose is refused by the client", "[handshake]") {
  const bool wrong_secret = GENERATE(false, true);
  Handshake a(client, secret_of(1), kPurpose);
  Handshake b(server, secret_of(wrong_secret ? 2 : 1),
              wrong_secret ? kPurpose : "store, attempt 4");
  talk(a, b);
  REQUIRE(a.state() == refused);
  REQUIRE(b.state() != done);
  REQUIRE(a.take_output().empty());
}

TEST_CASE("a client that does not check the server is still refused by it", "[handshake]") {
  Handshake b(server, secret_of(1), kPurpose);
  b.receive(std::string(32, 'c'));
  (void)b.take_output();
  REQUIRE(b.receive(std::string(32, 'x')) == 32);
  REQUIRE(b.state() == refused);
  REQUIRE(b.receive("more") == 0);
  REQUIRE(b.take_output().empty());
}

TEST_CASE("what one client said is worth nothing a second time", "[handshake]") {
  Handshake a(client, secret_of(1), kPurpose);
  Handshake b(server, secret_of(1), kPurpose);
  std::string spoken = a.take_output();
  b.receive(spoken);
  a.receive(b.take_output());
  const std::string last = a.take_output();
  b.receive(last);
  REQUIRE(b.state() == done);
  spoken += last;

  Handshake again(server, secret_of(1), kPurpose);
  REQUIRE(again.receive(spoken) == 64);
  REQUIRE(again.state() == refused);
}

TEST_CASE("an answer sent back to where it came from proves nothing", "[handshake]") {
  // To the server: its own proof as the client's.
  Handshake b(server, secret_of(1), kPurpose);
  b.receive(std::string(32, 'c'));
  b.receive(b.take_output().substr(32));
  REQUIRE(b.state() == refused);
  // To the client: its own challenge, and a proof that another server connection was made to give.
  Handshake a(client, secret_of(1), kPurpose);
  Handshake oracle(server, secret_of(1), kPurpose);
  const std::string challenge = a.take_output();
  oracle.receive(challenge);
  a.receive(challenge + oracle.take_output().substr(32));
  REQUIRE(a.state() == refused);
}

TEST_CASE("two of the same side never agree", "[handshake]") {
  const auto side = GENERATE(client, server);
  Handshake a(side, secret_of(1), kPurpose);
  Handshake b(side, secret_of(1), kPurpose);
  talk(a, b);
  REQUIRE(a.state() != done);
  REQUIRE(b.state() != done);
}

TEST_CASE("a handshake takes no more than its own bytes, and none short of them", "[handshake]") {
  Handshake a(client, secret_of(1), kPurpose);
  Handshake b(server, secret_of(1), kPurpose);
  b.receive(a.take_output());
  a.receive(b.take_output());
  const std::string last = a.take_output();
  REQUIRE(b.receive(last.substr(0, 31)) == 31);
  REQUIRE(b.state() == going_on);
  REQUIRE(b.receive(last.substr(31) + std::string(100'000, 'z')) == 1);
  REQUIRE(b.state() == done);
  REQUIRE(b.receive("z") == 0);
}

TEST_CASE("over sockets both sides agree and what follows stays in the stream", "[handshake]") {
  Sockets sockets;
  {
    const std::jthread serving(
        [&] { shake_hands(sockets.fds[1], server, secret_of(1), kPurpose, 5000); });
    shake_hands(sockets.fds[0], client, secret_of(1), kPurpose, 5000);
    REQUIRE(::send(sockets.fds[0], "next", 4, 0) == 4);
  }
  std::array<char, 8> bytes{};
  REQUIRE(::recv(sockets.fds[1], bytes.data(), bytes.size(), MSG_DONTWAIT) == 4);
}

TEST_CASE("over sockets a stranger, a closed and a silent one are errors that say so",
          "[handshake]") {
  Sockets sockets;
  SECTION("another secret") {
    const std::jthread serving([&] {
      (void)error_of([&] { shake_hands(sockets.fds[1], server, secret_of(2), kPurpose, 5000); });
      ::shutdown(sockets.fds[1], SHUT_RDWR);
    });
    const Error error =
        error_of([&] { shake_hands(sockets.fds[0], client, secret_of(1), kPurpose, 5000); });
    ::shutdown(sockets.fds[0], SHUT_RDWR);
    REQUIRE(error.kind() == ErrorKind::hosts);
    REQUIRE(std::string(error.what()).find("does not know the job's secret") != std::string::npos);
  }
  SECTION("closed half-way") {
    REQUIRE(::send(sockets.fds[1], "short", 5, 0) == 5);
    ::shutdown(sockets.fds[1], SHUT_WR);
    const Error error =
        error_of([&] { shake_hands(sockets.fds[0], client, secret_of(1), kPurpose, 5000); });
    REQUIRE(error.kind() == ErrorKind::again);
    REQUIRE(std::string(error.what()).find("has closed the connection") != std::string::npos);
  }
  SECTION("silent") {
    const auto start = std::chrono::steady_clock::now();
    const Error error =
        error_of([&] { shake_hands(sockets.fds[0], client, secret_of(1), kPurpose, 200); });
    const auto elapsed = std::chrono::steady_clock::now() - start;
    REQUIRE(error.kind() == ErrorKind::hosts);
    REQUIRE(std::string(error.what()).find("no answer within 200 ms") != std::string::npos);
    REQUIRE(elapsed >= std::chrono::milliseconds(200));
    REQUIRE(elapsed < std::chrono::milliseconds(1500));
  }
}

}  // namespace
}  // namespace dstrain
