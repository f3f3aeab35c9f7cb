#include "launcher/hang/hang_report.h"

#include <nlohmann/json.hpp>

#include "test/support/catch.h"

namespace dstrain::launcher {
namespace {

constexpr const char* kWaiting =
    "[kernel] futex() in futex_wait\nwait in libgloo.so\nmain in rank\n";

/// A rank that waits in its 57th collective.
RankState waiting(int rank) {
  RankState state;
  state.rank = rank;
  state.host = rank < 2 ? "h1" : "h2";
  state.pid = 4000 + rank;
  state.step = 12;
  state.action = "norm";
  state.section = "step";
  state.stalled_ns = 61'000'000'000;
  state.limit_ns = 60'000'000'000;
  state.collectives = 57;
  state.in_collective = true;
  state.collective = "all_reduce(norm), 4 ranks, 40 B";
  state.stack = kWaiting;
  state.process_state = 'S';
  return state;
}

std::vector<RankState> all_waiting() { return {waiting(0), waiting(1), waiting(2), waiting(3)}; }

/// Rank 2 is at work, and has made one call less.
void put_behind(RankState& state) {
  state.action = "backward(layer.3), micro-batch 0";
  state.collectives = 56;
  state.in_collective = false;
  state.collective = "all_gather(layer.3), 4 ranks, 1.50 MiB";
  state.stack = "loop_forever in rank\nmain in rank\n";
  state.process_state = 'R';
}

using Catch::Contains;

}  // namespace

TEST_CASE("a stopped process is to blame, wherever it is", "[hang]") {
  auto states = all_waiting();
  const int collectives = GENERATE(56, 57);
  states[1].process_state = 'T';
  states[1].collectives = collectives;
  const HangReport report = diagnose_hang(states, 4);
  REQUIRE(report.hung);
  REQUIRE(report.cause == HangCause::stopped);
  REQUIRE(report.root.rank == 1);
  REQUIRE_THAT(report.summary, Contains("rank 1 on h1 hangs at step 12") && Contains("state T") &&
                                   Contains("ranks 0, 2-3 wait in collective 57, "
                                            "all_reduce(norm), 4 ranks, 40 B"));
}

TEST_CASE("an endless loop is to blame for the collective that it does not enter", "[hang]") {
  auto states = all_waiting();
  put_behind(states[2]);
  const HangReport report = diagnose_hang(states, 4);
  REQUIRE(report.hung);
  REQUIRE(report.cause == HangCause::behind);
  REQUIRE(report.blamed == std::vector{2});
  REQUIRE_THAT(report.summary, Contains("rank 2 on h2 hangs at step 12 in backward(layer.3)") &&
                                   Contains("has entered 56 collectives"));
  // The odd one first, equal stacks once.
  const auto odd = report.stacks.find("rank 2 at step 12");
  const auto others = report.stacks.find("ranks 0-1, 3 at step 12 in norm, in collective 57");
  REQUIRE(odd != std::string::npos);
  REQUIRE(others != std::string::npos);
  REQUIRE(odd < others);
  REQUIRE_THAT(report.stacks, Contains("    loop_forever in rank\n"));
}

TEST_CASE("a rank that skips a collective and waits in the next is named by its call", "[hang]") {
  auto states = all_waiting();
  // It entered as its 57th what the others will enter as their 58th.
  states[3].collective = "all_gather(layer.0), 4 ranks, 1.50 MiB";
  states[3].action = "gather(layer.0)";
  const HangReport report = diagnose_hang(states, 4);
  REQUIRE(report.cause == HangCause::other_call);
  REQUIRE(report.blamed == std::vector{3});
  REQUIRE_THAT(report.summary, Contains("it is in collective 57, all_gather(layer.0)") &&
                                   Contains("wait in collective 57, all_reduce(norm)"));
}

TEST_CASE("a rank that skipped a collective and stands elsewhere is behind", "[hang]") {
  auto states = all_waiting();
  states[0].collectives = 56;
  const HangReport report = diagnose_hang(states, 4);
  REQUIRE(report.cause == HangCause::behind);
  REQUIRE(report.blamed == std::vector{0});
  REQUIRE_THAT(report.summary, Contains("it is still in collective 56"));
}

TEST_CASE("of those who came least far the one at work holds up the one that waits", "[hang]") {
  // Ranks 0 and 1 reduce together, as do 2 and 3: 1 is stuck, 0 waits for it, the pair 2, 3 went on
  // to a collective of all.
  auto states = all_waiting();
  states[0].collectives = 56;
  states[1].collectives = 56;
  states[1].in_collective = false;
  REQUIRE(diagnose_hang(states, 4).blamed == std::vector{1});
}

TEST_CASE("a rank that reads a pipe nobody writes is shown with the pipe", "[hang]") {
  auto states = all_waiting();
  put_behind(states[1]);
  states[1].action = "load(micro-batch 0)";
  states[1].stack = "[kernel] openat(/data/train.fifo) in wait_for_partner\nopen64 in libc.so.6\n";
  const HangReport report = diagnose_hang(states, 4);
  REQUIRE(report.blamed == std::vector{1});
  REQUIRE_THAT(report.stacks, Contains("openat(/data/train.fifo)"));
}

TEST_CASE("all in the same collective: no rank is to blame, the network may be", "[hang]") {
  const HangReport report = diagnose_hang(all_waiting(), 4);
  REQUIRE(report.hung);
  REQUIRE(report.cause == HangCause::everybody);
  REQUIRE(report.blamed == std::vector{0, 1, 2, 3});
  REQUIRE_THAT(report.summary,
               Contains("all of ranks 0-3 are in collective 57") && Contains("network"));
}

TEST_CASE("of equal numbers the rank outside of the collective is to blame", "[hang]") {
  auto states = all_waiting();
  states[2].in_collective = false;
  const HangReport report = diagnose_hang(states, 4);
  REQUIRE(report.cause == HangCause::outside);
  REQUIRE(report.blamed == std::vector{2});
}

TEST_CASE("of equals the one that the kernel holds is to blame", "[hang]") {
  auto states = all_waiting();
  states[3].process_state = 'D';
  const HangReport report = diagnose_hang(states, 4);
  REQUIRE(report.cause == HangCause::uninterruptible);
  REQUIRE(report.blamed == std::vector{3});
}

TEST_CASE("outside of collectives the one in another place is to blame", "[hang]") {
  auto states = all_waiting();
  for (RankState& state : states) state.in_collective = false;
  states[2].stack = "[kernel] fsync(7: /ckpt/shard)\nfsync in libc.so.6\n";
  const HangReport report = diagnose_hang(states, 4);
  REQUIRE(report.cause == HangCause::other_place);
  REQUIRE(report.blamed == std::vector{2});
  // What the kernel says does not make places different.
  states[2].stack = "[kernel] read(4: /x)\nwait in libgloo.so\nmain in rank\n";
  REQUIRE(diagnose_hang(states, 4).cause == HangCause::everybody);
  // Nor does a stack that could not be taken in time.
  states[2].stack = "";
  const HangReport unknown = diagnose_hang(states, 4);
  REQUIRE(unknown.cause == HangCause::everybody);
  REQUIRE_THAT(unknown.stacks, Contains("(no stack came in time)"));
}

TEST_CASE("a rank that has ended while the others wait is to blame", "[hang]") {
  auto states = all_waiting();
  states[0].process_state = 'X';
  states[0].in_collective = false;
  states[0].stalled_ns = 0;
  states[0].stack = "";
  const HangReport report = diagnose_hang(states, 4);
  REQUIRE(report.hung);
  REQUIRE(report.cause == HangCause::ended);
  REQUIRE_THAT(report.summary, Contains("has ended with exit code 0"));
}

TEST_CASE("a node that does not answer is to blame when all others wait", "[hang]") {
  auto states = all_waiting();
  states.resize(2);
  const HangReport report = diagnose_hang(states, 4);
  REQUIRE(report.hung);
  REQUIRE(report.cause == HangCause::silent);
  REQUIRE(report.blamed == std::vector{2, 3});
  REQUIRE_THAT(report.stacks, Contains("ranks 2-3: no answer"));
  // One that answers and is behind is the surer cause.
  put_behind(states[1]);
  REQUIRE(diagnose_hang(states, 4).blamed == std::vector{1});
}

TEST_CASE("waiting for a rank that is within its time is no hang", "[hang]") {
  auto states = all_waiting();
  put_behind(states[0]);
  states[0].action = "checkpoint";
  states[0].section = "checkpoint";
  states[0].limit_ns = 1'800'000'000'000;
  REQUIRE_FALSE(diagnose_hang(states, 4).hung);
  states[0].stalled_ns = states[0].limit_ns;
  REQUIRE(diagnose_hang(states, 4).hung);
}

TEST_CASE("a single rank hangs without anybody to compare it with", "[hang]") {
  RankState state = waiting(0);
  state.in_collective = false;
  const HangReport report = diagnose_hang({state}, 1);
  REQUIRE(report.hung);
  REQUIRE(report.root.rank == 0);
  REQUIRE(report.summary ==
          "rank 0 on h1 hangs at step 12 in norm: no progress for 1m 01s (limit of step: 1m 00s)");
}

TEST_CASE("the stacks of many ranks stay readable and are whole in the JSON", "[hang]") {
  std::vector<RankState> states;
  for (int rank = 0; rank < 200; ++rank) {
    states.push_back(waiting(rank));
    // Each in another place, and deep.
    states.back().stack = "place" + std::to_string(rank % 50) + " in rank\n";
    for (int frame = 0; frame < 100; ++frame) states.back().stack += "frame in rank\n";
  }
  put_behind(states[7]);
  const HangReport report = diagnose_hang(states, 200);
  REQUIRE(std::ranges::count(report.stacks, '\n') < 120);
  REQUIRE_THAT(report.stacks, Contains("more groups of ranks: see failure.json"));

  const auto json = nlohmann::json::parse(report.stacks_json);
  REQUIRE(json.size() == 51);
  REQUIRE(json[0]["ranks"] == std::vector{7});
  REQUIRE(json[0]["stack"][0] == "loop_forever in rank");
  REQUIRE(json[0]["states"][0]["collectives"] == 56);
  REQUIRE(json[1]["stack"].size() == 101);
  std::size_t ranks = 0;
  for (const auto& group : json) ranks += group["states"].size();
  REQUIRE(ranks == 200);
}

TEST_CASE("bytes that are no text do not spoil the JSON", "[hang]") {
  auto states = all_waiting();
  states[0].action = "\xff\xfe";
  REQUIRE(nlohmann::json::parse(diagnose_hang(states, 4).stacks_json).size() == 1);
}

}  // namespace dstrain::launcher
