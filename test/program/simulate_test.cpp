#include "engine/program/simulate.h"

#include <algorithm>
#include <chrono>

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/program/schedules/schedule.h"
#include "test/program/models.h"
#include "test/support/catch.h"

namespace dstrain {
namespace {

using test::Case;
using test::make_case;

/// Round rates, so that times can be worked out by hand: 1 Gflop/s, memory without cost, 1 kB/s
/// links.
Machine round_machine() {
  return {.name = "round",
          .flops_per_s = 1e9,
          .memory_bytes_per_s = 1e30,
          .link_bytes_per_s = 1e3,
          .network_bytes_per_s = 1e2,
          .host_link_bytes_per_s = 1e30,
          .collective_latency_s = 0,
          .ranks_per_node = 4,
          .device_memory = 1 << 20,
          .fixed_overhead = 1000};
}

Simulation play(const Case& c, const Machine& machine) {
  return simulate(training_program(c.layout, c.cost, c.options), c.layout, c.cost, machine);
}

const CollectiveUse& find(const Simulation& simulation, const std::string& name,
                          const std::string& purpose) {
  for (const CollectiveUse& use : simulation.collectives) {
    if (use.name == name && use.purpose == purpose) return use;
  }
  FAIL("no " << name << " of " << purpose);
  return simulation.collectives.front();
}

TEST_CASE("one rank computes forward once and backward twice, without waiting", "[simulate]") {
  const Case c = make_case(0, 1, 1, 3, {.micro_batches = 2, .prefetch = 1});
  const Simulation s = play(c, round_machine());
  CHECK(s.step_s == Approx(2 * 3 * (1 + 2 + 3)));  // micro-batches x (1 + 2) x Gflop of the blocks
  CHECK(s.compute_s == Approx(s.step_s));
  CHECK(s.exposed_comm_s == Approx(0).margin(1e-12));
  CHECK(s.collectives.empty());
}

TEST_CASE("a block's FP8 products take the time of their own rate, its casts that of memory",
          "[simulate]") {
  Case c = make_case(0, 1, 1, 3, {.micro_batches = 1, .prefetch = 1});
  Machine machine = round_machine();
  machine.memory_bytes_per_s = 1e9;
  const double before = play(c, machine).compute_s;
  BlockCost& last = c.cost.blocks[2];  // 3 Gflop forward, 6 backward
  last.fp8_flops = 2e9;
  CHECK(play(c, machine).compute_s == Approx(before));  // no rate of FP8 is known
  machine.fp8_flops_per_s = 4e9;
  CHECK(play(c, machine).compute_s == Approx(before - (2 - 0.5) - (4 - 1)));
  last.forward_traffic = 200'000'000;
  last.backward_traffic = 700'000'000;
  CHECK(play(c, machine).compute_s == Approx(before - (2 - 0.5) - (4 - 1) + 0.2 + 0.7));
}

TEST_CASE("products of fp32 take the time of their own rate", "[simulate]") {
  Case c = make_case(0, 1, 1, 3, {.micro_batches = 1, .prefetch = 1});
  Machine machine = round_machine();
  const double narrow = play(c, machine).compute_s;
  machine.fp32_flops_per_s = machine.flops_per_s / 4;
  CHECK(play(c, machine).compute_s == Approx(narrow));
  c.layout.widths.compute = 4;
  CHECK(play(c, machine).compute_s == Approx(4 * narrow));
}

TEST_CASE("a block's attention takes the time of its own rate, in both directions", "[simulate]") {
  Case c = make_case(0, 1, 1, 3, {.micro_batches = 1, .prefetch = 1});
  Machine machine = round_machine();
  const double before = play(c, machine).compute_s;
  c.cost.blocks[2].attention_flops = 1e9;
  CHECK(play(c, machine).compute_s == Approx(before));  // no rate of it is known
  machine.attention_flops_per_s = 0.5e9;
  CHECK(play(c, machine).compute_s == Approx(before + (2 - 1) + (4 - 2)));
}

TEST_CASE("each kernel of a block is bound by products, other arithmetic or memory", "[simulate]") {
  Case c = make_case(0, 1, 1, 3, {.micro_batches = 1, .prefetch = 1});
  Machine machine = round_machine();
  const double others = play(c, machine).compute_s - 3 * 3;
  machine.memory_bytes_per_s = 1e9;
  machine.vector_flops_per_s = 0.5e9;
  machine.launch_s = 0.01;
  const double moved = play(c, machine).compute_s - 3 * 3 - others;  // what the others move
  BlockCost& last = c.cost.blocks[2];
  last.forward_kernels = {{.products = 2e9, .bytes = 1'000'000'000},
                          {.vector = 1e9, .bytes = 3'000'000'000},
                          {.vector = 2e9, .bytes = 1'000'000'000}};
  last.backward_kernels = {{.products = 5e9}, {.launches = 3}};
  const double own = 2 + 3 + 4 + 0.03 + 5 + 0.04;
  const double times = play(c, machine).compute_s;
  CHECK(times == Approx(others + own + moved).epsilon(1e-4));
  const double forward = block_seconds(work::Pass::forward, 2, c.layout, c.cost, machine);
  CHECK(forward == Approx(2 + 3 + 4 + 0.03));
  const double backward = block_seconds(work::Pass::backward, 2, c.layout, c.cost, machine);
  CHECK(backward == Approx(5 + 0.04));
}

TEST_CASE("recomputation costs a second forward of every block but the head", "[simulate]") {
  const Case c = make_case(
      0, 1, 1, 3, {.micro_batches = 1, .prefetch = 1, .recompute = test::recomputed(true)});
  CHECK(play(c, round_machine()).compute_s == Approx(3 * (1 + 2 + 3) + (1 + 2)));
}

TEST_CASE("what a group takes alone is what its actions take", "[simulate]") {
  Case c = make_case(2, 2, 2, 3, {.micro_batches = 2, .prefetch = 1});
  const Machine machine = round_machine();
  const auto seconds = [&] {
    const Program program = training_program(c.layout, c.cost, c.options);
    return group_seconds(program, c.layout, c.cost, machine).at(1);
  };
  // 1,792 elements: of two bytes, gathered by two ranks; of four, cut by two and summed by two.
  const GroupSeconds own = seconds();
  CHECK(own.gather == Approx(1792 * 2 / 2 / 1e3));
  CHECK(own.reduce == Approx((1792 * 4 / 2 + 2 * 1792 * 4 / 2 / 2) / 1e3));
  CHECK(own.gather_sum == 0);
  c.layout.groups[1].matrix_flops = 7e9;  // an optimizer of whole matrices
  CHECK(seconds().update == Approx(own.update + 7));
}

TEST_CASE("a slow reduction is exposed, a quick one hidden", "[simulate]") {
  const Case c = make_case(0, 1, 2, 3, {.micro_batches = 1, .prefetch = 1});
  Machine machine = round_machine();
  // All-reduce of 4 bytes an element on 2 ranks sends 2 * 1/2 of it: groups of 1152, 1664 and 2176
  // elements.
  const double last = 1152 * 4 / 1e3, middle = 1664 * 4 / 1e3, first = 2176 * 4 / 1e3;
  const Simulation slow = play(c, machine);
  constexpr double kNormBytes = kNumStepSums * 4;
  const double norm = kNormBytes / 1e3;
  // backward(2) ends at 6 + 6 = 12, then the three reductions follow one another.
  CHECK(slow.step_s == Approx(12 + first + middle + last + norm));
  CHECK(slow.compute_s == Approx(18));
  CHECK(slow.exposed_comm_s == Approx(slow.step_s - 18));

  machine.link_bytes_per_s = 1e6;
  const Simulation quick = play(c, machine);
  CHECK(quick.exposed_comm_s ==
        Approx((1152 * 4 + kNormBytes) / 1e6));  // only the last one has nothing to hide behind
}

TEST_CASE("actions of a lane do not overlap and start after what they wait for",
          "[simulate][property]") {
  const int stage = GENERATE(0, 1, 2, 3), prefetch = GENERATE(0, 1, 2);
  const Case c =
      make_case(stage, 2, 2, 5,
                {.micro_batches = 2, .prefetch = prefetch, .recompute = test::recomputed(true)});
  const Program program = training_program(c.layout, c.cost, c.options);
  const Simulation s = simulate(program, c.layout, c.cost, round_machine());
  std::vector<double> lane_end(kNumLanes, -1e300);  // gathers begin beside the run before
  for (std::size_t i = 0; i < program.actions.size(); ++i) {
    double& end = lane_end[static_cast<std::size_t>(program.actions[i].lane)];
    REQUIRE(s.action_start_s[i] >= end);
    for (const int other : program.actions[i].after) {
      REQUIRE(s.action_start_s[i] >= s.action_end_s[static_cast<std::size_t>(other)]);
    }
    end = s.action_end_s[i];
    REQUIRE(s.step_s >= end);
  }
  CHECK(s.step_s >= s.compute_s);
  CHECK(s.step_s == Approx(s.compute_s + s.exposed_comm_s));  // loads take no time here
}

TEST_CASE("a longer prefetch never makes the step longer", "[simulate][property]") {
  double before = 1e300;
  for (const int prefetch : {0, 1, 2, 3}) {
    const Case c = make_case(3, 4, 1, 6, {.micro_batches = 2, .prefetch = prefetch});
    const double now = play(c, round_machine()).step_s;
    CAPTURE(prefetch);
    CHECK(now <= before);
    before = now;
  }
}

TEST_CASE("bytes of collectives follow from the layout", "[simulate]") {
  const ProgramOptions options = {.micro_batches = 2, .prefetch = 1};
  const Bytes elements = 1536 + 2048 + 2560;  // three groups padded for four shards of 128
  SECTION("ZeRO-3 on 4 ranks") {
    const Simulation s = play(make_case(3, 4, 1, 3, options), round_machine());
    const CollectiveUse& gather = find(s, "all-gather", "parameters");
    CHECK(gather.calls == 3);  // as many slots as groups: gathered once
    CHECK(gather.payload_bytes == elements * 2);
    const CollectiveUse& reduce = find(s, "reduce-scatter", "gradients");
    CHECK(reduce.calls == 6);
    CHECK(reduce.payload_bytes == 2 * elements * 4);
    CHECK(reduce.sent_bytes == 2 * elements * 4 * 3 / 4);
    CHECK(find(s, "all-reduce", "norm and metrics").calls == 1);
  }
  SECTION(
      "ZeRO-2 with two copies: reduce-scatter in the copy, all-reduce of the shard between "
      "copies") {
    const Simulation s = play(make_case(2, 4, 2, 3, options), round_machine());
    CHECK(find(s, "all-gather", "parameters").payload_bytes == elements * 2);
    CHECK(find(s, "reduce-scatter", "gradients").payload_bytes == 2 * elements * 4);
    const CollectiveUse& between = find(s, "all-reduce", "gradients");
    CHECK(between.payload_bytes == 2 * elements * 4 / 4);
    CHECK(between.sent_bytes == 2 * elements * 4 / 4);
  }
  SECTION("plain data parallelism reduces once a step") {
    const Simulation s = play(make_case(0, 1, 4, 3, options), round_machine());
    CHECK(find(s, "all-reduce", "gradients").calls == 3);
    CHECK(s.collectives.size() == 2);
  }
}

TEST_CASE("collectives inside blocks are timed, counted and have their channels", "[simulate]") {
  const Case c = test::make_exchanging_case(0, {.micro_batches = 2, .prefetch = 1});
  Machine machine = round_machine();
  machine.ranks_per_node = 16;
  const Simulation s = play(c, machine);
  const auto payload = [&](const char* name) {
    return find(s, name, "activations inside blocks").payload_bytes;
  };
  CHECK(payload("all-gather") == 2 * 640);
  CHECK(payload("all-to-all") == 2 * 320);
  CHECK(payload("all-reduce") == 2 * 16);
  CHECK(payload("reduce-scatter") == 2 * 640);
  CHECK(find(s, "all-reduce", "activations inside blocks").sent_bytes == 2 * 2 * 16 * 7 / 8);

  Case without = c;
  for (BlockCost& block : without.cost.blocks) block.exchanges.clear();
  const Simulation quick = play(without, machine);
  // Two tensor and two expert ranks, eight data ranks, 1 kB/s.
  const double forward = (640 / 2 + 2 * 16 * 7 / 8 + 320 / 2) / 1e3, backward = 640 / 2 / 1e3;
  const Program program = training_program(c.layout, c.cost, c.options);
  for (std::size_t i = 0; i < program.actions.size(); ++i) {
    const Action& action = program.actions[i];
    CAPTURE(describe(action, c.cost));
    const auto length = [i](const Simulation& run) {
      return run.action_end_s[i] - run.action_start_s[i];
    };
    const double inside = action.block != 1                     ? 0
                          : action.kind == ActionKind::backward ? backward
                                                                : forward;
    // A reduction beside an exchange shares the links with it.
    const double beside = action.lane == Lane::reduce ? backward : 0;
    CHECK(length(s) >= Approx(length(quick) + inside));
    CHECK(length(s) <= Approx(length(quick) + inside + beside));
  }
  // The one of the last backward delays the reductions that it runs beside.
  CHECK(s.exposed_comm_s == Approx(quick.exposed_comm_s + 2 * forward + 2 * backward));

  // Where tensor ranks exchange, which no CUDA graph holds, the host's time for a block is the
  // least.
  Machine slow = machine;
  slow.host_block_s = 1e3;
  const Simulation held_up = play(c, slow);
  for (std::size_t i = 0; i < program.actions.size(); ++i) {
    const Action& action = program.actions[i];
    const double length = held_up.action_end_s[i] - held_up.action_start_s[i];
    const double min = action.kind == ActionKind::backward ? 2e3 : 1e3;
    if (runs_block(action.kind)) CHECK((action.block == 1) == (length >= min * 0.999));
  }

  // Between GPUs of a node that exchange by copies, tensor ranks hide what products run beside, but
  // for a little.
  Case beside = c;
  for (Exchange& exchange : beside.cost.blocks[1].exchanges) {
    if (exchange.axis == Axis::tensor)
      exchange.beside_flops = 0.25 * backward * machine.flops_per_s;
  }
  CHECK(play(beside, machine).exposed_comm_s == Approx(s.exposed_comm_s));
  machine.peer_copies = true;
  machine.copy_beside_product_s = 5e-6;
  machine.copy_beside_product_bytes_per_s = 1100e9;
  // Two micro-batches, each with one exchange forward and one backward.
  CHECK(play(beside, machine).exposed_comm_s ==
        Approx(s.exposed_comm_s - 2 * 2 * 0.25 * backward).epsilon(1e-3));
  CHECK(play(beside, machine).ledger.fixed == s.ledger.fixed);
  Case shown = beside;
  // Two slots of what they exchange at once.
  shown.options.peer_copies = beside.options.peer_copies = true;
  for (Exchange& exchange : shown.cost.blocks[1].exchanges)
    if (exchange.axis == Axis::tensor) exchange.bytes /= 2;
  CHECK(play(beside, machine).ledger.fixed == play(shown, machine).ledger.fixed + 2 * 320);
  machine.ranks_per_node = 1;
  Machine apart = machine;
  apart.peer_copies = false;
  CHECK(play(beside, machine).exposed_comm_s == Approx(play(beside, apart).exposed_comm_s));

  const auto opened = channels(program);
  for (const CommAxis axis : {CommAxis(Axis::tensor), CommAxis(Axis::expert), CommAxis::batch})
    CHECK(std::ranges::count(opened, CommChannel{axis, Lane::compute}) == 1);
  CHECK(std::ranges::count(opened, CommChannel{Axis::sequence, Lane::compute}) == 0);
}

TEST_CASE("collectives across nodes run at the network's rate", "[simulate]") {
  const ProgramOptions options = {.micro_batches = 1, .prefetch = 1};
  const double inside = play(make_case(0, 1, 4, 1, options), round_machine()).exposed_comm_s;
  const double across = play(make_case(0, 1, 8, 1, options), round_machine()).exposed_comm_s;
  CHECK(across == Approx(inside * 10 * (7.0 / 8) / (3.0 / 4)));
}

TEST_CASE("over nodes a gather takes a hop for each rank of its ring, a sum the depth of a tree",
          "[simulate]") {
  Machine machine = round_machine();
  machine.link_bytes_per_s = machine.network_bytes_per_s = 1e30;
  machine.collective_latency_s = 1;
  machine.hop_latency_s = 0.1;
  const auto seconds = [&machine](int ranks, ActionKind kind) {
    const Case c = make_case(1, ranks, 1, 1, {.micro_batches = 1, .prefetch = 1});
    const Program program = training_program(c.layout, c.cost, c.options);
    const Simulation s = simulate(program, c.layout, c.cost, machine);
    CHECK(find(s, "all-gather", "parameters").hops ==
          (ranks > machine.ranks_per_node ? ranks - 1 : 0));
    const auto at =
        std::ranges::find(program.actions, kind, &Action::kind) - program.actions.begin();
    return s.action_end_s[to_index(at)] - s.action_start_s[to_index(at)];
  };
  CHECK(seconds(4, ActionKind::gather) == Approx(1));
  CHECK(seconds(8, ActionKind::gather) == Approx(1 + 7 * 0.1));
  CHECK(seconds(64, ActionKind::reduce) == Approx(1 + 63 * 0.1));
  CHECK(seconds(64, ActionKind::norm) == Approx(5));  // 16 nodes

  // One rank in each node.
  machine.ranks_per_node = 1;
  CHECK(seconds(16, ActionKind::gather) == Approx(1 + 15 * 0.1));
  machine.lone_ranks_by_trees = true;
  const Case c = make_case(1, 16, 1, 1, {.micro_batches = 1, .prefetch = 1});
  CHECK(find(play(c, machine), "all-gather", "parameters").rings == 0);
}

TEST_CASE("a transfer between stages takes one hop, over however many nodes the stages are",
          "[simulate]") {
  Machine machine = round_machine();
  machine.link_bytes_per_s = machine.network_bytes_per_s = 1e30;
  machine.collective_latency_s = 1;
  machine.hop_latency_s = 0.1;
  const auto seconds = [&](int ranks_per_node) {
    machine.ranks_per_node = ranks_per_node;
    const ModelCost cost = test::small_model_cost(8);
    const Mesh mesh(8, {.pipeline = 8});
    const Layout layout = zero_layout(0, mesh, cost, {});
    ProgramOptions options = {.micro_batches = 1, .prefetch = 1};
    options.schedule =
        make_schedule(ScheduleName::one_f_one_b, layout.stages, 1, equal_costs(layout.stages));
    std::vector<Program> line;
    for (int r = 0; r < 8; ++r) line.push_back(training_program(layout, cost, options, r));
    const Simulation s = simulate(line, layout, cost, machine).front();
    const auto at = std::ranges::find(line[0].actions, ActionKind::send, &Action::kind) -
                    line[0].actions.begin();
    return s.action_end_s[to_index(at)] - s.action_start_s[to_index(at)];
  };
  CHECK(seconds(8) == Approx(1));
  CHECK(seconds(4) == Approx(1.1));
  CHECK(seconds(1) == Approx(1.1));
}

TEST_CASE("in an all-to-all each rank of a node sends to all ranks of other nodes", "[simulate]") {
  const auto exposed = [](int ranks, Bytes bytes) {
    ModelCost cost = test::small_model_cost(1);
    cost.blocks[0].exchanges = {
        {.op = CommOp::all_to_all, .axis = Axis::expert, .bytes = bytes, .width = 2}};
    const Mesh mesh(ranks, {.expert = ranks});
    const Case c{zero_layout(0, mesh, cost, {}), cost, {.micro_batches = 1, .prefetch = 1}};
    return play(c, round_machine()).exposed_comm_s;
  };
  const auto of_bytes = [&](int ranks) { return exposed(ranks, 320) - exposed(ranks, 0); };
  // Four ranks of a node send a half each; the network has a tenth of the link's rate.
  CHECK(of_bytes(8) == Approx(of_bytes(4) * 10 * (4 * 4.0 / 8) / (3.0 / 4)));
}

TEST_CASE("the ledger holds what each stage says", "[simulate]") {
  const ProgramOptions options = {.micro_batches = 2, .prefetch = 1};
  const Bytes elements = 1536 + 2048 + 2560, largest = 2560;
  const auto ledger = [&](int stage, int shard, int replicas) {
    return play(make_case(stage, shard, replicas, 3, options), round_machine()).ledger;
  };
  const Ledger one = ledger(1, 4, 1), two = ledger(2, 4, 1), three = ledger(3, 4, 1);
  CHECK(one.parameters == elements * 2);
  CHECK(one.gradients == elements * 4);
  CHECK(one.master == elements);
  CHECK(one.moments == elements * 2);
  CHECK(one.gather_buffers == 0);
  CHECK(one.gradient_buffers == 0);
  CHECK(two.gradients == elements);
  CHECK(two.gradient_buffers == 2 * largest * 4 + largest);  // two slots and a shard on its way
  CHECK(three.parameters == elements * 2 / 4);
  CHECK(three.gather_buffers == elements * 2);  // a slot for each
  CHECK(three.data == 2 * 5000);
  CHECK(three.fixed == 1000);
  CHECK(three.total() == three.allocated() + 1000);
  // Copies of the state change nothing for one rank.
  CHECK(ledger(3, 4, 2).allocated() == three.allocated());
}

TEST_CASE("copies between GPUs hold two pieces of each channel's largest tensor", "[simulate]") {
  const Bytes largest = 2560;
  Machine machine = round_machine();
  const auto fixed = [&](int stage, bool copies, int width = 4) {
    Case c = make_case(stage, stage == 0 ? 1 : 4, stage == 0 ? 4 : 1, 3,
                       {.micro_batches = 2, .prefetch = 1, .peer_copies = copies});
    c.layout.widths.gradient = c.layout.widths.reduce_wire = width;
    return play(c, machine).ledger.fixed;
  };
  CHECK(fixed(3, true) == 1000);  // a machine whose devices do not reach each other
  machine.peer_copies = true;
  CHECK(fixed(3, false) == 1000);
  CHECK(fixed(3, true) == 1000 + 2 * largest * 2 + 2 * largest * 4);  // gathered, reduced
  CHECK(fixed(0, true) == 1000 + 2 * Bytes{2176} * 4);                // padded for no shards
  Case in_parts = make_case(0, 1, 4, 3, {.micro_batches = 2, .peer_copies = true});
  in_parts.layout.peer_ranks = 8;  // gradients are reduced and gathered
  CHECK(play(in_parts, machine).ledger.fixed == 1000 + 2 * 2 * Bytes{2176} * 4);
  const int wide = 1 << 20;  // 2.5 GiB
  CHECK(fixed(3, true, wide) == 1000 + 2 * largest * 2 + 2 * (Bytes{128} << 20));

  // NCCL is opened for norms alone then, but within a node.
  machine.communicator_overhead = 1;
  CHECK(fixed(3, false) == 1000 + 3);
  CHECK(fixed(3, true) == 1000 + 1 + 2 * largest * 2 + 2 * largest * 4);
  machine.ranks_per_node = 2;
  CHECK(fixed(3, true) == 1000 + 3);
  machine.ranks_per_node = 8;
  // 2176 numbers are no multiple of three ranks, which take NCCL for them; 1152 are one.
  const auto of_ranks = [&](int ranks) {
    return play(make_case(0, 1, ranks, 3, {.micro_batches = 2, .peer_copies = true}), machine)
        .ledger.fixed;
  };
  CHECK(of_ranks(4) == 1000 + 1 + 2 * Bytes{2176} * 4);
  CHECK(of_ranks(3) == 1000 + 2 + 2 * Bytes{1152} * 4);
  // Nor are sums in several pieces copied, but between two.
  const auto of_wide = [&](int ranks) {
    Case c = make_case(0, 1, ranks, 3, {.micro_batches = 2, .peer_copies = true});
    c.layout.widths.gradient = c.layout.widths.reduce_wire = wide;
    return play(c, machine).ledger.fixed;
  };
  CHECK(of_wide(2) == 1000 + 1 + 2 * (Bytes{128} << 20));
  CHECK(of_wide(4) == 1000 + 2);
}

TEST_CASE("what decodes images on the device is a part of its fixed memory", "[simulate]") {
  const Case c = make_case(0, 1, 1, 3, {.micro_batches = 2, .prefetch = 1, .input_memory = 700});
  CHECK(play(c, round_machine()).ledger.fixed == 1000 + 700);
}

TEST_CASE("workspaces of products are a line of their own, one for each stream, and none on a CPU",
          "[simulate]") {
  Case c = make_case(0, 1, 1, 3, {});
  Machine machine = round_machine();
  const Ledger without = play(c, machine).ledger;
  CHECK(without.products == 0);
  machine.product_workspace = 70;
  CHECK(play(c, machine).ledger.products == 70);
  CHECK(play(c, machine).ledger.allocated() == without.allocated() + 70);
  c.cost.blocks[1].product_streams = 2;
  CHECK(play(c, machine).ledger.products == 140);
  CHECK(play(c, machine).ledger.fixed == without.fixed);
  CHECK(h100().product_workspace == Bytes{32} << 20);
  CHECK(play(c, cpu()).ledger.products == 0);
}

TEST_CASE("a narrow wire needs a buffer of its own, fp32 compute no master", "[simulate]") {
  Case c = make_case(0, 1, 2, 3, {.micro_batches = 1, .prefetch = 1});
  c.layout.widths = {.compute = 4, .gradient = 4, .master = 0, .moments = 8, .reduce_wire = 2};
  const Ledger ledger = play(c, round_machine()).ledger;
  CHECK(ledger.master == 0);
  CHECK(ledger.gradient_buffers == 2176 * 2);
  Case single = make_case(0, 1, 1, 3, c.options);
  single.layout.widths = c.layout.widths;
  CHECK(play(single, round_machine()).ledger.gradient_buffers == 0);
}

TEST_CASE("activations peak where they are counted by hand", "[simulate]") {
  const auto peak = [](bool recompute, int micro_batches) {
    const Case c = make_case(
        0, 1, 1, 3,
        {.micro_batches = micro_batches, .prefetch = 1, .recompute = test::recomputed(recompute)});
    return play(c, round_machine()).ledger.activations;
  };
  // Blocks save 1000, 2000, 3000 and hand on 100, 200, 300; backward of the head adds 300 + 300.
  CHECK(peak(false, 1) == 6000 + 600 + 300 + 300);
  CHECK(peak(false, 3) == peak(false, 1));
  // Head: what it saved, three outputs, its backward. Block 1 again: one input, 2000, output and
  // gradient: less.
  CHECK(peak(true, 1) == 3000 + 600 + 300 + 300);
  const Case c = make_case(0, 1, 1, 3, {});
  const Simulation s = play(c, round_machine());
  CHECK(s.activations_by_block == std::vector<Bytes>{1100, 2200, 3300});
  // Evaluation keeps one block's input and output at a time.
  const Ledger evaluation = peak_memory(evaluation_program(c.layout, c.cost, c.options));
  CHECK(evaluation.activations == 200 + 3000 + 300 + 10);
}

TEST_CASE("frozen blocks before the first trained one keep no activations", "[simulate]") {
  ModelCost cost = test::small_model_cost(3);
  cost.groups[0].trainable = cost.groups[1].trainable = false;
  const Mesh mesh(1, {.data = 1, .shard = 1});
  const Case c{zero_layout(0, mesh, cost, {}), cost, {.micro_batches = 3, .prefetch = 1}};
  // The second block's output alone, which the third block reads: in its forward, 200 + 3000 +
  // 300 and 10 of workspace; in its backward 200 + 3000 + 300, the gradient of its output 300, and
  // 300 of workspace.
  CHECK(play(c, round_machine()).ledger.activations == 200 + 3000 + 300 + 300 + 300);
}

TEST_CASE("4,096 ranks are simulated within a second", "[simulate]") {
  const ModelCost cost = test::vit_like_model();
  const auto start = std::chrono::steady_clock::now();
  const Mesh mesh(4096, {.data = 8, .shard = 512});
  const Layout layout = zero_layout(3, mesh, cost, {});
  const Program program = training_program(
      layout, cost, {.micro_batches = 16, .prefetch = 2, .recompute = test::recomputed(true)});
  CHECK(check(program, layout, cost).empty());
  const Simulation s = simulate(program, layout, cost, h200());
  CHECK(s.step_s > 0);
  CHECK(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() < 1);
}

TEST_CASE("50,000 actions are simulated within a second", "[simulate]") {
  const ModelCost cost = test::vit_like_model();
  const Layout layout = zero_layout(3, Mesh(4, {.shard = 4}), cost, {});
  const Program program = training_program(
      layout, cost, {.micro_batches = 600, .prefetch = 2, .recompute = test::recomputed(true)});
  REQUIRE(program.actions.size() > 50'000);
  const auto start = std::chrono::steady_clock::now();
  CHECK(simulate(program, layout, cost, h200()).step_s > 0);
  CHECK(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() < 1);
}

TEST_CASE("a machine is found by name", "[simulate]") {
  CHECK(find_machine("h200").flops_per_s > find_machine("cpu").flops_per_s);
  CHECK(find_machine("h100").memory_bytes_per_s < find_machine("h200").memory_bytes_per_s);
  CHECK(built_in_machine("NVIDIA H100 80GB HBM3").name == "h100");
  CHECK(built_in_machine("NVIDIA H200").name == "h200");
  CHECK(built_in_machine("CPU").name == "cpu");
  CHECK_THROWS_WITH(find_machine("tpu"), "no machine is called 'tpu'");
}

TEST_CASE("one of two micro-batches computes while the other one exchanges", "[program]") {
  ModelCost cost = test::small_model_cost(4);
  for (BlockCost& block : cost.blocks) {
    for (const ExchangePass pass : {ExchangePass::forward, ExchangePass::backward})
      block.exchanges.push_back(
          {.op = CommOp::all_gather, .axis = Axis::tensor, .bytes = 640, .width = 2, .pass = pass});
  }
  const Mesh mesh(2, {.tensor = 2});
  Case c = {zero_layout(0, mesh, cost, {}), cost, {.micro_batches = 6, .prefetch = 1}};
  // Norm exchanges, too, and is left out.
  const auto blocks_end = [&](const Machine& machine) {
    const Program program = training_program(c.layout, c.cost, c.options);
    const Simulation played = simulate(program, c.layout, c.cost, machine);
    double end = 0;
    for (std::size_t i = 0; i < program.actions.size(); ++i)
      if (runs_block(program.actions[i].kind)) end = std::max(end, played.action_end_s[i]);
    return end;
  };
  Machine machine = round_machine();
  machine.link_bytes_per_s = 1e30;
  const double computing = blocks_end(machine);
  // Exchanges take as long as products.
  machine.link_bytes_per_s = 1;
  machine.link_bytes_per_s = (blocks_end(machine) - computing) / computing;
  const double in_turn = blocks_end(machine);
  REQUIRE(in_turn > 1.9 * computing);
  c.options.two_at_once = true;
  const double at_once = blocks_end(machine);
  CHECK(at_once > computing);
  CHECK(at_once < 0.7 * in_turn);
}

}  // namespace
}  // namespace dstrain
