#include <chrono>

#include "engine/base/error.h"
#include "engine/comm/tcp_store.h"
#include "engine/store/route.h"
#include "test/store/listener.h"
#include "test/store/store_semantics.h"
#include "test/support/catch.h"

namespace dstrain {
namespace {

using std::chrono::milliseconds;
using test::Listener;

std::shared_ptr<Store> serve(Listener& listener) {
  return make_tcp_store(
      {.port = listener.port(), .serve = true, .listen_fd = listener.hand_over()});
}

TEST_CASE("the TCP store takes over a listening socket and serves all its clients", "[store]") {
  Listener listener;
  const auto server = serve(listener);
  const auto client = make_tcp_store({.port = listener.port()});
  test::check_store(*server, *client, "server/");
  test::check_store(*client, *server, "client/");
}

TEST_CASE("the TCP store binds a free port of its own when it is given no socket", "[store]") {
  int port = 0;
  {
    const Listener listener;
    port = listener.port();
  }
  const auto server = make_tcp_store({.port = port, .serve = true});
  test::check_store(*server, *make_tcp_store({.port = port}), "");
}

TEST_CASE("the TCP store keeps the promises of a store", "[store]") {
  Listener listener;
  test::check_waiting(*serve(listener));
}

TEST_CASE("a store that nobody serves is an error with address and port", "[store]") {
  int port = 0;
  {
    const Listener listener;
    port = listener.port();
  }
  const Error error =
      test::error_of([&] { (void)make_tcp_store({.port = port, .timeout = milliseconds(1000)}); });
  REQUIRE(error.kind() == ErrorKind::hosts);
  REQUIRE(test::contains(error, "no store of the job at 127.0.0.1:" + std::to_string(port)));
}

TEST_CASE("a port that is taken is an error with address and port", "[store]") {
  const Listener listener;
  const Error error =
      test::error_of([&] { (void)make_tcp_store({.port = listener.port(), .serve = true}); });
  REQUIRE(error.kind() == ErrorKind::hosts);
  REQUIRE(test::contains(
      error, "cannot serve the store of the job on 127.0.0.1:" + std::to_string(listener.port())));
}

TEST_CASE("a call after the server's end is an error that can be tried again", "[store]") {
  Listener listener;
  auto server = serve(listener);
  const auto client = make_tcp_store({.port = listener.port()});
  client->set("before", "yes");
  server.reset();
  const Error error = test::error_of([&] { (void)client->get("after", milliseconds(5000)); });
  REQUIRE(error.kind() == ErrorKind::again);
  REQUIRE(test::contains(error, "get 'after' failed"));
}

TEST_CASE("a machine's address towards loopback is loopback, towards others an interface's",
          "[store]") {
  REQUIRE(local_address_towards("127.0.0.1") == "127.0.0.1");
  REQUIRE(local_address_towards("localhost") == "127.0.0.1");
  Listener listener;
  REQUIRE(serve(listener)->local_address() == "127.0.0.1");
  // 192.0.2.0/24 is kept for documentation: a route there is the default route, where there is one.
  REQUIRE_FALSE(local_address_towards("192.0.2.1").empty());
}

}  // namespace
}  // namespace dstrain
