#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <thread>

#include "engine/base/error.h"
#include "engine/comm/communicator.h"
#include "engine/comm/thread_world.h"
#include "engine/device/device.h"
#include "engine/device/stream.h"
#include "test/comm/operations.h"
#include "test/support/catch.h"

namespace dstrain {
namespace {

using test::expect;

c10::Device gpu(int index) { return {c10::kCUDA, static_cast<c10::DeviceIndex>(index)}; }

CommunicatorOptions nccl(const std::string& name, int size, int rank) {
  return {.backend = CommBackend::nccl,
          .name = name,
          .ranks = test::all_ranks(size),
          .rank = rank,
          .timeout_s = 60};
}

/// Runs `body(rank, world)` with one thread per GPU, each with its GPU current.
void on_gpus(int size, const std::function<void(int, ThreadWorld&)>& body) {
  ThreadWorld world(size);
  world.run([&](int rank) {
    make_current(gpu(rank));
    body(rank, world);
  });
}

std::vector<int> sizes() {
  std::vector<int> result;
  for (int size = 1; size <= std::min(4, num_gpus()); ++size) result.push_back(size);
  return result;
}

TEST_CASE("ranks meet by several ids, as those of large groups do", "[gpu][nccl]") {
  const std::string ranks_per_id = GENERATE("1", "2", "3");
  CAPTURE(ranks_per_id);
  ::setenv("DSTRAIN_NCCL_RANKS_PER_ID", ranks_per_id.c_str(), 1);
  for (const int size : sizes()) {
    CAPTURE(size);
    on_gpus(size, [&](int rank, ThreadWorld& world) {
      const auto comm = make_communicator(world.store(), nccl("several", size, rank));
      test::check_operations(*comm, gpu(rank), at::kFloat, 1000);
    });
  }
  ::setenv("DSTRAIN_NCCL_RANKS_PER_ID", "none", 1);
  if (num_gpus() > 1) {
    on_gpus(2, [&](int rank, ThreadWorld& world) {
      CHECK_THROWS_WITH(make_communicator(world.store(), nccl("wrong", 2, rank)),
                        Catch::Contains("DSTRAIN_NCCL_RANKS_PER_ID: 'none'"));
    });
  }
  ::unsetenv("DSTRAIN_NCCL_RANKS_PER_ID");
}

TEST_CASE("every NCCL operation gives the exact result on 1 to 4 GPUs", "[gpu][nccl]") {
  for (const int size : sizes()) {
    CAPTURE(size);
    on_gpus(size, [&](int rank, ThreadWorld& world) {
      const auto comm = make_communicator(world.store(), nccl("all", size, rank));
      for (const std::int64_t count : {0, 1, 5, 1000, 1 << 18}) {
        for (const at::ScalarType dtype :
             {at::kFloat, at::kBFloat16, at::kHalf, at::kLong, at::kByte}) {
          test::check_operations(*comm, gpu(rank), dtype, count);
        }
      }
    });
  }
}

TEST_CASE("NCCL sums are bitwise the same in every run", "[gpu][nccl]") {
  const int size = sizes().back();
  std::vector<at::Tensor> results;
  for (int run = 0; run < 3; ++run) {
    on_gpus(size, [&](int rank, ThreadWorld& world) {
      const auto comm = make_communicator(world.store(), nccl("all", size, rank));
      at::Tensor x = test::uneven(1 << 20, static_cast<std::uint64_t>(rank)).to(gpu(rank));
      comm->all_reduce(x, ReduceOp::sum);
      if (rank == 0) results.push_back(x.cpu());
    });
  }
  REQUIRE(results.at(1).equal(results.at(0)));
  REQUIRE(results.at(2).equal(results.at(0)));
}

TEST_CASE("two groups work at once on two streams", "[gpu][nccl]") {
  const int size = sizes().back();
  on_gpus(size, [&](int rank, ThreadWorld& world) {
    const c10::Device device = gpu(rank);
    CommunicatorOptions few_blocks = nccl("reduce", size, rank);
    few_blocks.max_ctas = 4;
    const auto gather = make_communicator(world.store(), nccl("gather", size, rank));
    const auto reduce = make_communicator(world.store(), few_blocks);
    const Stream gather_lane = Stream::from_pool(device, StreamPriority::high);
    const Stream reduce_lane = Stream::from_pool(device);
    const std::int64_t count = 1 << 20;
    const auto options = at::TensorOptions(at::kFloat).device(device);
    const at::Tensor part = at::full({count}, rank + 1, options);
    at::Tensor whole = at::full({size * count}, -1, options);
    at::Tensor sum = at::full({count}, rank + 1, options);
    synchronize(device);
    const int rounds = 20;
    for (int round = 0; round < rounds; ++round) {
      {
        const StreamScope scope(gather_lane);
        gather->all_gather(whole, part);
      }
      {
        const StreamScope scope(reduce_lane);
        reduce->all_reduce(sum, ReduceOp::max);
      }
    }
    gather_lane.synchronize();
    reduce_lane.synchronize();
    for (int peer = 0; peer < size; ++peer) {
      expect(whole.narrow(0, peer * count, count).equal(at::full({count}, peer + 1, options)),
             fmt::format("part {} on rank {}", peer, rank));
    }
    expect(sum.equal(at::full({count}, size, options)), fmt::format("maximum on rank {}", rank));
  });
}

TEST_CASE("a silent peer ends a barrier after the timeout, and the group stays closed",
          "[gpu][nccl]") {
  if (num_gpus() < 2) return;
  on_gpus(2, [&](int rank, ThreadWorld& world) {
    CommunicatorOptions options = nccl("silent", 2, rank);
    const auto warm = make_communicator(world.store(), nccl("warm", 2, rank));
    warm->barrier();
    options.timeout_s = 5;
    const auto comm = make_communicator(world.store(), options);
    comm->barrier();
    if (rank == 1) {
      (void)world.store()->get("done", std::chrono::seconds(60));
      return;
    }
    for (const std::string reason : {"no end within 5.0 s", "an earlier call"}) {
      try {
        comm->barrier();
        expect(false, "no error");
      } catch (const Error& error) {
        const std::string text = error.what();
        expect(error.kind() == ErrorKind::again && text.find(reason) != std::string::npos &&
                   text.find("(group 'silent', rank 0 of 2)") != std::string::npos,
               text);
      }
    }
    world.store()->set("done", "yes");
  });
}

TEST_CASE("NVLink multicast is off unless the environment asks for it", "[gpu][nccl]") {
  if (num_gpus() < 2) return;
  on_gpus(2, [&](int rank, ThreadWorld& world) {
    (void)make_communicator(world.store(), nccl("all", 2, rank));
  });
  REQUIRE(std::getenv("NCCL_NVLS_ENABLE") != nullptr);
  REQUIRE(std::string(std::getenv("NCCL_NVLS_ENABLE")) == "0");
}

}  // namespace
}  // namespace dstrain
