#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/checkpoint/checkpoint.h"
#include "engine/recipe/load.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"
#include "test/train/sessions.h"
#include "test/train/small_runs.h"

// ZeRO++: a second shard changes no bit; codes change losses little, and the same in every run.

namespace dstrain {
namespace {

using test::joined;
using test::with_sessions;

constexpr int kZeroppSteps = 20;
constexpr int kAgain = 4;  ///< of a run that is made again: what differs does so at once

using Overrides = std::vector<std::string>;

/// More groups than slots, so that groups are gathered more than once a step; two micro-batches.
Recipe zeropp_recipe(int ranks, const Overrides& more) {
  Overrides overrides = {"batch.global=32",
                         fmt::format("batch.micro={}", 16 / ranks),
                         "run.steps=20",
                         "run.epochs=0",
                         "model.layers=4",
                         "model.width=32",
                         "model.heads=2",
                         "optimizer.warmup_steps=0",
                         "optimizer.lr=0.003",
                         "optimizer.schedule=constant",
                         "data.workers=1",
                         "parallel.zero.stage=3",
                         "parallel.zero.prefetch=0",
                         "memory.offload.chunk=1024",
                         "memory.offload.threads=2"};
  overrides.insert(overrides.end(), more.begin(), more.end());
  return load_recipe("recipes/quickstart.yaml", overrides).recipe;
}

struct ZeroppOutcome {
  std::vector<double> losses, norms;
  double evaluation = 0;
  std::map<std::string, std::vector<float>> weights;
  bool operator==(const ZeroppOutcome&) const = default;
};

ZeroppOutcome trained(int ranks, const Overrides& overrides, int steps) {
  const Recipe recipe = zeropp_recipe(ranks, overrides);
  ZeroppOutcome outcome;
  with_sessions(
      ranks, [&](int) { return recipe; },
      [&](int rank, Session& session) {
        ZeroppOutcome own;
        session.seek(0);
        for (int step = 0; step < steps; ++step) {
          session.enqueue_step();
          const StepOutcome out = session.executor().take_outcome();
          own.losses.push_back(out.loss);
          own.norms.push_back(out.gradient_norm);
          if (step == 1) own.evaluation = session.evaluate().loss;
        }
        own.weights = session.gathered_weights();
        if (rank == 0) outcome = std::move(own);
      });
  return outcome;
}

/// A few steps on few samples, so that the evaluation is short.
ZeroppOutcome short_run(int ranks, const Overrides& overrides) {
  return trained(ranks, joined({"data.subset=128"}, overrides), 4);
}

const Overrides kAll = {"precision.gather=int8", "precision.reduce=int4",
                        "parallel.zero.second_shard=2"};

/// The runs began alike; `again` may be the shorter one.
void check_begin(const ZeroppOutcome& again, const ZeroppOutcome& whole) {
  const auto begins = [](const std::vector<double>& all, const std::vector<double>& begin) {
    return begin.size() <= all.size() && std::equal(begin.begin(), begin.end(), all.begin());
  };
  REQUIRE(again.losses.size() == static_cast<std::size_t>(kAgain));
  CHECK(begins(whole.losses, again.losses));
  CHECK(begins(whole.norms, again.norms));
}

/// The largest difference of losses, relative.
double distance(const ZeroppOutcome& a, const ZeroppOutcome& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.losses.size(); ++i)
    largest = std::max(largest, std::abs(a.losses[i] - b.losses[i]) / std::abs(b.losses[i]));
  return largest;
}

}  // namespace

TEST_CASE("a second shard changes no bit", "[train][zeropp]") {
  const auto [ranks, second] = GENERATE(std::pair(2, 2), std::pair(4, 2), std::pair(4, 4));
  const Overrides base = GENERATE(Overrides{}, Overrides{"precision.compute=bf16"},
                                  Overrides{"memory.recompute=blocks", "parallel.zero.prefetch=1"});
  CAPTURE(ranks, second, fmt::format("{}", fmt::join(base, " ")));
  const ZeroppOutcome expected = short_run(ranks, base);
  CHECK(short_run(ranks, joined(base, {"parallel.zero.second_shard=1"})) == expected);
  CHECK(short_run(ranks, joined(base, {fmt::format("parallel.zero.second_shard={}", second)})) ==
        expected);
}

