#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/comm/rendezvous.h"
#include "engine/comm/tcp_store.h"
#include "engine/device/device.h"
#include "engine/device/graph.h"
#include "engine/device/stream.h"
#include "test/comm/child_process.h"
#include "test/comm/operations.h"
#include "test/store/listener.h"
#include "test/support/catch.h"

// Ranks as processes, between which memory of a GPU is shared: this executable starts itself with
// the hidden test case below as one rank.

namespace dstrain {
namespace {

int number(const char* variable) { return std::stoi(std::getenv(variable)); }

void check_copies(const std::shared_ptr<Store>& store, int rank, int size) {
  const at::Device gpu(at::kCUDA, static_cast<c10::DeviceIndex>(rank));
  make_current(gpu);
  const auto open = [&](const std::string& name, Bytes bytes, bool waits_long = false) {
    auto comm = make_communicator(store, {.backend = CommBackend::nccl,
                                          .name = name,
                                          .ranks = test::all_ranks(size),
                                          .rank = rank,
                                          .copied_bytes = bytes,
                                          .waits_long = waits_long,
                                          .timeout_s = 60});
    test::expect(comm->overlaps(), "the GPUs of this host reach each other");
    return comm;
  };
  const auto one = open("in one piece", Bytes{64} << 20), several = open("in several", 1 << 20),
             long_waits = open("waits of the driver", 1 << 20, true);
  for (Communicator* comm : {one.get(), several.get(), long_waits.get()}) {
    // Below what is worth a copy, and with an end that is no whole pack of 16 bytes.
    for (const std::int64_t count : {5, 1 << 18, (1 << 20) + 3}) {
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kLong})
        test::check_operations(*comm, gpu, dtype, count);
    }
  }
  // One exchange right behind the other: a slot that is written too early would be seen.
  const auto on = at::TensorOptions(at::kBFloat16).device(gpu);
  const at::Tensor own = at::full({4 << 20}, rank + 1, on);
  at::Tensor all = at::full({size * own.numel()}, -1, on), sum = at::full_like(own, -1);
  std::vector<at::Tensor> wrong;
  for (int i = 0; i < 100; ++i) {
    at::Tensor next;
    one->all_gather(all, own, [&] { next = own + i % 5; });
    one->reduce_scatter(sum, all,
                        [&] { all.narrow(0, rank * own.numel(), own.numel()).copy_(next); });
    wrong.push_back(sum.ne(size * (rank + 1) + i % 5).any());
  }
  // The same in pieces that are acknowledged, where one rank after the other reads late.
  const at::Tensor much = at::full({64 << 20}, 1, on);
  for (int i = 0; i < 60; ++i) {
    if (i % size == rank) wrong.push_back(much.ne(1).any());
    long_waits->all_gather(all, own + i % 5);
    long_waits->reduce_scatter(sum, all);
    wrong.push_back(sum.ne(size * (rank + 1 + i % 5)).any());
    at::Tensor part = all.narrow(0, rank * own.numel(), own.numel());
    long_waits->reduce_scatter(part, all);
    long_waits->all_gather(all, part);
    for (int peer = 0; peer < size; ++peer)
      wrong.push_back(
          all.narrow(0, peer * own.numel(), own.numel()).ne(size * (peer + 1 + i % 5)).any());
  }
  for (const at::Tensor& any : wrong) test::expect(!any.item<bool>(), "the sum of all parts");
}

/// An odd number of exchanges in a CUDA graph, with others between its launches.
void check_graph(Communicator& comm, const at::Device& gpu) {
  const int rank = comm.rank(), size = comm.size();
  const auto on = at::TensorOptions(at::kBFloat16).device(gpu);
  const Stream stream = Stream::from_pool(gpu);
  const StreamScope scope(stream);
  at::Tensor own = at::full({4 << 20}, 1, on), sum = at::full_like(own, -1),
             all = at::full({size * own.numel()}, -1, on), sums = at::full_like(all, -1);
  const auto work = [&] {
    comm.all_gather(all, own);
    comm.reduce_scatter(sum, all);
    comm.all_gather(sums, sum);
    comm.settle();
  };
  work();
  Graph graph;
  const auto count_work = [&] {
    work();
    test::expect(Graph::captured_work(stream) > 0, "copies and sums are work");
  };
  graph.capture(stream, count_work, nullptr);
  std::vector<at::Tensor> wrong;
  for (int i = 0; i < 30; ++i) {
    own.fill_(rank + i % 7);
    comm.settle();
    graph.replay(stream);
    wrong.push_back(sum.ne(size * (rank + i % 7)).any());
    wrong.push_back(sums.narrow(0, 0, own.numel()).ne(size * (i % 7)).any());
    if (i % 3 != 0) continue;
    comm.all_gather(all, sum);
    wrong.push_back(all.narrow(0, 0, own.numel()).ne(size * (i % 7)).any());
  }
  for (const at::Tensor& any : wrong) test::expect(!any.item<bool>(), "what a graph exchanged");
}

TEST_CASE("a rank that copies", "[.child]") {
  if (std::getenv("COPIES_TEST_RANK") == nullptr) return;
  const int rank = number("COPIES_TEST_RANK");
  StoreOptions options{.port = number("COPIES_TEST_PORT"), .serve = rank == 0};
  if (rank == 0) options.listen_fd = number("COPIES_TEST_FD");
  const auto store = make_tcp_store(options);
  const int size = number("COPIES_TEST_SIZE");
  check_copies(store, rank, size);
  for (const Bytes copied : {Bytes{0}, Bytes{64} << 20}) {
    const auto comm = make_communicator(store, {.backend = CommBackend::nccl,
                                                .name = copied > 0 ? "graph" : "graph by NCCL",
                                                .ranks = test::all_ranks(size),
                                                .rank = rank,
                                                .copied_bytes = copied,
                                                .timeout_s = 60});
    check_graph(*comm, at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(rank)));
  }
  leave(*store, {.rank = rank, .size = size});
}

pid_t start_rank(int rank, int size, const test::Listener& listener) {
  return test::start_child("a rank that copies",
                           {{"COPIES_TEST_RANK", std::to_string(rank)},
                            {"COPIES_TEST_SIZE", std::to_string(size)},
                            {"COPIES_TEST_PORT", std::to_string(listener.port())},
                            {"COPIES_TEST_FD", std::to_string(listener.fd())}},
                           rank == 0 ? -1 : listener.fd());
}

TEST_CASE("copies between GPUs give the exact result on 2 to 4 GPUs", "[gpu][nccl]") {
  for (int size = 2; size <= std::min(4, num_gpus()); ++size) {
    CAPTURE(size);
    const test::Listener listener;
    std::vector<pid_t> ranks;
    for (int rank = 0; rank < size; ++rank) ranks.push_back(start_rank(rank, size, listener));
    for (const pid_t rank : ranks) {
      int status = -1;
      REQUIRE(::waitpid(rank, &status, 0) == rank);
      CHECK(status == 0);
    }
  }
}

}  // namespace
}  // namespace dstrain
