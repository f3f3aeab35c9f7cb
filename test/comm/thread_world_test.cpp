#include "engine/comm/thread_world.h"

#include <ATen/ops/zeros.h>

#include <atomic>
#include <stdexcept>

#include "engine/base/error.h"
#include "test/comm/operations.h"
#include "test/support/catch.h"

namespace dstrain {
namespace {

CommunicatorOptions pair_of(int rank) {
  return {.name = "pair", .ranks = {0, 1}, .rank = rank, .timeout_s = 20};
}

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

TEST_CASE("a rank that throws wakes the others and its exception is the one seen", "[comm]") {
  ThreadWorld world(3);
  std::atomic<int> woken = 0;
  const auto body = [&](int rank) {
    const auto comm =
        world.communicator({.name = "all", .ranks = {0, 1, 2}, .rank = rank, .timeout_s = 20});
    comm->barrier();
    if (rank == 1) throw std::logic_error("rank 1 has had enough");
    at::Tensor x = at::zeros({2});
    try {
      comm->all_reduce(x, ReduceOp::sum);
    } catch (const Error& error) {
      test::expect(error.kind() == ErrorKind::again, error.what());
      ++woken;
      throw;
    }
  };
  REQUIRE_THROWS_WITH(world.run(body), "rank 1 has had enough");
  REQUIRE(woken == 2);
}

TEST_CASE("a world runs again after a failure", "[comm]") {
  ThreadWorld world(2);
  REQUIRE_THROWS(world.run([&](int rank) {
    const auto comm = world.communicator(pair_of(rank));
    if (rank == 0) throw std::logic_error("once");
    comm->barrier();
  }));
  world.run([&](int rank) {
    test::check_operations(*world.communicator(pair_of(rank)), at::kCPU, at::kFloat, 3);
  });
}

TEST_CASE("a rank that returns early ends the wait of the others", "[comm]") {
  ThreadWorld world(2);
  const auto body = [&](int rank) {
    const auto comm = world.communicator(pair_of(rank));
    at::Tensor x = at::zeros({2});
    if (rank == 1) comm->receive(x, 0);
  };
  REQUIRE_THROWS_WITH(world.run(body),
                      "receive (group 'pair', rank 1 of 2) failed: global rank 0 has ended");
}

TEST_CASE("ranks that call different operations are told so", "[comm]") {
  ThreadWorld world(2);
  const auto body = [&](int rank) {
    const auto comm = world.communicator(pair_of(rank));
    at::Tensor x = at::zeros({2 + rank});
    comm->all_reduce(x, ReduceOp::sum);
  };
  const std::string message = message_of([&] { world.run(body); });
  REQUIRE(message.find("all_reduce(sum) of 2 Float") != std::string::npos);
  REQUIRE(message.find("all_reduce(sum) of 3 Float") != std::string::npos);
}

TEST_CASE("a group's name can be used once", "[comm]") {
  ThreadWorld world(1);
  const auto body = [&](int rank) {
    const CommunicatorOptions options{.name = "once", .ranks = {0}, .rank = rank};
    const auto first = world.communicator(options);
    const auto second = world.communicator(options);
  };
  const std::string message = message_of([&] { world.run(body); });
  REQUIRE(message.find("the name of group 'once' is used twice") != std::string::npos);
}

}  // namespace
}  // namespace dstrain
