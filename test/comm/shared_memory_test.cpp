#include "engine/comm/shared_memory.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <fmt/format.h>

#include <cstring>
#include <functional>
#include <stdexcept>

#include "engine/base/error.h"
#include "engine/comm/thread_world.h"
#include "test/comm/operations.h"
#include "test/support/catch.h"

namespace dstrain {
namespace {

using test::expect;

void with_memory(int size, const std::function<void(comm::SharedMemory&, int)>& body) {
  ThreadWorld world(size);
  world.run([&](int rank) {
    const auto memory = comm::SharedMemory::open(
        *world.store(), {.name = "all", .rank = rank, .size = size, .timeout_s = 30});
    expect(memory != nullptr, "no shared memory");
    body(*memory, rank);
  });
}

/// What the call throws; empty: nothing.
std::string thrown_by(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return {};
}

TEST_CASE("what ranks write before they meet all read behind it, turn by turn", "[comm]") {
  const int size = GENERATE(2, 4);
  CAPTURE(size);
  with_memory(size, [&](comm::SharedMemory& memory, int rank) {
    for (int turn = 0; turn < 1000; ++turn) {
      const int value = turn * size + rank;
      std::memcpy(memory.slot(rank), &value, sizeof value);
      memory.meet(7);
      for (int other = 0; other < size; ++other) {
        int read = -1;
        std::memcpy(&read, memory.slot(other), sizeof read);
        expect(read == turn * size + other, fmt::format("turn {}: {}", turn, read));
      }
      memory.turn();
    }
  });
}

TEST_CASE("a rank that leaves ends the waits of the others, one that calls another operation too",
          "[comm]") {
  with_memory(3, [](comm::SharedMemory& memory, int rank) {
    if (rank == 2) return;
    expect(thrown_by([&] { memory.meet(1); }) == "a rank has ended", "no error");
  });
  with_memory(2, [](comm::SharedMemory& memory, int rank) {
    const std::string text = thrown_by([&] { memory.meet(static_cast<std::uint64_t>(rank)); });
    expect(text.find("calls another operation") != std::string::npos, text);
  });
}

TEST_CASE("collectives through shared memory have the bits that Gloo has", "[comm]") {
  const int size = GENERATE(2, 3, 4);
  // In one piece; in several, whose last is short; less than the ranks are.
  const std::int64_t each = GENERATE(1, 10007, 300011);
  CAPTURE(size, each);
  ThreadWorld world(size);
  world.run([&](int rank) {
    const auto gloo = comm::make_gloo(
        world.store(), {.name = "gloo", .rank = rank, .size = size, .timeout_s = 30});
    const auto shared = make_communicator(
        world.store(),
        {.name = "shared", .ranks = test::all_ranks(size), .rank = rank, .timeout_s = 30});
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      const at::Tensor input = test::uneven(size * each, static_cast<std::uint64_t>(rank)).to(type);
      const auto results = [&](Communicator& ranks) {
        at::Tensor sum = input.clone(), part = at::empty({each}, type),
                   all = at::empty({size * each}, type);
        ranks.all_reduce(sum, ReduceOp::sum);
        ranks.reduce_scatter(part, input);
        ranks.all_gather(all, part);
        return std::vector{sum, part, all};
      };
      const std::vector<at::Tensor> wanted = results(*gloo), found = results(*shared);
      for (std::size_t i = 0; i < wanted.size(); ++i)
        expect(at::equal(found[i], wanted[i]), fmt::format("result {} has other bits", i));
    }
  });
}

}  // namespace
}  // namespace dstrain
