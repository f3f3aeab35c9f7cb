#include "engine/comm/store.h"

#include <functional>
#include <thread>

#include "engine/base/error.h"
#include "engine/comm/route.h"
#include "test/comm/listener.h"
#include "test/support/catch.h"

namespace dstrain {
namespace {

using std::chrono::milliseconds;
using test::Listener;

Error error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  return {ErrorKind::internal, "no error"};
}

bool contains(const Error& error, const std::string& part) {
  return std::string(error.what()).find(part) != std::string::npos;
}

std::shared_ptr<Store> serve(Listener& listener) {
  return make_tcp_store(
      {.port = listener.port(), .serve = true, .listen_fd = listener.hand_over()});
}

void check_store(Store& a, Store& b, const std::string& prefix) {
  REQUIRE_FALSE(b.try_get(prefix + "fruit").has_value());
  a.set(prefix + "fruit", std::string("pear\0tree", 9));
  REQUIRE(b.get(prefix + "fruit", milliseconds(1000)) == std::string("pear\0tree", 9));
  REQUIRE(b.try_get(prefix + "fruit") == std::string("pear\0tree", 9));
  a.set(prefix + "fruit", "fig");
  REQUIRE(b.try_get(prefix + "fruit") == "fig");
  REQUIRE(a.add(prefix + "count", 2) == 2);
  REQUIRE(b.add(prefix + "count", 3) == 5);
  REQUIRE(a.get(prefix + "count", milliseconds(1000)) == "5");
  a.set(prefix + "empty", "");
  REQUIRE(b.try_get(prefix + "empty") == "");
}

TEST_CASE("the memory store keeps values and counters", "[store]") {
  const auto store = make_memory_store();
  check_store(*store, *store, "");
}

TEST_CASE("the TCP store takes over a listening socket and serves all its clients", "[store]") {
  Listener listener;
  const auto server = serve(listener);
  const auto client = make_tcp_store({.port = listener.port()});
  check_store(*server, *client, "server/");
  check_store(*client, *server, "client/");
}

TEST_CASE("the TCP store binds a free port of its own when it is given no socket", "[store]") {
  int port = 0;
  {
    const Listener listener;
    port = listener.port();
  }
  const auto server = make_tcp_store({.port = port, .serve = true});
  check_store(*server, *make_tcp_store({.port = port}), "");
}

TEST_CASE("a key that does not come is an error that names it, in time", "[store]") {
  Listener listener;
  const bool tcp = GENERATE(false, true);
  const auto store = tcp ? serve(listener) : make_memory_store();
  const auto start = std::chrono::steady_clock::now();
  const Error error = error_of([&] { (void)store->get("vote/7", milliseconds(300)); });
  const auto elapsed = std::chrono::steady_clock::now() - start;
  REQUIRE(error.kind() == ErrorKind::hosts);
  REQUIRE(contains(error, "key 'vote/7' did not come"));
  REQUIRE(contains(error, "within 300 ms"));
  REQUIRE(elapsed > milliseconds(290));
  REQUIRE(elapsed < milliseconds(1500));
}

TEST_CASE("a thread that waits for a key does not shut out the one that sets it", "[store]") {
  Listener listener;
  const bool tcp = GENERATE(false, true);
  const auto store = tcp ? serve(listener) : make_memory_store();
  std::string got;
  {
    const std::jthread waiter([&] { got = store->get("late", milliseconds(10'000)); });
    std::this_thread::sleep_for(milliseconds(250));
    const auto start = std::chrono::steady_clock::now();
    store->set("late", "here");
    REQUIRE(std::chrono::steady_clock::now() - start < milliseconds(1000));
  }
  REQUIRE(got == "here");
}

TEST_CASE("a store that nobody serves is an error with address and port", "[store]") {
  int port = 0;
  {
    const Listener listener;
    port = listener.port();
  }
  const Error error =
      error_of([&] { (void)make_tcp_store({.port = port, .timeout = milliseconds(1000)}); });
  REQUIRE(error.kind() == ErrorKind::hosts);
  REQUIRE(contains(error, "no store of the job at 127.0.0.1:" + std::to_string(port)));
}

TEST_CASE("a port that is taken is an error with address and port", "[store]") {
  const Listener listener;
  const Error error =
      error_of([&] { (void)make_tcp_store({.port = listener.port(), .serve = true}); });
  REQUIRE(error.kind() == ErrorKind::hosts);
  REQUIRE(contains(
      error, "cannot serve the store of the job on 127.0.0.1:" + std::to_string(listener.port())));
}

TEST_CASE("a call after the server's end is an error that can be tried again", "[store]") {
  Listener listener;
  auto server = serve(listener);
  const auto client = make_tcp_store({.port = listener.port()});
  client->set("before", "yes");
  server.reset();
  const Error error = error_of([&] { (void)client->get("after", milliseconds(5000)); });
  REQUIRE(error.kind() == ErrorKind::again);
  REQUIRE(contains(error, "get 'after' failed"));
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
