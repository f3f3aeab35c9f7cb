#include "test/store/store_semantics.h"

#include <chrono>
#include <thread>

#include "test/support/catch.h"

namespace dstrain::test {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

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

void check_store(Store& a, Store& b, const std::string& prefix) {
  REQUIRE_FALSE(b.try_get(prefix + "fruit").has_value());
  a.set(prefix + "fruit", std::string("pear\0tree", 9));
  REQUIRE(b.get(prefix + "fruit", milliseconds(1000)) == std::string("pear\0tree", 9));
  REQUIRE(b.get(prefix + "fruit", milliseconds(0)) == std::string("pear\0tree", 9));
  REQUIRE(b.try_get(prefix + "fruit") == std::string("pear\0tree", 9));
  a.set(prefix + "fruit", "fig");
  REQUIRE(b.try_get(prefix + "fruit") == "fig");
  REQUIRE(a.add(prefix + "count", 2) == 2);
  REQUIRE(b.add(prefix + "count", 3) == 5);
  REQUIRE(a.add(prefix + "count", -9) == -4);
  REQUIRE(a.add(prefix + "count", 0) == -4);
  REQUIRE(a.get(prefix + "count", milliseconds(1000)) == "-4");
  a.set(prefix + "given", "41");
  REQUIRE(b.add(prefix + "given", 1) == 42);
  a.set(prefix + "empty", "");
  REQUIRE(b.try_get(prefix + "empty") == "");
  const std::string large(std::size_t{3} << 20U, 'x');
  a.set(prefix + "large", large);
  REQUIRE(b.get(prefix + "large", milliseconds(10'000)) == large);
}

void check_waiting(Store& store) {
  {
    const auto start = Clock::now();
    const Error error = error_of([&] { (void)store.get("vote/7", milliseconds(300)); });
    const auto elapsed = Clock::now() - start;
    REQUIRE(error.kind() == ErrorKind::hosts);
    REQUIRE(contains(error, "key 'vote/7' did not come"));
    REQUIRE(contains(error, "within 300 ms"));
    REQUIRE(elapsed > milliseconds(290));
    REQUIRE(elapsed < milliseconds(1500));
  }
  // A thread that waits does not shut out the one that sets the key, nor one that waits for
  // another.
  std::string late;
  std::string never = "untouched";
  std::string counted;
  {
    const std::jthread first([&] { late = store.get("late", milliseconds(10'000)); });
    const std::jthread second([&] { counted = store.get("counted", milliseconds(10'000)); });
    const std::jthread third(
        [&] { never = error_of([&] { (void)store.get("never", milliseconds(600)); }).what(); });
    std::this_thread::sleep_for(milliseconds(250));
    const auto start = Clock::now();
    store.set("late", "here");
    REQUIRE(store.add("counted", 7) == 7);
    REQUIRE(Clock::now() - start < milliseconds(1000));
  }
  REQUIRE(late == "here");
  REQUIRE(counted == "7");
  REQUIRE(never.find("key 'never' did not come") != std::string::npos);
  // A wait that was given up leaves nothing that disturbs the next.
  store.set("vote/7", "yes");
  REQUIRE(store.get("vote/7", milliseconds(1000)) == "yes");
}

}  // namespace dstrain::test
