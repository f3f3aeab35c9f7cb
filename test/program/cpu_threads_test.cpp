#include "engine/program/cpu_threads.h"

#include "test/program/models.h"
#include "test/support/catch.h"

namespace dstrain {
namespace {

/// Milliseconds of each block on one thread, all of them of products.
test::Case case_of(const std::vector<double>& blocks_ms) {
  test::Case c = test::make_case(0, 1, 1, static_cast<int>(blocks_ms.size()), {});
  for (std::size_t b = 0; b < blocks_ms.size(); ++b)
    c.cost.blocks[b].forward_flops = 1e-3 * blocks_ms[b] * cpu().flops_per_s;
  return c;
}

/// With eight layers in a block.
int threads_for(const std::vector<double>& blocks_ms) {
  test::Case c = case_of(blocks_ms);
  for (BlockCost& block : c.cost.blocks) block.layers.resize(8);
  return useful_threads(c.layout, c.cost).max;
}

}  // namespace

TEST_CASE("the median block says how many threads a rank on the CPU is worth", "[program]") {
  // The layers of recipes/quickstart.yaml take half a millisecond, whatever embedding and head do.
  CHECK(threads_for({0.01, 0.5, 0.5, 0.5, 0.5, 900}) == 1);
  CHECK(threads_for({0, 2.2, 2.2, 2.2, 0}) == 1);
  CHECK(threads_for({0, 2.3, 2.3, 2.3, 0}) == 2);
  CHECK(threads_for({0, 112.1, 112.1, 112.1, 0}) == 100);
  CHECK(threads_for({1e9}) == 1024);
  CHECK(useful_threads({}, {}).max == 1);
}

TEST_CASE("blocks of images wake threads in each of their kernels", "[program]") {
  test::Case c = case_of({1});
  c.cost.blocks[0].forward_kernels = {
      {.products = 9e-3 * cpu().conv_flops_per_s, .launches = 10},
      {.bytes = static_cast<Bytes>(3.1e-3 * cpu().memory_bytes_per_s), .launches = 20}};
  const UsefulThreads useful = useful_threads(c.layout, c.cost);
  CHECK(useful.block_s == Approx(12.1e-3));
  CHECK(useful.wake_s == Approx(6e-3));
  CHECK(useful.max == 2);
}

TEST_CASE("a rank that uses fewer threads than it is given says how many and why", "[program]") {
  CHECK(fewer_threads_text({.block_s = 0.507e-3, .wake_s = 1.12e-3, .max = 1}, 8) ==
        "threads: 1 of 8, as the forward of the median block is planned with 0.51 ms on one "
        "thread, and each more wakes up for 1.1 ms of it");
}

TEST_CASE("a CPU with more threads is planned faster for large blocks and slower for small ones",
          "[program]") {
  test::Case c = test::make_case(0, 1, 1, 3, {});
  for (BlockCost& block : c.cost.blocks) block.layers.resize(8);
  const auto step_s = [&](double block_ms, int threads) {
    for (BlockCost& block : c.cost.blocks)
      block.forward_flops = 1e-3 * block_ms * cpu().flops_per_s;
    Machine machine = cpu();
    machine.threads = threads;
    return simulate(training_program(c.layout, c.cost, c.options), c.layout, c.cost, machine)
        .step_s;
  };
  CHECK(step_s(50, 2) < 0.6 * step_s(50, 1));
  CHECK(step_s(0.5, 2) > 1.4 * step_s(0.5, 1));
}

namespace {

/// A host of so many cores and ranks, whose ranks have so many threads each.
Machine host(int cores, int ranks, int threads) {
  Machine machine = cpu();
  machine.cores = cores;
  machine.ranks_per_node = ranks;
  machine.threads = threads;
  return machine;
}

}  // namespace

TEST_CASE("ranks that are more than the cores of their host take turns", "[program]") {
  const auto rates = [](const Machine& machine, int ranks) {
    const test::Case c = test::make_case(2, ranks, 1, 3, {});
    return rank_rates(machine, c.layout, c.cost);
  };
  const auto rate = [&](int threads, int ranks, int local) {
    return rates(host(4, local, threads), ranks).flops_per_s / cpu().flops_per_s;
  };
  CHECK(rate(1, 4, 4) == Approx(1));
  CHECK(rate(1, 8, 8) == Approx(0.5));
  CHECK(rate(2, 4, 4) == Approx(1));
  CHECK(rate(1, 8, 4) == Approx(1));  // on two hosts
  CHECK(rates(cpu(), 2).layer_s == cpu().layer_s);
}

TEST_CASE("a rank has its part of the cores of its host where its blocks are worth them",
          "[program]") {
  const auto threads = [](double block_ms, int cores, int local, int ranks) {
    test::Case c = test::make_case(2, ranks, 1, 3, {});
    for (BlockCost& block : c.cost.blocks) {
      block.forward_flops = 1e-3 * block_ms * cpu().flops_per_s;
      block.layers.resize(8);
    }
    return with_threads(host(cores, local, 0), c.layout, c.cost).threads;
  };
  CHECK(threads(50, 8, 2, 2) == 4);
  CHECK(threads(50, 8, 2, 1) == 8);  // one rank is all there is
  CHECK(threads(50, 2, 4, 4) == 1);
  CHECK(threads(0.5, 8, 2, 2) == 1);
  CHECK(with_threads(host(8, 2, 3), {}, {}).threads == 3);
}

TEST_CASE("a plan says how many ranks of a host share which cores", "[program]") {
  CHECK(hosts_text(host(2, 4, 1), 4) == "1, whose 4 ranks share 2 cores, built in");
  CHECK(hosts_text(host(2, 4, 1), 2) == "1, with 2 ranks and 2 cores, built in");
  CHECK(hosts_text(host(1, 1, 1), 3) == "3, each with 1 rank and 1 core, built in");
  CHECK(hosts_text(host(4, 2, 4), 4) == "2, whose 2 ranks share 4 cores, built in");
}

TEST_CASE("a rank on the CPU exchanges and computes one after the other, by the host's memory",
          "[program]") {
  const test::Case c = test::make_case(2, 2, 1, 3, {});
  const Program program = training_program(c.layout, c.cost, c.options);
  Machine machine = cpu();
  const auto step = [&] { return simulate(program, c.layout, c.cost, machine); };
  const double before = step().step_s;
  int calls = 0;
  for (const CollectiveUse& use : step().collectives) calls += use.calls;
  REQUIRE(calls > 3);
  machine.shared_latency_s += 1e-3;
  CHECK(step().step_s == Approx(before + 1e-3 * calls));
  // Gloo takes nothing of what goes through memory.
  machine.collective_latency_s = 1;
  CHECK(step().step_s == Approx(before + 1e-3 * calls));
  machine.ranks_per_node = 1;
  CHECK(step().step_s > 1);
}

TEST_CASE("nor does a block that memory bounds run beside a collective", "[program]") {
  const test::Case c = test::make_case(3, 2, 1, 3, {});
  const Program program = training_program(c.layout, c.cost, c.options);
  Machine machine = cpu();
  machine.memory_bytes_per_s = 1e6;
  int calls = 0;
  const auto blocks_s = [&] {
    const Simulation step = simulate(program, c.layout, c.cost, machine);
    double first = 0, last = 0;
    for (std::size_t a = 0; a < program.actions.size(); ++a) {
      if (program.actions[a].kind == ActionKind::forward && program.actions[a].block == 0)
        first = step.action_start_s[a];
      if (program.actions[a].kind == ActionKind::backward) last = step.action_end_s[a];
    }
    calls = 0;
    for (std::size_t a = 0; a < program.actions.size(); ++a) {
      calls += !program.actions[a].comm.empty() && step.action_start_s[a] >= first &&
               step.action_end_s[a] <= last;
    }
    return last - first;
  };
  const double before = blocks_s();
  REQUIRE(calls >= 3);
  machine.shared_latency_s += 1e-3;
  CHECK(blocks_s() == Approx(before + 1e-3 * calls));
}

}  // namespace dstrain