TEST_CASE("codes change losses little, and the same in every run", "[train][zeropp]") {
  // Rounding: of weights in each product, of sums in each step's gradient.
  struct Form {
    Overrides overrides;
    double bound;  ///< of the losses' relative distance
  };
  const auto form =
      GENERATE(Form{{"precision.gather=int8"}, 0.005}, Form{{"precision.gather=fp8"}, 0.02},
               Form{{"precision.gather=int4"}, 0.03}, Form{{"precision.reduce=int8"}, 0.01},
               Form{{"precision.reduce=int4"}, 0.03},
               Form{{"precision.gather=int8", "precision.reduce=int4"}, 0.03},
               Form{{"precision.reduce=int4", "parallel.zero.stage=2"}, 0.03});
  const int ranks = GENERATE(2, 4), second = GENERATE(1, 2);
  const bool whole = form.overrides.back() == "parallel.zero.stage=2";
  if (whole && second > 1) return;
  CAPTURE(ranks, second, fmt::format("{}", fmt::join(form.overrides, " ")));
  static std::map<int, ZeroppOutcome> plain;
  if (!plain.contains(ranks)) plain[ranks] = trained(ranks, {}, kZeroppSteps);
  // The loss falls by more than the bounds.
  REQUIRE(plain[ranks].losses.back() < 0.97 * plain[ranks].losses.front());
  const Overrides all =
      joined(form.overrides, {fmt::format("parallel.zero.second_shard={}", whole ? 0 : second)});
  const ZeroppOutcome found = trained(ranks, all, kZeroppSteps);
  CHECK(distance(found, plain[ranks]) < form.bound);
  CHECK(std::abs(found.evaluation - plain[ranks].evaluation) <
        form.bound * plain[ranks].evaluation);
  // Inner groups of all ranks send no gradient as codes.
  const bool coded = form.overrides.front().starts_with("precision.gather") || second < ranks;
  CHECK((found == plain[ranks]) != coded);
  check_begin(trained(ranks, all, kAgain), found);
}

TEST_CASE("codes fill fp16 slots and change losses little", "[train][zeropp]") {
  const Overrides base = {"precision.compute=fp16", "precision.loss_scale.fixed=128"};
  const ZeroppOutcome plain = trained(2, base, kZeroppSteps);
  REQUIRE(plain.losses.back() < 0.97 * plain.losses.front());
  for (const auto& [format, bound] :
       {std::pair("int8", 0.005), std::pair("fp8", 0.02), std::pair("int4", 0.03)}) {
    CAPTURE(format);
    const Overrides codes = joined(base, {fmt::format("precision.gather={}", format)});
    const ZeroppOutcome found = trained(2, codes, kZeroppSteps);
    CHECK(distance(found, plain) < bound);
    CHECK(found != plain);
    check_begin(trained(2, codes, kAgain), found);
  }
}

TEST_CASE("codes and second shards of parameters that rest on the host are the same bits",
          "[train][zeropp]") {
  const Overrides form =
      GENERATE(Overrides{"parallel.zero.second_shard=2"}, Overrides{"precision.gather=int4"},
               Overrides{"precision.gather=fp8", "precision.compute=bf16"},
               Overrides{"precision.gather=int8", "precision.compute=fp16"}, kAll);
  const char* place = GENERATE("pinned", "pageable");
  CAPTURE(place, fmt::format("{}", fmt::join(form, " ")));
  const ZeroppOutcome expected = short_run(4, form);
  const Overrides host = {fmt::format("memory.offload.parameters={}", place),
                          fmt::format("memory.offload.optimizer={}", place)};
  CHECK(short_run(4, joined(form, host)) == expected);
}

TEST_CASE("copies of the state and frozen groups go with codes", "[train][zeropp]") {
  const Overrides base = GENERATE(Overrides{"parallel.zero.shard=2"}, Overrides{"lora.rank=4"});
  CAPTURE(fmt::format("{}", fmt::join(base, " ")));
  const ZeroppOutcome plain = short_run(4, base);
  const Overrides second = joined(base, {"parallel.zero.second_shard=2"});
  CHECK(short_run(4, second) == plain);
  // Between all ranks that share the states, or gradients would stay as they are.
  const Overrides codes = joined(base, {"precision.gather=int8", "precision.reduce=int4"});
  const ZeroppOutcome found = short_run(4, codes);
  CHECK(distance(found, plain) < 0.02);
  CHECK(found != plain);
  CHECK(short_run(4, codes) == found);
}

