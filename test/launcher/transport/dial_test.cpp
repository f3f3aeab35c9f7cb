#include "launcher/transport/dial.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <future>
#include <set>
#include <thread>

#include "engine/base/error.h"
#include "launcher/transport/dial_listener.h"
#include "test/support/catch.h"

using namespace dstrain;
using namespace dstrain::launcher;
using std::chrono::milliseconds;
using std::chrono::seconds;
using Clock = std::chrono::steady_clock;

namespace {

const Introduction kAgent{.name = "h2", .host = "node-2", .cores = 8, .gpus = 4};

/// The listener's target as an agent on this machine sees it.
DialTarget here(const DialListener& listener) {
  DialTarget target = listener.target();
  target.addresses = {"127.0.0.1"};
  return target;
}

/// Whether dial() got a connection, or the text of its error.
std::future<std::string> dial_beside(const DialTarget& target, int lifeline = -1,
                                     milliseconds limit = seconds(20)) {
  return std::async(std::launch::async, [=]() -> std::string {
    try {
      return dial(target, kAgent, {.lifeline = lifeline, .limit = limit}) ? "welcome" : "refused";
    } catch (const Error& error) {
      return error.what();
    }
  });
}

/// Serves the listener until a caller has come or the time is up.
std::optional<DialledAgent> serve(DialListener& listener, milliseconds limit) {
  for (const auto deadline = Clock::now() + limit; Clock::now() < deadline;) {
    std::vector<pollfd> fds;
    listener.add_polls(fds);
    ::poll(fds.data(), fds.size(), 10);
    std::vector<DialledAgent> callers = listener.advance(Clock::now());
    if (!callers.empty()) return std::move(callers.front());
  }
  return std::nullopt;
}

UniqueFd connect_to(const DialTarget& target) {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(target.port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
  return fd;
}

std::size_t num_descriptors() {
  const std::filesystem::directory_iterator entries("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(entries), end(entries)));
}

}  // namespace

TEST_CASE("an agent that knows the secret is welcomed with what it says of itself",
          "[launcher][dial]") {
  DialListener listener;
  auto dialled = dial_beside(here(listener));
  auto caller = serve(listener, seconds(10));
  REQUIRE(caller);
  CHECK(caller->introduction.name == "h2");
  CHECK(caller->introduction.host == "node-2");
  CHECK(caller->introduction.cores == 8);
  CHECK(caller->introduction.gpus == 4);
  const Channel channel = welcome(*std::move(caller));
  CHECK(dialled.get() == "welcome");
}

TEST_CASE("an agent finds the right one among addresses where others listen", "[launcher][dial]") {
  DialListener listener;
  DialTarget target = here(listener);
  target.addresses = {"127.0.0.2", "203.0.113.1", "127.0.0.1"};
  auto dialled = dial_beside(target);
  auto caller = serve(listener, seconds(10));
  REQUIRE(caller);
  const Channel channel = welcome(*std::move(caller));
  CHECK(dialled.get() == "welcome");
}

TEST_CASE("an agent comes over IPv6 as over IPv4, and is seen by its own address",
          "[launcher][dial]") {
  for (const char* address : {"::1", "127.0.0.1"}) {
    DialListener listener;
    DialTarget target = here(listener);
    target.addresses = addresses_of(address);
    REQUIRE(target.addresses == std::vector<std::string>{address});
    auto dialled = dial_beside(target);
    auto caller = serve(listener, seconds(10));
    REQUIRE(caller);
    CHECK(peer_address(caller->socket.get()) == address);
    const Channel channel = welcome(*std::move(caller));
    CHECK(dialled.get() == "welcome");
  }
  DialTarget nobody{.addresses = {"::1"}, .port = 1, .secret = draw_secret()};
  CHECK_THAT(dial_beside(nobody, -1, milliseconds(100)).get(), Catch::Contains("[::1]:1 "));
}

TEST_CASE("a wrong secret is refused and says so", "[launcher][dial]") {
  DialListener listener;
  DialTarget target = here(listener);
  target.secret = draw_secret();
  auto dialled = dial_beside(target, -1, milliseconds(500));
  CHECK_FALSE(serve(listener, milliseconds(1500)));
  CHECK_THAT(dialled.get(), Catch::Contains("cannot reach the controller"));
}

TEST_CASE("where nobody else should listen another secret is a mistake at once",
          "[launcher][dial][join]") {
  DialListener listener;
  DialTarget target = here(listener);
  target.secret = draw_secret();
  auto dialled = std::async(std::launch::async, [&]() -> std::string {
    try {
      return dial(target, kAgent, {.limit = seconds(20), .alone = true}) ? "welcome" : "refused";
    } catch (const Error& error) {
      return fmt::format("{} {}", exit_code(error.kind()), error.what());
    }
  });
  CHECK_FALSE(serve(listener, milliseconds(1000)));
  CHECK(dialled.get() ==
        fmt::format("64 127.0.0.1:{} has another secret than this process", target.port));
  CHECK(listener.refused() == std::set<std::string>{"127.0.0.1"});
}

TEST_CASE("a spare that has waited longer than its limit ends well with its controller",
          "[launcher][dial][join]") {
  DialListener listener;
  auto dialled = dial_beside(here(listener), -1, milliseconds(300));
  auto caller = serve(listener, seconds(10));
  REQUIRE(caller);
  std::this_thread::sleep_for(milliseconds(700));
  listener.close();
  caller.reset();
  CHECK(dialled.get() == "refused");
}

TEST_CASE("a secret that was renewed makes strangers of those who know the old one",
          "[launcher][dial]") {
  DialListener listener;
  const DialTarget old = here(listener);
  listener.renew();
  auto dialled = dial_beside(old, -1, milliseconds(500));
  CHECK_FALSE(serve(listener, milliseconds(1500)));
  CHECK_THAT(dialled.get(), Catch::Contains("cannot reach the controller"));
}

TEST_CASE("a thousand silent connections hold few descriptors and keep no agent out",
          "[launcher][dial]") {
  DialListener listener;
  const std::size_t before = num_descriptors();
  std::vector<UniqueFd> strangers;
  // Both ends are in this process, which may have no more than a thousand descriptors.
  for (int i = 0; i < 1000; ++i) {
    if (strangers.size() == 300) strangers.erase(strangers.begin());
    strangers.push_back(connect_to(listener.target()));
    CHECK(listener.advance(Clock::now()).empty());
  }
  const std::size_t held = num_descriptors() - before - strangers.size();
  CHECK(held <= DialListener::kRoomForStrangers);
  auto dialled = dial_beside(here(listener));
  auto caller = serve(listener, seconds(10));
  REQUIRE(caller);
  const Channel channel = welcome(*std::move(caller));
  CHECK(dialled.get() == "welcome");
}

TEST_CASE("a connection that proves nothing in time is closed", "[launcher][dial]") {
  DialListener listener;
  const UniqueFd stranger = connect_to(listener.target());
  CHECK(listener.advance(Clock::now()).empty());
  CHECK(listener.deadline());
  CHECK(listener.advance(Clock::now() + DialListener::kProofLimit).empty());
  CHECK_FALSE(listener.deadline());
  char byte = 0;
  CHECK(::recv(stranger.get(), &byte, 1, 0) <= 0);
}

TEST_CASE("noise instead of a handshake closes the connection", "[launcher][dial]") {
  DialListener listener;
  const UniqueFd stranger = connect_to(listener.target());
  const std::string noise(1 << 20, '\xff');
  (void)::send(stranger.get(), noise.data(), noise.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  CHECK_FALSE(serve(listener, milliseconds(200)));
  CHECK_FALSE(listener.deadline());
}

TEST_CASE("a controller that goes away ends the wait of an agent it has not welcomed",
          "[launcher][dial]") {
  DialListener listener;
  auto dialled = dial_beside(here(listener));
  REQUIRE(serve(listener, seconds(10)));  // and the caller is closed
  listener.close();
  CHECK(dialled.get() == "refused");
}

TEST_CASE("an agent whose connection is closed before its welcome dials again",
          "[launcher][dial]") {
  DialListener listener;
  auto dialled = dial_beside(here(listener));
  REQUIRE(serve(listener, seconds(10)));  // and the caller is closed
  auto caller = serve(listener, seconds(10));
  REQUIRE(caller);
  const Channel channel = welcome(*std::move(caller));
  CHECK(dialled.get() == "welcome");
}

TEST_CASE("the end of the lifeline ends an attempt to dial", "[launcher][dial]") {
  DialListener listener;
  Pipe lifeline = make_pipe();
  auto dialled = dial_beside(here(listener), lifeline.read.get());
  auto caller = serve(listener, seconds(10));
  REQUIRE(caller);
  lifeline.write.reset();
  CHECK_THAT(dialled.get(), Catch::Contains("the process that started this agent exited"));
}

TEST_CASE("the target survives its line, and nothing else is taken for one", "[launcher][dial]") {
  const DialListener listener;
  const std::string line = to_line(listener.target());
  const DialTarget target = dial_target_from(line);
  CHECK(target.addresses == listener.target().addresses);
  CHECK(target.port == listener.target().port);
  CHECK(target.secret == listener.target().secret);
  const std::string secret = to_hex(target.secret);
  for (const std::string& wrong :
       {std::string(), "dstrain-dial-2 " + line.substr(15),
        "dstrain-dial-1 0 " + secret + " 1.2.3.4", "dstrain-dial-1 65536 " + secret + " 1.2.3.4",
        "dstrain-dial-1 80 " + secret + " ", "dstrain-dial-1 80 " + secret + " 1.2.3.4,x",
        "dstrain-dial-1 80 1.2.3.4 " + secret}) {
    CAPTURE(wrong);
    CHECK_THROWS_AS(dial_target_from(wrong), Error);
  }
}
