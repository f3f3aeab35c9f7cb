#include "engine/comm/communicator.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>

#include "engine/base/error.h"
#include "engine/comm/forwarding.h"
#include "engine/comm/skipping.h"
#include "engine/comm/thread_world.h"
#include "test/comm/operations.h"
#include "test/support/catch.h"

namespace dstrain {
namespace {

using test::all_ranks;
using test::expect;

/// Runs `body` on every rank of a world with a communicator over all of them: of threads, or Gloo
/// between threads.
void with_world(const std::string& backend, int size,
                const std::function<void(Communicator&)>& body) {
  ThreadWorld world(size);
  world.run([&](int rank) {
    const CommunicatorOptions options{.backend = CommBackend::gloo,
                                      .name = "all",
                                      .ranks = all_ranks(size),
                                      .rank = rank,
                                      .timeout_s = 30};
    body(backend == "gloo" ? *make_communicator(world.store(), options)
                           : *world.communicator(options));
  });
}

TEST_CASE("every operation gives the exact result, at every size and count", "[comm]") {
  const std::string backend = GENERATE("threads", "gloo");
  const int size = GENERATE(1, 2, 3, 4);
  CAPTURE(backend, size);
  with_world(backend, size, [](Communicator& comm) {
    for (const std::int64_t count : {0, 1, 5, 1000}) {
      for (const at::ScalarType dtype :
           {at::kFloat, at::kBFloat16, at::kHalf, at::kLong, at::kByte}) {
        test::check_operations(comm, at::kCPU, dtype, count);
      }
    }
  });
}

TEST_CASE("sums are bitwise the same on every rank and in every run", "[comm]") {
  const std::string backend = GENERATE("threads", "gloo");
  const int size = GENERATE(2, 3, 4);
  CAPTURE(backend, size);
  const std::int64_t count = 4 * 3 * 10007;
  std::vector<at::Tensor> results;
  std::mutex mutex;
  for (int run = 0; run < 3; ++run) {
    with_world(backend, size, [&](Communicator& comm) {
      const at::Tensor input = test::uneven(count, static_cast<std::uint64_t>(comm.rank()));
      at::Tensor sum = input.clone();
      comm.all_reduce(sum, ReduceOp::sum);
      at::Tensor part = at::empty({count / size}, at::kFloat);
      comm.reduce_scatter(part, input);
      at::Tensor parts = at::empty({count}, at::kFloat);
      comm.all_gather(parts, part);
      const std::lock_guard lock(mutex);
      results.push_back(sum);
      results.push_back(parts);
    });
  }
  for (std::size_t i = 2; i < results.size(); i += 2) {
    REQUIRE(results[i].equal(results[0]));
    REQUIRE(results[i + 1].equal(results[1]));
  }
}

TEST_CASE("groups of some ranks use their own indices and do not disturb each other", "[comm]") {
  const std::string backend = GENERATE("threads", "gloo");
  CAPTURE(backend);
  ThreadWorld world(4);
  world.run([&](int rank) {
    const CommunicatorOptions options{
        .name = rank % 2 == 0 ? "even" : "odd",
        .ranks = rank % 2 == 0 ? std::vector{2, 0} : std::vector{1, 3},
        .rank = rank,
        .timeout_s = 30};
    const auto comm =
        backend == "gloo" ? make_communicator(world.store(), options) : world.communicator(options);
    expect(comm->size() == 2 && comm->rank() == (rank == 0 || rank == 3 ? 1 : 0),
           fmt::format("rank {} has index {}", rank, comm->rank()));
    test::check_operations(*comm, at::kCPU, at::kFloat, 17);
  });
}

TEST_CASE("shapes that do not fit are our own fault and are named", "[comm]") {
  const std::string backend = GENERATE("threads", "gloo");
  CAPTURE(backend);
  with_world(backend, 2, [](Communicator& comm) {
    at::Tensor three = at::zeros({3});
    at::Tensor two = at::zeros({2});
    const auto message = [&](auto&& call) -> std::string {
      try {
        call();
      } catch (const Error& error) {
        return error.kind() == ErrorKind::internal ? error.what() : "another kind";
      }
      return "no error";
    };
    const auto has = [](const std::string& text, const std::string& part) {
      expect(text.find(part) != std::string::npos, text);
    };
    has(message([&] { comm.all_gather(three, two); }), "all_gather: 3 elements are not 2 times 2");
    has(message([&] { comm.reduce_scatter(two, three); }), "3 elements are not 2 times 2");
    has(message([&] { comm.all_to_all(three, three); }), "in 2 equal parts");
    at::Tensor matrix = at::zeros({3, 2});
    has(message([&] { comm.all_to_all(matrix, matrix, {{2, 2}, {2, 1}}); }),
        "in parts of 2, 2 and 2, 1 rows");
    has(message([&] { comm.broadcast(two, 2); }), "broadcast: index 2 in a group of 2");
    has(message([&] { comm.send(two, comm.rank()); }), "with itself");
    at::Tensor columns = at::zeros({2, 3}).t();
    has(message([&] { comm.all_reduce(columns, ReduceOp::sum); }), "not contiguous");
    comm.barrier();
  });
}

TEST_CASE("a rank that never comes is an error that counts those who did", "[comm]") {
  const auto store = make_memory_store();
  const CommunicatorOptions options{
      .name = "lonely", .ranks = {0, 1, 2}, .rank = 1, .timeout_s = 0.2};
  try {
    (void)make_communicator(store, options);
    FAIL("no error");
  } catch (const Error& error) {
    REQUIRE(error.kind() == ErrorKind::hosts);
    REQUIRE(std::string(error.what()) ==
            "group 'lonely', rank 1 of 3: only 1 of 3 ranks came within 200 ms");
  }
}

TEST_CASE("a silent peer ends a Gloo call after the timeout", "[comm]") {
  ThreadWorld world(2);
  world.run([&](int rank) {
    const auto comm = make_communicator(
        world.store(), {.name = "silent", .ranks = {0, 1}, .rank = rank, .timeout_s = 0.5});
    at::Tensor x = at::zeros({3});
    if (rank == 0) {
      try {
        comm->receive(x, 1);
        expect(false, "no error");
      } catch (const Error& error) {
        expect(error.kind() == ErrorKind::again, error.what());
        expect(
            std::string(error.what()).starts_with("receive (group 'silent', rank 0 of 2) failed: "),
            error.what());
      }
      world.store()->set("done", "yes");
    } else {
      (void)world.store()->get("done", std::chrono::seconds(20));
    }
  });
}

TEST_CASE("collectives that are skipped leave outputs as they are, and do the work meanwhile",
          "[comm]") {
  with_world("threads", 2, [](Communicator& plain) {
    const auto skips = std::make_shared<std::atomic<bool>>(true);
    const auto comm = comm::make_skipping(std::make_unique<comm::Forwarding>(plain), skips);
    at::Tensor one = at::full({2}, 7), whole = at::full({4}, 7);
    const at::Tensor own = at::full({2}, 1), all = at::full({4}, 1);
    const auto call_all = [&] {
      int done = 0;
      comm->all_reduce(one, ReduceOp::sum);
      comm->broadcast(one, 0);
      comm->reduce_scatter(one, all);
      comm->reduce_scatter(one, all, [&] { ++done; });
      comm->all_gather(whole, own);
      comm->all_gather(whole, own, [&] { ++done; });
      comm->all_to_all(whole, all);
      at::Tensor rows = whole.view({4, 1});
      comm->all_to_all(rows, all.view({4, 1}), {.sent = {2, 2}, .received = {2, 2}});
      return done;
    };
    // One rank alone would wait for the other.
    if (comm->rank() == 0) {
      expect(call_all() == 2, "work that goes on meanwhile");
      expect(at::equal(one, at::full({2}, 7)) && at::equal(whole, at::full({4}, 7)), "outputs");
    }
    comm->barrier();
    *skips = false;
    expect(call_all() == 2, "work that goes on meanwhile");
    expect(at::equal(one, at::full({2}, 2)) && at::equal(whole, all), "sums and parts");
  });
}

TEST_CASE("the counter counts calls, full buffers and time per operation", "[comm]") {
  with_world("threads", 2, [](Communicator& plain) {
    const auto comm = make_counting(std::make_unique<comm::Forwarding>(plain), {});
    expect(comm->counts().empty(), "counts before the first call");
    RankRecordFile record = RankRecordFile::anonymous();
    comm->watch(record);
    test::check_operations(*comm, at::kCPU, at::kFloat, 5);
    const auto entry = [&](const std::string& operation) {
      for (const CallCount& count : comm->counts()) {
        if (count.operation == operation) return count;
      }
      return CallCount{};
    };
    const auto is = [&](const std::string& operation, std::int64_t calls, Bytes bytes) {
      const CallCount count = entry(operation);
      expect(count.calls == calls && count.bytes == bytes && count.host_s >= 0,
             fmt::format("{}: {} calls, {} B", operation, count.calls, count.bytes));
    };
    is("all_reduce", 2, 2 * 20);
    is("all_gather", 3, 3 * 40);
    is("reduce_scatter", 3, 3 * 40);
    is("broadcast", 2, 2 * 20);
    const Bytes rows_sent = comm->rank() == 0 ? 2 : 4;
    is("all_to_all", 3, 40 + 20 * rows_sent);
    is("send", 1, 20);
    is("receive", 1, 20);
    is("barrier", 1, 0);
    // What a hang is told apart by: all of them entered and left.
    std::int64_t calls = 0;
    for (const CallCount& count : comm->counts()) calls += count.calls;
    expect(record.get().collectives == calls && record.get().collectives_left == calls,
           fmt::format("{} collectives in the record, {} calls", record.get().collectives.load(),
                       calls));
    expect(record.get().waited_ns > 0, "no time in collectives");
  });
}

}  // namespace
}  // namespace dstrain
