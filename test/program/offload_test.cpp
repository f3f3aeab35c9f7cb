#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "engine/program/activation_memory.h"
#include "engine/program/simulate.h"
#include "test/program/models.h"
#include "test/program/soundness.h"
#include "test/support/catch.h"

// Programs with states, parameters and inputs on the host: sound in every combination, and without
// a wait, read, write or free that could go.

namespace dstrain {
namespace {

using test::Case;
using test::problems;

/// Where things rest, and what updates them.
struct Offload {
  Place states = Place::device, parameters = Place::device, inputs = Place::device;
  UpdateMethod update_method = UpdateMethod::device;
  int master = 4;      ///< bytes; 2: beside parameters that are the upper halves, 0: these are it
  bool mixed = false;  ///< every second group is updated by the other method
};

std::string name(const Offload& o) {
  return fmt::format("states {}, parameters {}, inputs {}, update {}, master weights {}{}",
                     place_name(o.states), place_name(o.parameters), place_name(o.inputs),
                     static_cast<int>(o.update_method), o.master, o.mixed ? ", mixed" : "");
}

Case offloaded(Case c, const Offload& offload) {
  c.layout.chunk = 1024;
  c.options.inputs = offload.inputs;
  c.layout.widths.master = offload.master;
  for (std::size_t g = 0; g < c.layout.groups.size(); ++g) {
    GroupLayout& kind = c.layout.groups[g];
    kind.state_place = offload.states;
    kind.parameter_place = offload.parameters;
    kind.update_method = offload.update_method;
    if (offload.mixed && g % 2 == 1)
      kind.update_method =
          offload.update_method == UpdateMethod::host ? UpdateMethod::streamed : UpdateMethod::host;
  }
  return c;
}

std::vector<Offload> offloads(bool parameters_may) {
  using enum Place;
  std::vector<Offload> list;
  for (const int master : {4, 2, 0}) {
    for (const Place inputs : {device, pinned}) {
      list.push_back({.inputs = inputs, .master = master});
      for (const bool mixed : {false, true}) {
        for (const UpdateMethod update_method : {UpdateMethod::streamed, UpdateMethod::host}) {
          list.push_back({pinned, device, inputs, update_method, master, mixed});
          if (parameters_may)
            list.push_back({pinned, pinned, inputs, update_method, master, mixed});
        }
      }
      if (parameters_may)
        list.push_back({device, pinned, inputs, UpdateMethod::streamed, master, false});
    }
  }
  return list;
}

void for_each_offloaded_case(const std::function<void(const Case&, const Offload&)>& visit) {
  for (const int stage : {0, 1, 2, 3}) {
    for (const int shard : {1, 2}) {
      for (const int blocks : {1, 2, 4, 6}) {
        for (const int micro_batches : {1, 3}) {
          for (const int prefetch : {0, 1}) {
            for (const bool recompute : {false, true}) {
              Case plain = test::make_case(stage, shard, 1, blocks,
                                           {.micro_batches = micro_batches,
                                            .prefetch = prefetch,
                                            .recompute = test::recomputed(recompute)});
              plain.layout.peer_ranks = prefetch == 0 ? 8 : 1;
              for (const Offload& offload : offloads(stage == 3 || shard == 1)) {
                if (offload.inputs != Place::device && !recompute) continue;
                INFO("stage " << stage << " shard " << shard << " blocks " << blocks
                              << " micro-batches " << micro_batches << " prefetch " << prefetch
                              << " recompute " << recompute << ": " << name(offload));
                visit(offloaded(plain, offload), offload);
              }
            }
          }
        }
      }
    }
  }
}

TEST_CASE("every program with offload is sound", "[program][property]") {
  for_each_offloaded_case([](const Case& c, const Offload&) { test::require_sound(c); });
}

/// Streamed states in slots that are small beside activations.
void for_each_transient_case(const std::function<void(const Case&)>& visit) {
  for (const int stage : {0, 1, 2, 3}) {
    for (const int shard : {1, 2}) {
      for (const int micro_batches : {1, 3}) {
        for (const bool recompute : {false, true}) {
          for (const bool parameters : {false, true}) {
            for (const bool park : {false, true}) {
              if (parameters && stage < 3 && shard > 1) continue;
              Case c = offloaded(test::make_case(stage, shard, 1, 6,
                                                 {.micro_batches = micro_batches,
                                                  .prefetch = 1,
                                                  .recompute = test::recomputed(recompute),
                                                  .transient_slots = true,
                                                  .park_state = park}),
                                 {.states = Place::pinned,
                                  .parameters = parameters ? Place::pinned : Place::device,
                                  .inputs = recompute ? Place::pinned : Place::device,
                                  .update_method = UpdateMethod::streamed});
              c.layout.chunk = 128;
              INFO("stage " << stage << " shard " << shard << " micro-batches " << micro_batches
                            << " recompute " << recompute << " parameters " << parameters
                            << " parked " << park);
              visit(c);
            }
          }
        }
      }
    }
  }
}

TEST_CASE("transient slots lie where activations leave room", "[program][property]") {
  std::size_t transient = 0;
  for_each_transient_case([&](const Case& c) {
    test::require_sound(c);
    const Program program = training_program(c.layout, c.cost, c.options);
    ProgramOptions plain = c.options;
    plain.transient_slots = plain.park_state = false;
    const Program without = training_program(c.layout, c.cost, plain);
    CHECK(peak_memory(program).total() == peak_memory(without).total());
    const bool parks =
        c.options.park_state && c.layout.groups.front().gradients == c.layout.groups.front().states;
    const auto evictions = [](const Program& of) {
      return test::indices(of, ActionKind::evict_states).size();
    };
    CHECK(evictions(program) == (parks ? 2 : 1) * evictions(without));
    for (const TransientSlot& slot : transient_slots(program)) {
      ++transient;
      // It is filled by a fetch beside a backward, and empty again before the peak.
      CHECK(program.actions[static_cast<std::size_t>(slot.taken)].kind == ActionKind::fetch_states);
      CHECK(slot.returned < slot.taken);
      const std::vector<Bytes> memory = activation_memory(program);
      const auto peak = std::ranges::max_element(memory) - memory.begin();
      CHECK(slot.returned <= peak);
      CHECK(slot.taken > peak);
    }
    // Each comes after backwards only, so that the lane of the fetches never waits for norm.
    const auto norm = test::indices(program, ActionKind::norm).front();
    CHECK(std::ranges::any_of(test::indices(program, ActionKind::fetch_states), [&](int i) {
            return i < norm;
          }) == !transient_slots(program).empty());
  });
  CHECK(transient > 200);
}

TEST_CASE("no wait of a program with transient slots can be left out", "[program][property]") {
  std::size_t removed = 0;
  for_each_transient_case([&](const Case& c) {
    removed += test::require_each_wait(training_program(c.layout, c.cost, c.options), c);
  });
  CHECK(removed > 5000);
}

TEST_CASE("slots that transient ones lean on are checked", "[program]") {
  Case c = offloaded(test::make_case(2, 2, 1, 6, {.micro_batches = 1, .transient_slots = true}),
                     {.states = Place::pinned, .update_method = UpdateMethod::streamed});
  c.layout.chunk = 128;
  const Program program = training_program(c.layout, c.cost, c.options);
  REQUIRE(problems(program, c).empty());
  const TransientSlot slot = transient_slots(program).front();
  Program larger = program;
  larger.buffers[static_cast<std::size_t>(slot.buffer)].elements *= 100;
  CHECK(problems(larger, c).find("make the peak of activations") != std::string::npos);
  Program other = program;
  other.buffers[static_cast<std::size_t>(other.buffers_of(BufferRole::batch).front())].transient =
      true;
  CHECK(problems(other, c).find("batch, is transient") != std::string::npos);
  CHECK(hash(other, c.layout) != hash(program, c.layout));
}

TEST_CASE("no wait of a program with offload can be left out", "[program][property]") {
  std::size_t removed = 0;
  for_each_offloaded_case([&](const Case& c, const Offload&) {
    removed += test::require_each_wait(training_program(c.layout, c.cost, c.options), c);
  });
  CHECK(removed > 10000);
}

TEST_CASE("no action of a program with offload can be left out, doubled or changed",
          "[program][property]") {
  const UpdateMethod update_method = GENERATE(UpdateMethod::streamed, UpdateMethod::host);
  const bool parameters = GENERATE(false, true);
  const int master = GENERATE(4, 2, 0);
  const int shard = GENERATE(1, 2);
  const Case c = offloaded(
      test::make_case(3, shard, 1, 5,
                      {.micro_batches = 2, .prefetch = 1, .recompute = test::recomputed(true)}),
      {Place::pinned, parameters ? Place::pinned : Place::device, Place::pinned, update_method,
       master, false});
  const Program program = training_program(c.layout, c.cost, c.options);
  REQUIRE(problems(program, c) == "");
  CHECK_FALSE(test::indices(program, ActionKind::evict_input).empty());
  CHECK_FALSE(test::indices(program, ActionKind::evict_states).empty());
  for (std::size_t i = 0; i < program.actions.size(); ++i) {
    const Action& action = program.actions[i];
    CAPTURE(name({.update_method = update_method}), parameters, master, shard, i,
            describe(action, c.cost));
    const auto broken = [&](const std::function<void(Action&)>& mutate) {
      Program copy = program;
      mutate(copy.actions[i]);
      return !check(copy, c.layout, c.cost).empty();
    };
    Program twice = program;
    twice.actions.push_back(action);
    CHECK(problems(twice, c) != "");
    CHECK(broken([](Action& a) { a.part = a.part < 0 ? 0 : a.part + 1; }));
    CHECK(broken([](Action& a) { a.lane = a.lane == Lane::host ? Lane::compute : Lane::host; }));
    for (std::vector<int> Action::*ids : {&Action::reads, &Action::writes, &Action::frees}) {
      CHECK(broken([&](Action& a) { (a.*ids).push_back(0); }));
      for (std::size_t k = 0; k < (action.*ids).size(); ++k) {
        CHECK(broken([&](Action& a) { (a.*ids).erase((a.*ids).begin() + std::ptrdiff_t(k)); }));
        CHECK(broken([&](Action& a) { (a.*ids).push_back((a.*ids)[k]); }));
      }
    }
  }
}

TEST_CASE("offloaded states leave the device and are counted on the host", "[program]") {
  const Case plain = test::make_case(0, 1, 1, 4, {.micro_batches = 1});
  const Ledger all = peak_memory(training_program(plain.layout, plain.cost, plain.options));
  CHECK(all.host() == 0);
  const Case c =
      offloaded(plain, {Place::pinned, Place::device, Place::device, UpdateMethod::streamed});
  const Ledger ledger = peak_memory(training_program(c.layout, c.cost, c.options));
  CHECK(ledger.master == 0);
  CHECK(ledger.moments == 0);
  CHECK(ledger.pinned == all.master + all.moments);
  CHECK(ledger.state_buffers == 3 * 1024 * 12);
  CHECK(ledger.parameters == all.parameters);
  const Case cpu =
      offloaded(plain, {Place::pageable, Place::pinned, Place::device, UpdateMethod::host});
  const Ledger host = peak_memory(training_program(cpu.layout, cpu.cost, cpu.options));
  CHECK(host.pageable == all.master + all.moments);
  CHECK(host.pinned == all.parameters + 3 * 1024 * 4);
  CHECK(host.parameters == 0);
  CHECK(host.gather_buffers > 0);
}

TEST_CASE("a part that travels takes the media of its own place, whatever the states' is",
          "[program]") {
  const Case plain = test::make_case(0, 1, 1, 3, {.micro_batches = 1});
  Machine machine = h200();
  machine.host_memory_bytes_per_s = 1e6;
  const auto slowest_eviction = [&](Place parameters) {
    const Case c =
        offloaded(plain, {Place::device, parameters, Place::device, UpdateMethod::streamed});
    const Program program = training_program(c.layout, c.cost, c.options);
    const Simulation step = simulate(program, c.layout, c.cost, machine);
    double slowest = 0;
    for (const int i : test::indices(program, ActionKind::evict_states)) {
      const auto at = static_cast<std::size_t>(i);
      slowest = std::max(slowest, step.action_end_s[at] - step.action_start_s[at]);
    }
    return slowest;
  };
  // 1,024 parameters of two bytes through the host's memory, which the CPU copies once more.
  CHECK(slowest_eviction(Place::pinned) == Approx(2 * 1024 / 1e6));
  CHECK(slowest_eviction(Place::pageable) == Approx((1 + 3) * 2 * 1024 / 1e6));
}

TEST_CASE("updates of offloaded states run beside the next forward", "[program]") {
  // One step takes longer than its compute, but less than compute and updates in turn.
  Case plain = test::make_case(0, 1, 1, 6, {.micro_batches = 1});
  for (BlockCost& block : plain.cost.blocks) block.forward_flops = 1e7;
  for (const UpdateMethod update_method : {UpdateMethod::streamed, UpdateMethod::host}) {
    const Case c = offloaded(plain, {Place::pinned, Place::device, Place::device, update_method});
    const Program program = training_program(c.layout, c.cost, c.options);
    Machine machine = h200();
    machine.host_duplex_bytes_per_s = machine.host_update_bytes_per_s = 1e9;
    machine.flops_per_s = 1e11;
    const Simulation step = simulate(program, c.layout, c.cost, machine);
    double updates = 0;
    for (std::size_t i = 0; i < program.actions.size(); ++i) {
      if (program.actions[i].lane == Lane::fetch || program.actions[i].lane == Lane::host)
        updates += step.action_end_s[i] - step.action_start_s[i];
    }
    CHECK(updates > 0);
    CHECK(step.step_s < step.compute_s + 0.95 * updates);
    const Program evaluation = evaluation_program(c.layout, c.cost, c.options);
    CHECK(test::indices(evaluation, ActionKind::update).empty());
  }
}

}  // namespace
}  // namespace dstrain
