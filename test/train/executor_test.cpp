#include <ATen/ops/zeros.h>

#include <cmath>
#include <map>
#include <mutex>

#include "engine/base/error.h"
#include "test/support/catch.h"
#include "test/train/small_rank.h"

// The executor alone, on a model of three blocks whose middle one has running statistics over the
// data ranks. Exceptions carry what threads find; Catch2's macros are used on one thread at a time.

namespace dstrain {
namespace {

using test::Setup;
using test::SmallRank;
using test::with_ranks;

/// Sums of at most some hundred fp32 numbers in another order, over a few steps.
constexpr double kTolerance = 2e-5;

std::mutex catch_mutex;

/// What a run of some steps leaves, and what it computed on the way.
struct ExecutorTrace {
  std::vector<double> losses, norms, evaluations;
  std::vector<double> state;  ///< mean and variance
  std::int64_t samples = 0;
};

constexpr int kExecutorSteps = 4;

ExecutorTrace trace_of(const Setup& setup) {
  std::vector<ExecutorTrace> traces(static_cast<std::size_t>(setup.ranks));
  with_ranks(setup, [&](SmallRank& rank) {
    ExecutorTrace& trace = traces[static_cast<std::size_t>(rank.rank)];
    trace.evaluations.push_back(rank.evaluate().loss);
    for (int step = 0; step < kExecutorSteps; ++step) {
      const StepOutcome outcome = rank.step();
      trace.losses.push_back(outcome.loss);
      trace.norms.push_back(outcome.gradient_norm);
      trace.evaluations.push_back(rank.evaluate().loss);
    }
    const std::vector<at::Tensor> state = rank.state();
    for (const at::Tensor& tensor : {state[0], state[1]}) {
      const auto* values = tensor.const_data_ptr<float>();
      trace.state.insert(trace.state.end(), values, values + tensor.numel());
    }
    trace.samples = state[2].item<std::int64_t>();
  });
  for (const ExecutorTrace& other : traces) {
    CHECK(other.losses == traces[0].losses);
    CHECK(other.evaluations == traces[0].evaluations);
    CHECK(other.state == traces[0].state);  // bit for bit: a checkpoint has one of them
    CHECK(other.samples == traces[0].samples);
  }
  return traces[0];
}

void check_close(const std::vector<double>& found, const std::vector<double>& expected) {
  REQUIRE(found.size() == expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    CAPTURE(i, found[i], expected[i]);
    CHECK(std::abs(found[i] - expected[i]) <= kTolerance * std::max(1.0, std::abs(expected[i])));
  }
}

TEST_CASE("losses, evaluations and running statistics are those of one rank",
          "[train][executor][parity]") {
  const int micro_batches = GENERATE(1, 2);
  const ExecutorTrace alone = trace_of({.micro_batches = micro_batches});
  CHECK(alone.samples == kExecutorSteps * 10);
  CHECK(std::abs(alone.state[0]) > 1e-3);
  CHECK(std::abs(alone.losses.front() - alone.losses.back()) > 0.01);
  CHECK(std::abs(alone.evaluations[0] - alone.evaluations[1]) > 1e-3);
  // Neither 2 nor 3 ranks share the samples evenly.
  const int ranks = GENERATE(1, 2, 3), stage = GENERATE(0, 1, 2, 3);
  const bool recompute = GENERATE(false, true);
  CAPTURE(micro_batches, ranks, stage, recompute);
  const ExecutorTrace trace = trace_of(
      {.ranks = ranks, .stage = stage, .recompute = recompute, .micro_batches = micro_batches});
  check_close(trace.losses, alone.losses);
  check_close(trace.norms, alone.norms);
  check_close(trace.evaluations, alone.evaluations);
  check_close(trace.state, alone.state);
  CHECK(trace.samples == alone.samples);
}

TEST_CASE("a gradient that ranks sum in parts is that of one all-reduce", "[train][executor]") {
  const int ranks = GENERATE(2, 4), micro_batches = GENERATE(1, 2);
  const auto trace = [&](bool peers) {
    return trace_of({.ranks = ranks, .micro_batches = micro_batches, .peers = peers});
  };
  const ExecutorTrace whole = trace(false), in_parts = trace(true);
  check_close(in_parts.losses, whole.losses);  // squares of the norm are added in another order
  check_close(in_parts.norms, whole.norms);
  check_close(in_parts.evaluations, whole.evaluations);
  with_ranks({.ranks = ranks, .peers = true}, [](SmallRank& rank) {
    const auto& actions = rank.strategy.training.actions;
    const auto sums = std::ranges::count(actions, ActionKind::gather_sum, &Action::kind);
    const std::scoped_lock lock(catch_mutex);
    CHECK(sums == static_cast<std::int64_t>(rank.cost.groups.size()));
  });
}

TEST_CASE("only the first forward of a training step changes the state of a block",
          "[train][executor]") {
  with_ranks({.ranks = 2, .stage = 2, .recompute = true, .micro_batches = 2}, [](SmallRank& rank) {
    const auto equal = [](const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
      return a[0].equal(b[0]) && a[1].equal(b[1]) && a[2].equal(b[2]);
    };
    const auto modes = [&] { return std::exchange(rank.norm().modes, {}); };
    using enum Mode;
    const std::vector<at::Tensor> before = rank.state();
    (void)rank.step();
    const std::vector<at::Tensor> after = rank.state();
    const auto of_step = modes();
    (void)rank.evaluate();
    const auto of_evaluation = modes();
    test::SampleSource source(rank.setup, rank.rank, 1);
    Batch batch = source.batch(0);
    const at::Tensor next =
        rank.executor->next_tokens(batch, at::zeros({rank.setup.micro()}, at::kLong));
    const auto of_generation = modes();
    (void)rank.executor->find_non_finite(source, 0);
    const auto of_search = modes();

    const std::scoped_lock lock(catch_mutex);
    CHECK((of_step == std::vector{train, recompute, train, recompute}));
    CHECK((of_evaluation == std::vector{evaluate, evaluate}));
    CHECK((of_generation == std::vector{generate}));
    CHECK((of_search == std::vector{recompute, recompute}));
    CHECK(!equal(before, after));
    CHECK(after[2].item<std::int64_t>() == 10);
    CHECK(equal(rank.state(), after));
    CHECK(next.numel() == rank.setup.micro());
  });
}

TEST_CASE("ranks call the collectives that the program names, with its bytes",
          "[train][executor]") {
  const int stage = GENERATE(0, 1, 2, 3);
  const bool recompute = GENERATE(false, true), peers = GENERATE(false, true);
  CAPTURE(stage, recompute, peers);
  with_ranks(
      {.ranks = 2, .stage = stage, .recompute = recompute, .micro_batches = 2, .peers = peers},
      [](SmallRank& rank) {
        using Counts = std::map<std::string, std::pair<std::int64_t, Bytes>>;
        const auto counted = [&] {
          Counts counts;
          for (const auto& [channel, communicator] : rank.communicators) {
            for (const CallCount& count : communicator->counts()) {
              auto& [calls, bytes] = counts[std::string(comm_axis_name(channel.axis)) + " " +
                                            lane_name(channel.lane) + " " + count.operation];
              calls += count.calls;
              bytes += count.bytes;
            }
          }
          return counts;
        };
        (void)rank.step();
        Counts named;
        for (const Action& action : rank.strategy.training.actions) {
          for (const Comm& comm : action.comm) {
            std::string operation = comm_name(comm.op);
            std::ranges::replace(operation, '-', '_');
            auto& [calls, bytes] = named[std::string(comm_axis_name(comm.axis)) + " " +
                                         lane_name(action.lane) + " " + operation];
            ++calls;
            bytes += comm.bytes;
          }
        }
        const std::scoped_lock lock(catch_mutex);
        CHECK(counted() == named);
        CHECK(named.at("batch compute all_reduce").first == 2 * (rank.setup.recompute ? 3 : 2));
      });
}

TEST_CASE("executor and state store hold the buffers of the program", "[train][executor]") {
  const int stage = GENERATE(0, 1, 2, 3), ranks = GENERATE(1, 2, 3);
  CAPTURE(stage, ranks);
  with_ranks({.ranks = ranks, .stage = stage, .micro_batches = 2}, [](SmallRank& rank) {
    const Program& program = rank.strategy.training;
    const auto planned = [&](BufferRole role) {
      Bytes bytes = 0;
      for (const int id : program.buffers_of(role))
        bytes += program.buffers[static_cast<std::size_t>(id)].bytes();
      return bytes;
    };
    const StateStore& states = *rank.states;
    const auto bytes = [](const at::Tensor& whole, const at::Tensor& own) {
      return static_cast<Bytes>((whole.defined() ? whole : own).nbytes());
    };
    Bytes parameters = 0, gradients = 0, untrained = 0;
    for (int g = 0; g < static_cast<int>(states.num_groups()); ++g) {
      parameters += bytes(states.resident_parameters(g), states.own_parameters(g));
      gradients += bytes(states.resident_gradient(g), states.own_gradient(g));
    }
    for (const BlockState* state : all_states(rank.model))
      untrained += static_cast<Bytes>(state->value.nbytes());
    const std::scoped_lock lock(catch_mutex);
    for (const BufferRole role : {BufferRole::gathered, BufferRole::whole_gradient,
                                  BufferRole::shard_sum, BufferRole::wire}) {
      CAPTURE(role_name(role));
      CHECK(rank.executor->allocated_bytes(role) == planned(role));
    }
    CHECK((planned(BufferRole::gathered) > 0) == (rank.setup.stage == 3 && rank.setup.ranks > 1));
    CHECK((planned(BufferRole::shard_sum) > 0) == (rank.setup.stage >= 2 && rank.setup.ranks > 1));
    CHECK(parameters == planned(BufferRole::parameters));
    CHECK(gradients == planned(BufferRole::gradient));
    CHECK(untrained == planned(BufferRole::block_state));
    CHECK(untrained == 2 * test::kWidth * 4 + 8);
  });
}

TEST_CASE("outcomes come in the order of the steps, whenever they are taken", "[train][executor]") {
  std::vector<double> one_by_one, queued;
  with_ranks({.ranks = 1}, [&](SmallRank& rank) {
    for (int step = 0; step < 3; ++step) one_by_one.push_back(rank.step().loss);
  });
  with_ranks({.ranks = 1}, [&](SmallRank& rank) {
    CHECK(rank.executor->pending() == 0);
    CHECK_THROWS_AS(rank.executor->take_outcome(), Error);
    for (std::size_t step = 1; step <= 3; ++step) {
      rank.enqueue();
      CHECK(rank.executor->pending() == step);
    }
    for (std::int64_t step = 0; step < 3; ++step) {
      const StepOutcome outcome = rank.executor->take_outcome();
      CHECK(outcome.step == step);
      CHECK(outcome.targets == 10);
      CHECK(outcome.applied_steps == static_cast<double>(step + 1));
      CHECK_FALSE(outcome.skipped);
      queued.push_back(outcome.loss);
    }
    CHECK(rank.executor->pending() == 0);
  });
  CHECK(queued == one_by_one);
}

}  // namespace
}  // namespace dstrain
