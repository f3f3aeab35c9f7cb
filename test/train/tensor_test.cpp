#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "test/support/catch.h"
#include "test/support/roundoff.h"
#include "test/train/sessions.h"
#include "test/train/small_runs.h"

namespace dstrain {
namespace {

using namespace test;

using Overrides = std::vector<std::string>;

/// Steps follow the gradient, however small: AdamW's first ones follow its sign, and so rounding.
const Overrides kPlainSteps = {"optimizer.name=sgd",       "optimizer.momentum=0",
                               "optimizer.lr=0.5",         "optimizer.weight_decay=0",
                               "optimizer.warmup_steps=0", "optimizer.schedule=constant"};

/// Each tensor has moved by the same, within `promised` of the way that it went; a tensor whose
/// gradient is 0 but for rounding (a key's bias) by nothing that counts.
void check_updates(const Trace& found, const Trace& expected) {
  REQUIRE(found.weights.size() == expected.weights.size());
  for (const auto& [name, tensor] : expected.weights) {
    CAPTURE(name);
    const std::vector<float>&other = found.weights.at(name), &from = expected.start.at(name);
    REQUIRE(found.start.at(name) == from);
    double difference = 0, way = 0;
    for (std::size_t i = 0; i < tensor.size(); ++i) {
      difference += std::pow(double{other[i]} - tensor[i], 2);
      way += std::pow(double{tensor[i]} - from[i], 2);
    }
    const double rounding = 1e-7 * std::sqrt(static_cast<double>(tensor.size()));
    CHECK(std::sqrt(difference) <= kPromised * std::sqrt(way) + rounding);
  }
}

void check_same(const Trace& found, const Trace& expected) {
  check_near(found, expected);
  check_updates(found, expected);
}

}  // namespace

TEST_CASE("tensor ranks give one rank's losses, norms and updates of every tensor",
          "[train][tensor]") {
  struct Kind {
    std::string model;
    Overrides overrides;
  };
  // A table that the ranks divide, and one that they do not; with 4 ranks, two share a key head.
  const Kind kind =
      GENERATE(Kind{"qwen2.5-7b", {"model.vocab_size=96"}}, Kind{"qwen2.5-7b", {}},
               Kind{"qwen2.5-0.5b", {"model.vocab_size=96"}}, Kind{"qwen2.5-0.5b", {}},
               Kind{"bloom-560m", {"model.vocab_size=96"}}, Kind{"bloom-560m", {}},
               Kind{"gpt2", {"model.vocab_size=96"}}, Kind{"gpt2", {}}, Kind{"vit", {}},
               Kind{"gemma-3-270m", {"model.vocab_size=96"}});
  const int tensor = GENERATE(2, 4);
  CAPTURE(kind.model, kind.overrides, tensor);
  const Overrides all = joined(kPlainSteps, kind.overrides);
  static std::map<Overrides, Trace> alone;  // by model and what it is given
  const Overrides key = joined({kind.model}, all);
  if (!alone.contains(key)) alone[key] = small_run(kind.model, 1, all);
  const Trace& expected = alone.at(key);
  check_same(
      small_run(kind.model, tensor, joined(all, {fmt::format("parallel.tensor={}", tensor)})),
      expected);
}

TEST_CASE("tensor ranks beside data ranks under every ZeRO stage give one rank's steps",
          "[train][tensor]") {
  const std::string model = GENERATE(as<std::string>(), "qwen2.5-0.5b", "bloom-560m", "gpt2");
  const int stage = GENERATE(0, 1, 2, 3);
  CAPTURE(model, stage);
  const Overrides all = joined(kPlainSteps, {"model.vocab_size=96"});
  const Trace expected = small_run(model, 1, all);
  check_same(
      small_run(model, 4,
                joined(all, {"parallel.tensor=2", fmt::format("parallel.zero.stage={}", stage)})),
      expected);
}

TEST_CASE("tensor ranks recompute blocks, and stand beside stages of a pipeline",
          "[train][tensor]") {
  const std::string model = "qwen2.5-7b";
  const Overrides all = joined(kPlainSteps, {"model.vocab_size=96"});
  const Trace expected = small_run(model, 1, all);
  check_same(small_run(model, 2, joined(all, {"parallel.tensor=2", "memory.recompute=blocks"})),
             expected);
  check_same(small_run(model, 4, joined(all, {"parallel.tensor=2", "parallel.pipeline=2"})),
             expected);
}

TEST_CASE("two micro-batches at once give the bits of one after the other", "[train][tensor]") {
  const std::string model = GENERATE(as<std::string>(), "qwen2.5-7b", "bloom-560m", "vit");
  const Overrides layout = GENERATE(Overrides{}, Overrides{"parallel.zero.stage=3"},
                                    Overrides{"parallel.zero.stage=2", "memory.recompute=blocks"},
                                    Overrides{"parallel.zero.stage=1", "lora.rank=2"},
                                    Overrides{"memory.offload.optimizer=pinned"});
  CAPTURE(model, layout);
  Overrides all = joined({"parallel.tensor=2", "batch.global=12", "batch.micro=2"}, layout);
  if (model != "vit") all.push_back("model.vocab_size=96");
  const Trace expected = small_run(model, 4, all),
              found = small_run(model, 4, joined(all, {"batch.concurrent=2"}));
  CHECK(found.losses == expected.losses);
  // A table that the head shares adds up the parts of its gradient in another order.
  if (model == "bloom-560m") return check_same(found, expected);
  CHECK(found.norms == expected.norms);
  CHECK(found.weights == expected.weights);
}

TEST_CASE("a stage of a table or a head alone is split over tensor and sequence ranks",
          "[train][tensor]") {
  // 97 rows: each tensor rank has the whole table, so that the stage exchanges nothing in training.
  const std::string model = "qwen2.5-7b", layers = GENERATE(as<std::string>(), "[0, 4]", "[4, 0]");
  const std::string axis = GENERATE(as<std::string>(), "tensor", "sequence");
  CAPTURE(layers, axis);
  const Overrides all = joined(kPlainSteps, {"run.evaluate=3"});
  const Trace expected = small_run(model, 1, all);
  const Trace found =
      small_run(model, 4,
                joined(all, {"parallel.pipeline=2", "parallel.stages.schedule=1f1b",
                             "parallel.stages.layers=" + layers, "parallel." + axis + "=2"}));
  check_same(found, expected);
  CHECK(found.evaluation.top1 == expected.evaluation.top1);
}

TEST_CASE("adapters and their dropout are the same on tensor ranks", "[train][tensor][lora]") {
  const int tensor = GENERATE(2, 4);
  const Overrides all =
      joined(kPlainSteps, {"lora.rank=4", "lora.dropout=0.25",
                           "lora.targets=[q_proj, k_proj, v_proj, o_proj, gate_proj, down_proj]"});
  CAPTURE(tensor);
  const Trace expected = small_run("qwen2.5-0.5b", 1, all);
  check_same(
      small_run("qwen2.5-0.5b", tensor, joined(all, {fmt::format("parallel.tensor={}", tensor)})),
      expected);
}

TEST_CASE("evaluation counts each target once on tensor ranks", "[train][tensor]") {
  const std::string model = GENERATE(as<std::string>(), "qwen2.5-0.5b", "vit");
  const Overrides all =
      joined(kPlainSteps, {"run.evaluate=3", "batch.micro=4",
                           model == "vit" ? "batch.global=24" : "model.vocab_size=96"});
  CAPTURE(model);
  const Trace expected = small_run(model, 1, all);
  REQUIRE(expected.evaluation.targets > 0);
  const EvaluationTotals found = small_run(model, 2, joined(all, {"parallel.tensor=2"})).evaluation;
  CHECK(found.targets == expected.evaluation.targets);
  CHECK(found.top1 == expected.evaluation.top1);
  CHECK(std::abs(found.loss - expected.evaluation.loss) <= kPromised * expected.evaluation.loss);
}

TEST_CASE("tensor ranks exchange what the program says", "[train][tensor]") {
  const std::string model = GENERATE(as<std::string>(), "qwen2.5-0.5b", "bloom-560m", "vit");
  const std::string vocabulary = GENERATE(as<std::string>(), "96", "97");
  Overrides all = {"parallel.tensor=2", "batch.micro=4"};
  if (model != "vit") all.push_back("model.vocab_size=" + vocabulary);
  CAPTURE(model, vocabulary);
  const Recipe recipe = small_recipe(model, all);
  with_sessions(
      2, [&](int) { return recipe; },
      [&](int, Session& session) {
        session.seek(0);
        session.enqueue_step();
        (void)session.executor().take_outcome();
        const CommChannel channel = {Axis::tensor, Lane::compute};
        std::map<std::string, std::pair<std::int64_t, Bytes>> named, counted;
        for (const Action& action : session.strategy().training.actions) {
          for (const Comm& comm : action.comm) {
            if (CommChannel{comm.axis, action.lane} != channel) continue;
            std::string operation = comm_name(comm.op);
            std::ranges::replace(operation, '-', '_');
            auto& [calls, bytes] = named[operation];
            ++calls;
            bytes += comm.bytes;
          }
        }
        for (const CallCount& count : session.communicators().at(channel).counts())
          if (count.calls > 0) counted[count.operation] = {count.calls, count.bytes};
        if (counted != named) throw std::runtime_error("counted and named bytes differ");
      });
}

TEST_CASE("a degree that heads or rows do not divide by is refused with those that work",
          "[train][tensor]") {
  const auto message_of = [](int ranks, const Overrides& overrides) {
    std::string message;
    try {
      (void)small_run("qwen2.5-0.5b", ranks, overrides);
    } catch (const Error& error) {
      message = error.what();
    }
    return message;
  };
  CHECK(message_of(3, {"parallel.tensor=3"}).find("parallel.tensor: 3 must divide 4 heads") !=
        std::string::npos);
  CHECK(message_of(4, {"parallel.tensor=4", "batch.micro=1", "data.sequence=18"})
            .find("parallel.tensor: 4 ranks do not divide the 1 x 18 = 18 rows") !=
        std::string::npos);
}

}  // namespace dstrain
