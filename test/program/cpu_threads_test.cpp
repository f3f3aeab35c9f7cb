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
    return simulate(training_program(c.layout, c.cost, c.options), c.layout, c.cost,
                    on_threads(cpu(), threads))
        .step_s;
  };
  CHECK(step_s(50, 2) < 0.6 * step_s(50, 1));
  CHECK(step_s(0.5, 2) > 1.4 * step_s(0.5, 1));
  CHECK(step_s(5, 1) == step_s(5, 0));
}

TEST_CASE("ranks that are more than the cores of their host take turns", "[program]") {
  const auto rate = [](int threads, int ranks, int local) {
    Machine machine = cpu();
    machine.cores = 4;
    machine.ranks_per_node = local;
    return on_threads(machine, threads, ranks).flops_per_s / cpu().flops_per_s;
  };
  CHECK(rate(1, 4, 4) == Approx(1));
  CHECK(rate(1, 8, 8) == Approx(0.5));
  CHECK(rate(2, 4, 4) == Approx(1));
  CHECK(rate(1, 8, 4) == Approx(1));  // on two hosts
  CHECK(on_threads(cpu(), 1, 2).layer_s == cpu().layer_s);
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

}  // namespace dstrain