TEST_CASE("offloaded optimizer states change no bit beside ZeRO++", "[train][zeropp]") {
  const int ranks = GENERATE(2, 4);
  const ZeroppOutcome expected = short_run(ranks, kAll);
  for (const char* update : {"gpu", "cpu"}) {
    CAPTURE(ranks, update);
    CHECK(short_run(ranks, joined(kAll, {"memory.offload.optimizer=pinned",
                                         fmt::format("memory.offload.update={}", update)})) ==
          expected);
  }
}

TEST_CASE("a resumed run of ZeRO++ goes on bit for bit", "[train][zeropp][checkpoint]") {
  const int ranks = GENERATE(2, 4);
  CAPTURE(ranks);
  const test::TempDir folder;
  const Recipe recipe = zeropp_recipe(ranks, joined(kAll, {"precision.compute=bf16"}));
  constexpr int kSaved = 3, kEnd = 6;
  std::vector<double> whole, resumed;
  const auto run_to = [](Session& session, int first, int end, std::vector<double>& losses) {
    for (int step = first; step < end; ++step) {
      session.enqueue_step();
      losses.push_back(session.executor().take_outcome().loss);
    }
  };
  const auto store = make_memory_store();
  with_sessions(
      ranks, [&](int) { return recipe; },
      [&](int rank, Session& session) {
        std::vector<double> losses;
        session.seek(0);
        run_to(session, 0, kSaved, losses);
        const auto saver = make_saver(
            store, {.root = folder.path(), .rank = rank, .world_size = ranks, .attempt = "1"});
        saver->start({.step = kSaved, .world_size = ranks, .base = {}, .recipe = "model: {}\n"},
                     session.states().snapshot());
        const auto result = saver->wait();
        if (!result || !result->ok) throw std::runtime_error(result ? result->error : "no result");
        run_to(session, kSaved, kEnd, losses);
        if (rank == 0) whole = losses;
      });
  const auto reader = CheckpointReader::open(folder / "step-00000003", /*verify=*/true);
  with_sessions(
      ranks, [&](int) { return recipe; },
      [&](int rank, Session& session) {
        std::vector<double> losses;
        session.states().restore(*reader);
        session.executor().set_control({.applied_steps = kSaved});
        session.seek(kSaved);
        run_to(session, kSaved, kEnd, losses);
        if (rank == 0) resumed = losses;
      });
  CHECK(resumed == std::vector<double>(whole.begin() + kSaved, whole.end()));
}

TEST_CASE("ZeRO++ holds and sends what the program says", "[train][zeropp]") {
  const Recipe recipe = zeropp_recipe(4, joined(kAll, {"precision.compute=bf16"}));
  with_sessions(
      4, [&](int) { return recipe; },
      [&](int, Session& session) {
        session.seek(0);
        session.enqueue_step();
        (void)session.executor().take_outcome();
        const Program& program = session.strategy().training;
        for (const BufferRole role :
             {BufferRole::second_shard, BufferRole::coded_parameters, BufferRole::coded_gradient}) {
          Bytes planned = 0;
          for (const int id : program.buffers_of(role))
            planned += program.buffers[static_cast<std::size_t>(id)].bytes();
          if (planned == 0 || session.executor().allocated_bytes(role) != planned)
            throw std::runtime_error(role_name(role));
        }
        std::map<CommChannel, std::pair<std::int64_t, Bytes>> planned;
        for (const Action& action : program.actions) {
          for (const Comm& comm : action.comm) {
            auto& [calls, bytes] = planned[{comm.axis, action.lane}];
            ++calls;
            bytes += comm.bytes;
          }
        }
        for (const auto& [channel, sum] : planned) {
          if (channel == kWorldChannel) continue;
          std::pair<std::int64_t, Bytes> counted;
          for (const CallCount& count : session.communicators().at(channel).counts()) {
            counted.first += count.calls;
            counted.second += count.bytes;
          }
          if (counted != sum)
            throw std::runtime_error(fmt::format("{}: {} calls of {} bytes, planned {} of {}",
                                                 comm_axis_name(channel.axis), counted.first,
                                                 counted.second, sum.first, sum.second));
        }
      });
}

}  // namespace dstrain
