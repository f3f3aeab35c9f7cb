#include "engine/train/execute/replicas.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/replica_words.h"
#include "engine/models/groups.h"
#include "test/support/catch.h"
#include "test/support/variable.h"
#include "test/train/sessions.h"
#include "test/train/small_runs.h"

/// Wrong bits are named, and nothing else is.
namespace dstrain {
namespace {

using test::with_sessions;

struct ReplicaWay {
  const char* name;
  const char* model;
  int ranks;
  std::vector<std::string> settings;
  int wrong = 2;  ///< rank that gets the bit
  int group = 1;  ///< of parameters, whose first element it is of
  bool majority = true;
};

const std::vector<ReplicaWay>& replica_ways() {
  static const std::vector<ReplicaWay> list = {
      {"DDP", "vit", 3, {"parallel.zero.stage=0"}},
      {"ZeRO-1", "vit", 3, {"parallel.zero.stage=1"}},
      {"ZeRO-2", "vit", 3, {"parallel.zero.stage=2"}},
      {"ZeRO-2 in two copies", "vit", 4, {"parallel.zero.stage=2", "parallel.zero.shard=2"}},
      // Rank 4 has the first shard.
      {"ZeRO-3 in three copies", "vit", 6, {"parallel.zero.stage=3", "parallel.zero.shard=2"}, 4},
      {"tensor 2 x data 3", "bloom-560m", 6, {"parallel.tensor=2", "parallel.zero.stage=0"}},
      // Rank 2 is of the first stage.
      {"pipeline 2 x data 3", "vit", 6, {"parallel.pipeline=2", "parallel.zero.stage=0"}},
      {"pipeline 2 x data 2",
       "bloom-560m",
       4,
       {"parallel.pipeline=2", "parallel.zero.stage=1"},
       1,
       1,
       false},
      // Both stages have the table.
      {"tied tables, pipeline 2 x data 2",
       "bloom-560m",
       4,
       {"parallel.pipeline=2", "parallel.zero.stage=1"},
       1,
       0},
      {"bf16", "vit", 3, {"parallel.zero.stage=0", "precision.compute=bf16"}},
      {"offloaded states",
       "vit",
       3,
       {"parallel.zero.stage=1", "memory.offload.optimizer=pinned", "memory.offload.share=1"}},
  };
  return list;
}

Recipe recipe_of(const ReplicaWay& way, int steps, int every) {
  std::vector<std::string> all = {fmt::format("run.steps={}", steps),
                                  fmt::format("run.compare_replicas={}", every),
                                  "run.checkpoint.every=never", "run.evaluate=never"};
  return test::small_recipe(way.model, test::joined(all, way.settings));
}

/// The first tensor of a group of parameters.
std::string tensor_of(const Recipe& recipe, int ranks, int group) {
  std::string name;
  with_sessions(
      ranks, [&](int) { return recipe; },
      [&](int rank, Session& session) {
        if (rank != 0) return;
        const auto groups = group_parameters(session.model()).groups;
        name = groups.at(static_cast<std::size_t>(group)).front()->parts.front().name;
      });
  return name;
}

/// What each rank says of the step at which replicas differ first; steps are counted from 1.
struct FoundReplicas {
  std::int64_t step = -1;
  int compared = 0;
  std::vector<Session::WrongReplica> by_rank;
};

FoundReplicas compared_run(const Recipe& recipe, int ranks) {
  FoundReplicas found;
  found.by_rank.resize(static_cast<std::size_t>(ranks));
  with_sessions(
      ranks, [&](int) { return recipe; },
      [&](int rank, Session& session) {
        session.seek(0);
        while (session.next_step() < session.end_step()) {
          session.enqueue_step();
          const StepOutcome outcome = session.executor().take_outcome();
          if (rank == 0) found.compared += outcome.replicas ? 1 : 0;
          const auto wrong = session.look_at_replicas(outcome);
          if (!wrong) continue;
          found.by_rank[static_cast<std::size_t>(rank)] = *wrong;
          if (rank == 0) found.step = outcome.step + 1;
          return;
        }
      });
  return found;
}

TEST_CASE("a wrong bit is named by the next comparison, wherever ranks hold replicas",
          "[train][replicas]") {
  const ReplicaWay& way = GENERATE(from_range(replica_ways()));
  CAPTURE(way.name);
  const Recipe recipe = recipe_of(way, 6, 3);
  const std::string tensor = tensor_of(recipe, way.ranks, way.group);
  // What is gathered anew in each step is compared in that step only.
  const bool gathered = recipe.parallel.zero.stage == 1 || recipe.parallel.zero.stage == 2;
  const int step = gathered ? 3 : 2;
  const test::Variable testing("DSTRAIN_TESTING", "1");
  const test::Variable flip("DSTRAIN_FLIP", fmt::format("{}:{}:{}:22", way.wrong, step, tensor));
  const FoundReplicas found = compared_run(recipe, way.ranks);
  REQUIRE(found.step == 3);
  for (int rank = 0; rank < way.ranks; ++rank) {
    const Session::WrongReplica& own = found.by_rank[static_cast<std::size_t>(rank)];
    CAPTURE(rank, own.text);
    CHECK(own.text == found.by_rank.front().text);
    CHECK(own.ranks.find(fmt::format("rank {} on ", way.wrong)) != std::string::npos);
    CHECK(own.text.starts_with(way.majority ? kWrongReplica : kReplicasDiffer));
    if (way.majority) CHECK(own.own == (rank == way.wrong));
  }
}

TEST_CASE("ranks that are right are never named", "[train][replicas]") {
  const ReplicaWay& way = GENERATE(from_range(replica_ways()));
  CAPTURE(way.name);
  const FoundReplicas found = compared_run(recipe_of(way, 12, 1), way.ranks);
  CAPTURE(found.by_rank.front().text);
  CHECK(found.step == -1);
  CHECK(found.compared == 12);
}

TEST_CASE("of two copies both are named", "[train][replicas]") {
  const ReplicaWay way = {"DDP", "vit", 2, {"parallel.zero.stage=0"}};
  const Recipe recipe = recipe_of(way, 4, 2);
  const std::string tensor = tensor_of(recipe, 2, 1);
  const test::Variable testing("DSTRAIN_TESTING", "1");
  const test::Variable flip("DSTRAIN_FLIP", fmt::format("1:1:{}:20", tensor));
  const FoundReplicas found = compared_run(recipe, 2);
  REQUIRE(found.step == 2);
  for (const Session::WrongReplica& own : found.by_rank) {
    CAPTURE(own.text);
    CHECK(own.own);
    CHECK(own.text.starts_with(kReplicasDiffer));
    CHECK(own.text.find("rank 0 on ") != std::string::npos);
    CHECK(own.text.find("rank 1 on ") != std::string::npos);
  }
}

TEST_CASE("states that a checkpoint takes are compared where ranks share them",
          "[train][replicas]") {
  const ReplicaWay way =
      GENERATE(ReplicaWay{"DDP", "vit", 3, {"parallel.zero.stage=0", "precision.compute=bf16"}},
               ReplicaWay{"ZeRO-2", "vit", 6, {"parallel.zero.stage=2", "parallel.zero.shard=2"}},
               ReplicaWay{"ZeRO-1 in one copy", "vit", 3, {"parallel.zero.stage=1"}});
  CAPTURE(way.name);
  const bool shared = std::string(way.name) != "ZeRO-1 in one copy";
  const Recipe recipe = recipe_of(way, 4, 100);
  std::atomic<int> named = 0;
  with_sessions(
      way.ranks, [&](int) { return recipe; },
      [&](int rank, Session& session) {
        session.seek(0);
        session.enqueue_step();
        CHECK_FALSE(session.executor().take_outcome().replicas);
        CHECK(session.compares_states() == shared);
        CHECK_FALSE(session.compare_states());
        if (rank == 1) {
          const Range own = session.states().moment_range(1, 1);
          session.states().moment(1, 1, own)[0].add_(1);
        }
        const auto wrong = session.compare_states();
        CHECK(wrong.has_value() == shared);
        if (wrong) named += wrong->own ? 1 : 0;
        if (wrong) CHECK(wrong->ranks.find("rank 1 on ") == 0);
      });
  CHECK(named == (shared ? 1 : 0));
}

TEST_CASE("nothing is compared where no two ranks hold the same, or none is asked for",
          "[train][replicas]") {
  const bool asked = GENERATE(false, true);
  const ReplicaWay way = {
      "", "vit", 2, {asked ? "parallel.zero.stage=3" : "parallel.zero.stage=0"}};
  const FoundReplicas found = compared_run(recipe_of(way, 3, asked ? 1 : 0), 2);
  CHECK(found.step == -1);
  CHECK(found.compared == 0);
}

TEST_CASE("a wrong bit for tests is refused unless tests are said to run", "[train][replicas]") {
  const ReplicaWay way = {"DDP", "vit", 1, {}};
  const Recipe recipe = recipe_of(way, 2, 1);
  const auto refused = [&](const std::string& flip) {
    const test::Variable variable("DSTRAIN_FLIP", flip);
    try {
      with_sessions(
          1, [&](int) { return recipe; }, [](int, Session&) {});
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(refused("0:1:x:20").find("DSTRAIN_FLIP is set, which makes a rank train wrong weights") ==
        0);
  const test::Variable testing("DSTRAIN_TESTING", "1");
  CHECK(refused("0:1:x:20").find("no tensor 'x'") != std::string::npos);
  CHECK(refused("0:1:x").find("has 3 parts") != std::string::npos);
  CHECK(refused("0:one:x:20").find("'one' is no step") != std::string::npos);
  CHECK(refused("0:1:x:32").find("'32' is no bit of fp32") != std::string::npos);
}

}  // namespace
}  // namespace dstrain
