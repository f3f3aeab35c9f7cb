#include "engine/store/job_store.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <latch>
#include <random>
#include <thread>
#include <vector>

#include "engine/base/socket.h"
#include "engine/store/store_frames.h"
#include "engine/store/store_server.h"
#include "test/store/listener.h"
#include "test/store/store_semantics.h"
#include "test/support/catch.h"

namespace dstrain {
namespace {

using comm::StoreRequest;
using std::chrono::milliseconds;
using test::contains;
using test::error_of;
using test::Listener;
using Clock = std::chrono::steady_clock;
using Stores = std::vector<std::shared_ptr<Store>>;

constexpr int kAttempt = 3;
constexpr std::string_view kPurpose = "store, attempt 3";

JobSecret secret_of(std::uint8_t byte) {
  JobSecret secret{};
  secret.fill(byte);
  return secret;
}

std::shared_ptr<Store> serve(Listener& listener) {
  return make_job_store({.port = listener.port(), .serve = true, .listen_fd = listener.hand_over()},
                        secret_of(1), kAttempt);
}

std::shared_ptr<Store> join(int port, std::uint8_t secret = 1, int attempt = kAttempt,
                            milliseconds timeout = milliseconds(60'000)) {
  return make_job_store({.port = port, .timeout = timeout}, secret_of(secret), attempt);
}

std::shared_ptr<Store> join(const Listener& listener) { return join(listener.port()); }

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Memory that this process holds now.
std::int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::int64_t total = 0;
  std::int64_t resident = 0;
  file >> total >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

constexpr std::int64_t kMiB = 1 << 20;

/// Sanitizers cost time, and memory beside the program's own.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kInstrumented = 5;
#else
constexpr int kInstrumented = 1;
#endif

UniqueFd connect_raw(int port) {
  return connect_to("127.0.0.1", port, Clock::now() + std::chrono::seconds(5));
}

/// A client that knows the secret and then says what it likes.
UniqueFd connect_proven(int port) {
  UniqueFd fd = connect_raw(port);
  shake_hands(fd.get(), Handshake::Side::client, secret_of(1), kPurpose, 5000);
  return fd;
}

/// Sends as much as the other side takes; false when it has closed.
bool send_all(int fd, std::string_view bytes, milliseconds limit = milliseconds(5000)) {
  const auto deadline = Clock::now() + limit;
  while (!bytes.empty() && Clock::now() < deadline) {
    pollfd entry{.fd = fd, .events = POLLOUT, .revents = 0};
    (void)::poll(&entry, 1, 50);
    const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno != EAGAIN) return false;
    if (sent > 0) bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
  return bytes.empty();
}

/// Whether the other side closes within `limit`; what it says before does not matter.
bool is_closed(int fd, milliseconds limit) {
  const auto deadline = Clock::now() + limit;
  while (Clock::now() < deadline) {
    pollfd entry{.fd = fd, .events = POLLIN, .revents = 0};
    (void)::poll(&entry, 1, static_cast<int>(std::min<std::int64_t>(limit.count(), 20)));
    std::array<char, 4096> bytes{};
    const ssize_t count = ::recv(fd, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (count == 0 || (count < 0 && errno != EAGAIN)) return true;
  }
  return false;
}

/// Every client tells all others its number, as ranks that look for each other do. Errors end up in
/// the returned text.
std::string find_each_other(const Stores& stores, const std::string& name) {
  const std::size_t count = stores.size();
  std::vector<std::string> errors(count);
  {
    std::vector<std::jthread> ranks;
    for (std::size_t rank = 0; rank < count; ++rank) {
      ranks.emplace_back([&, rank] {
        try {
          Store& store = *stores[rank];
          store.set(name + "/from/" + std::to_string(rank), std::to_string(rank * rank));
          if (store.add(name + "/arrived", 1) == static_cast<std::int64_t>(count)) {
            store.set(name + "/complete", "yes");
          }
          (void)store.get(name + "/complete", milliseconds(30'000));
          for (const std::size_t peer : {(rank + 1) % count, (rank + count - 1) % count}) {
            const auto value =
                store.get(name + "/from/" + std::to_string(peer), milliseconds(30'000));
            if (value != std::to_string(peer * peer)) errors[rank] = "got " + value;
          }
        } catch (const std::exception& error) {
          errors[rank] = error.what();
        }
      });
    }
  }
  std::string all;
  for (const std::string& error : errors) all += error;
  return all;
}

TEST_CASE("the memory store keeps the promises of a store", "[store]") {
  const auto store = make_memory_store();
  test::check_store(*store, *store, "");
  test::check_waiting(*store);
}

TEST_CASE("the job's store keeps the promises of a store, for its server and for others",
          "[store]") {
  Listener listener;
  const auto server = serve(listener);
  const auto client = join(listener);
  test::check_store(*server, *client, "server/");
  test::check_store(*client, *server, "client/");
  const bool own = GENERATE(false, true);
  test::check_waiting(own ? *server : *client);
  REQUIRE(server->local_address() == "127.0.0.1");
}

TEST_CASE("the job's store binds the address that it is told when it is given no socket",
          "[store]") {
  const int port = listen_on("127.0.0.2", 0).port;
  const auto server = make_job_store({.address = "127.0.0.2", .port = port, .serve = true},
                                     secret_of(1), kAttempt);
  const auto client =
      make_job_store({.address = "127.0.0.2", .port = port}, secret_of(1), kAttempt);
  test::check_store(*server, *client, "");
  // And no other one.
  const Error error = error_of([&] { (void)connect_raw(port); });
  REQUIRE(contains(error, "refused"));
}

TEST_CASE("a client may come before its server", "[store]") {
  const int port = listen_on("127.0.0.1", 0).port;
  std::string got;
  std::jthread early([&] { got = join(port)->get("key", milliseconds(10'000)); });
  std::this_thread::sleep_for(milliseconds(300));
  const auto server = make_job_store({.port = port, .serve = true}, secret_of(1), kAttempt);
  server->set("key", "value");
  early.join();
  REQUIRE(got == "value");
}

TEST_CASE("a job's store that nobody serves, or whose port is taken, is an error with its address",
          "[store]") {
  int port = 0;
  {
    const Listener listener;
    port = listener.port();
    const Error error = error_of(
        [&] { (void)make_job_store({.port = port, .serve = true}, secret_of(1), kAttempt); });
    REQUIRE(error.kind() == ErrorKind::hosts);
    REQUIRE(
        contains(error, "cannot serve the store of the job on 127.0.0.1:" + std::to_string(port)));
  }
  const Error error = error_of([&] { (void)join(port, 1, kAttempt, milliseconds(700)); });
  REQUIRE(error.kind() == ErrorKind::hosts);
  REQUIRE(contains(error, "no store of the job at 127.0.0.1:" + std::to_string(port) + " within"));
  REQUIRE(contains(error, "refused"));
  const Error nowhere = error_of([&] {
    (void)make_job_store(
        {.address = "no-such-host.invalid", .port = 1, .timeout = milliseconds(700)}, secret_of(1),
        0);
  });
  REQUIRE(nowhere.kind() == ErrorKind::hosts);
  REQUIRE(contains(nowhere, "'no-such-host.invalid' stands for no address"));
}

TEST_CASE("256 clients find each other within two seconds", "[store][not_emulated]") {
  constexpr std::size_t kClients = 256;
  Listener listener;
  const auto start = Clock::now();
  Stores stores = {serve(listener)};
  stores.resize(kClients);
  {
    std::vector<std::jthread> ranks;
    for (std::size_t rank = 1; rank < kClients; ++rank) {
      ranks.emplace_back([&, rank] { stores[rank] = join(listener); });
    }
  }
  const double connected_s = seconds_since(start);
  const auto begin = Clock::now();
  REQUIRE(find_each_other(stores, "mesh").empty());
  const double exchanged_s = seconds_since(begin);
  std::printf("256 clients: %.0f ms to connect, %.0f ms to exchange\n", connected_s * 1e3,
              exchanged_s * 1e3);
  REQUIRE(connected_s + exchanged_s < 2.0 * kInstrumented);
}

TEST_CASE("the end of the server ends all waits at once, with an error that can be tried again",
          "[store]") {
  constexpr std::size_t kWaiters = 8;
  Listener listener;
  auto server = serve(listener);
  std::vector<Error> errors(kWaiters, Error(ErrorKind::internal, "none"));
  std::vector<double> ended_s(kWaiters);
  std::atomic<double> killed_s = 0;
  std::latch waiting(kWaiters);
  const auto start = Clock::now();
  {
    std::vector<std::jthread> ranks;
    for (std::size_t rank = 0; rank < kWaiters; ++rank) {
      ranks.emplace_back([&, rank] {
        const auto client = join(listener);
        waiting.count_down();
        errors[rank] = error_of([&] { (void)client->get("never", milliseconds(60'000)); });
        ended_s[rank] = seconds_since(start);
      });
    }
    waiting.wait();
    std::this_thread::sleep_for(milliseconds(100));
    killed_s = seconds_since(start);
    server.reset();
  }
  for (const Error& error : errors) {
    REQUIRE(error.kind() == ErrorKind::again);
    REQUIRE(contains(error, "get 'never' failed: rank 0 has closed the connection"));
  }
  REQUIRE(*std::max_element(ended_s.begin(), ended_s.end()) - killed_s < 0.5 * kInstrumented);
}

TEST_CASE("what was set before the server's end reaches those who wait for it", "[store]") {
  for (int round = 0; round < 20; ++round) {
    Listener listener;
    auto server = serve(listener);
    const auto client = join(listener);
    const std::string verdict(std::size_t{1} << 20U, 'v');
    std::string got;
    {
      const std::jthread waiter([&] { got = client->get("verdict", milliseconds(10'000)); });
      std::this_thread::sleep_for(milliseconds(20));
      server->set("verdict", verdict);
      server.reset();
    }
    REQUIRE(got == verdict);
  }
}

TEST_CASE("a late rank of an earlier start, and of another job, is refused at once", "[store]") {
  Listener listener;
  const auto server = serve(listener);
  const bool attempt = GENERATE(false, true);
  const auto start = Clock::now();
  const Error error = error_of([&] {
    (void)join(listener.port(), attempt ? 1 : 2, attempt ? kAttempt - 1 : kAttempt);
  });
  REQUIRE(seconds_since(start) < 2.0);
  REQUIRE(error.kind() == ErrorKind::hosts);
  REQUIRE(contains(error, "does not know the job's secret, or means another purpose"));
  test::check_store(*server, *join(listener), "");
}

TEST_CASE("a stranger is closed after its first wrong word", "[store][stranger]") {
  Listener listener;
  const auto server = serve(listener);
  const UniqueFd fd = connect_raw(listener.port());
  SECTION("another protocol") {
    REQUIRE(send_all(
        fd.get(), "GET / HTTP/1.1\r\nHost: store\r\nUser-Agent: curious\r\nAccept: */*\r\n\r\n"));
  }
  SECTION("a frame of 1 GB and what belongs to it") {
    const std::string frame = std::string("\x00\x00\x00\x40", 4) + std::string(8 * kMiB, 'x');
    const auto before = resident_bytes();
    REQUIRE_FALSE(send_all(fd.get(), frame));
    REQUIRE(resident_bytes() - before < 4 * kInstrumented * kMiB);
  }
  SECTION("bytes that were good once") {
    const UniqueFd first = connect_raw(listener.port());
    Handshake handshake(Handshake::Side::client, secret_of(1), kPurpose);
    std::string spoken = handshake.take_output();
    REQUIRE(send_all(first.get(), spoken));
    while (handshake.state() == Handshake::State::going_on) {
      std::array<char, 64> bytes{};
      const ssize_t count = ::recv(first.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
      if (count > 0) handshake.receive({bytes.data(), static_cast<std::size_t>(count)});
    }
    const std::string proof = handshake.take_output();
    const StoreRequest request{.id = 0,
                               .operation = StoreRequest::Operation::set,
                               .amount = 0,
                               .key = "stolen",
                               .value = "yes"};
    REQUIRE(send_all(first.get(), proof + encode(request)));
    REQUIRE(server->get("stolen", milliseconds(5000)) == "yes");
    server->set("stolen", "no");
    REQUIRE(send_all(fd.get(), spoken + proof + encode(request)));
  }
  REQUIRE(is_closed(fd.get(), milliseconds(2000)));
  if (const auto stolen = server->try_get("stolen")) REQUIRE(*stolen == "no");
  test::check_store(*server, *join(listener), "");
}

TEST_CASE("a connection that says nothing, or too little, is closed in time", "[store][stranger]") {
  Listener listener;
  const int port = listener.port();
  const comm::StoreServer server(UniqueFd(listener.hand_over()), secret_of(1),
                                 std::string(kPurpose), {.handshake = milliseconds(300)});
  const UniqueFd silent = connect_raw(port);
  const UniqueFd slow = connect_raw(port);
  REQUIRE(send_all(slow.get(), std::string(31, 'c')));
  const auto client = join(port);
  REQUIRE(is_closed(silent.get(), milliseconds(1500)));
  REQUIRE(is_closed(slow.get(), milliseconds(1500)));
  client->set("still", "here");  // one that has proven itself stays
}

TEST_CASE("1000 idle strangers neither stop a job nor cost it memory", "[store][stranger]") {
  rlimit limit{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &limit) == 0);
  limit.rlim_cur = limit.rlim_max;
  (void)::setrlimit(RLIMIT_NOFILE, &limit);
  const std::size_t idle = std::min<std::size_t>(1000, limit.rlim_cur - 600);
  Listener listener;
  Stores stores = {serve(listener), join(listener), join(listener), join(listener)};
  REQUIRE(find_each_other(stores, "before").empty());
  const auto before = resident_bytes();
  std::vector<UniqueFd> strangers;
  for (std::size_t i = 0; i < idle; ++i) strangers.push_back(connect_raw(listener.port()));
  const auto start = Clock::now();
  REQUIRE(find_each_other(stores, "beside").empty());
  const double exchanged_s = seconds_since(start);
  stores.push_back(join(listener));  // behind all of them
  const double joined_s = seconds_since(start) - exchanged_s;
  REQUIRE(find_each_other(stores, "after").empty());
  const auto open = std::count_if(strangers.begin(), strangers.end(), [](const UniqueFd& fd) {
    return !is_closed(fd.get(), milliseconds(1));
  });
  std::printf(
      "%zu strangers: exchange %.1f ms, a rank joins in %.0f ms, %ld of them left, "
      "%.1f MiB\n",
      idle, exchanged_s * 1e3, joined_s * 1e3, static_cast<long>(open),
      static_cast<double>(resident_bytes() - before) / kMiB);
  REQUIRE(exchanged_s < 1.0 * kInstrumented);
  REQUIRE(joined_s < 5.0 * kInstrumented);
  REQUIRE(open <= 256);
  REQUIRE(resident_bytes() - before < 16 * kInstrumented * kMiB);
}

TEST_CASE("a client's wrong frames end its connection and nothing else", "[store][stranger]") {
  Listener listener;
  const auto server = serve(listener);
  const auto before = resident_bytes();
  SECTION("1 GB announced") {
    const UniqueFd fd = connect_proven(listener.port());
    REQUIRE(send_all(fd.get(), std::string("\x00\x00\x00\x40", 4) + "some bytes"));
    REQUIRE(is_closed(fd.get(), milliseconds(2000)));
  }
  SECTION("a key longer than its frame") {
    const UniqueFd fd = connect_proven(listener.port());
    std::string frame = encode(StoreRequest{.id = 0,
                                            .operation = StoreRequest::Operation::set,
                                            .amount = 0,
                                            .key = "key",
                                            .value = "value"});
    frame[4 + 4 + 1 + 8] = 60;
    REQUIRE(send_all(fd.get(), frame));
    REQUIRE(is_closed(fd.get(), milliseconds(2000)));
  }
  SECTION("noise") {
    std::mt19937 random(7);
    for (int round = 0; round < 200; ++round) {
      const UniqueFd fd = connect_proven(listener.port());
      std::string bytes(1 + random() % 300, '\0');
      for (char& byte : bytes) byte = static_cast<char>(random() % 256);
      // Half of them with a length that fits, so that their inside is looked at.
      if (round % 2 == 0) {
        const auto size = static_cast<char>(random() % 40);
        bytes = std::string({size, 0, 0, 0}) + bytes;
      }
      (void)send_all(fd.get(), bytes);
    }
  }
  test::check_store(*server, *join(listener), "");
  REQUIRE(resident_bytes() - before < 64 * kInstrumented * kMiB);
}

TEST_CASE("a client that does not read its answers costs a bounded amount", "[store][stranger]") {
  Listener listener;
  const auto server = serve(listener);
  server->set("large", std::string(comm::kMaxValueBytes, 'x'));
  const UniqueFd fd = connect_proven(listener.port());
  const auto before = resident_bytes();
  std::string questions;
  for (std::uint32_t id = 0; id < 10'000; ++id) {
    questions += encode(StoreRequest{.id = id,
                                     .operation = StoreRequest::Operation::try_get,
                                     .amount = 0,
                                     .key = "large",
                                     .value = {}});
  }
  (void)send_all(fd.get(), questions, milliseconds(1000));
  test::check_store(*server, *join(listener), "");
  REQUIRE(resident_bytes() - before < 64 * kInstrumented * kMiB);
}

TEST_CASE("a store that is full says so, and keeps what it has", "[store]") {
  Listener listener;
  const int port = listener.port();
  const comm::StoreServer server(UniqueFd(listener.hand_over()), secret_of(1),
                                 std::string(kPurpose), {.store_bytes = kMiB});
  const auto client = join(port);
  client->set("half", std::string(kMiB / 2, 'x'));
  const Error error = error_of([&] { client->set("rest", std::string(kMiB / 2, 'x')); });
  REQUIRE(error.kind() == ErrorKind::internal);
  REQUIRE(contains(error, "set 'rest' failed: the store is full"));
  REQUIRE_FALSE(client->try_get("rest").has_value());
  client->set("half", "");
  client->set("rest", std::string(kMiB / 2, 'x'));
}

TEST_CASE("adding to a text is an error, not a guess", "[store]") {
  Listener listener;
  const auto store = serve(listener);
  store->set("word", "three");
  store->set("limit", "9223372036854775807");
  const std::string key = GENERATE("word", "limit");
  const Error error = error_of([&] { (void)store->add(key, 1); });
  REQUIRE(error.kind() == ErrorKind::internal);
  REQUIRE(contains(error, "add '" + key + "' failed"));
  REQUIRE(
      contains(error_of([&] { store->set(std::string(5000, 'k'), ""); }), "a key of 5000 bytes"));
}

}  // namespace
}  // namespace dstrain
