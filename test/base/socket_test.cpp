#include "engine/base/socket.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>

#include "engine/base/error.h"
#include "test/support/catch.h"

using namespace dstrain;
using namespace std::chrono_literals;

namespace {

auto soon() { return std::chrono::steady_clock::now() + 5s; }

}  // namespace

TEST_CASE("a connection knows the addresses of both ends", "[base][socket]") {
  const ListeningSocket listener = listen_on("127.0.0.2", 0);
  REQUIRE(listener.port > 0);
  const UniqueFd client = connect_to("127.0.0.2", listener.port, soon());
  const UniqueFd server(::accept4(listener.fd.get(), nullptr, nullptr, SOCK_CLOEXEC));
  CHECK(peer_address(client.get()) == "127.0.0.2");
  CHECK(own_address(server.get()) == "127.0.0.2");
  CHECK(own_address(client.get()) == peer_address(server.get()));
  CHECK(peer_name(client.get()) == "127.0.0.2:" + std::to_string(listener.port));
  CHECK(peer_address(listener.fd.get()).empty());
  CHECK(peer_name(listener.fd.get()) == "a connection");
}

TEST_CASE("connecting begins without waiting, to numeric addresses alone", "[base][socket]") {
  const ListeningSocket listener = listen_on("127.0.0.1", 0);
  int error = -1;
  const UniqueFd fd = start_connecting("127.0.0.1", listener.port, error);
  REQUIRE(fd);
  REQUIRE((error == 0 || error == EINPROGRESS));
  pollfd entry{.fd = fd.get(), .events = POLLOUT, .revents = 0};
  REQUIRE(::poll(&entry, 1, 5000) == 1);
  CHECK(peer_address(fd.get()) == "127.0.0.1");
  const std::string name = GENERATE("localhost", "127.0.0.1x");
  CAPTURE(name);
  CHECK_FALSE(start_connecting(name, listener.port, error));
  CHECK(error == EINVAL);
}

TEST_CASE("an address of another machine cannot be listened on", "[base][socket]") {
  CHECK_THROWS_AS(listen_on("192.0.2.1", 0), Error);
  CHECK_THROWS_AS(listen_on("no address", 0), Error);
}
