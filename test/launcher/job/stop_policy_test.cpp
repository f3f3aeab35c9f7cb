#include "launcher/job/stop_policy.h"

#include "test/support/catch.h"

using dstrain::launcher::StopPolicy;
using Order = StopPolicy::Order;
using std::chrono::milliseconds;

namespace {

const StopPolicy::Time kStart{};

}  // namespace

TEST_CASE("a failure settles, then SIGTERM, then SIGKILL, within a second", "[launcher][stop]") {
  const bool peer_only = GENERATE(true, false);
  StopPolicy policy;
  policy.failed(kStart, peer_only);
  CHECK(policy.due(kStart) == Order::none);
  const auto settled = *policy.deadline();
  CHECK(settled - kStart == (peer_only ? StopPolicy::kSettlePeer : StopPolicy::kSettle));
  CHECK(policy.due(settled) == Order::terminate_groups);
  CHECK(policy.due(settled) == Order::none);
  const auto killed = *policy.deadline();
  CHECK(killed - kStart < milliseconds(1000));
  CHECK(policy.due(killed) == Order::kill_groups);
  CHECK(!policy.deadline());
}

TEST_CASE("a death after a peer's complaint shortens the wait", "[launcher][stop]") {
  StopPolicy policy;
  policy.failed(kStart, true);
  policy.failed(kStart + milliseconds(50), false);
  CHECK(*policy.deadline() == kStart + milliseconds(50) + StopPolicy::kSettle);
}

TEST_CASE("a request to finish is passed on once and has no deadline", "[launcher][stop]") {
  StopPolicy policy;
  policy.ask_finish();
  CHECK(policy.due(kStart) == Order::ask_ranks);
  CHECK(policy.due(kStart) == Order::none);
  CHECK(!policy.deadline());
  policy.end(kStart);
  CHECK(policy.due(kStart) == Order::terminate_groups);
  CHECK(policy.due(kStart + StopPolicy::kGrace) == Order::kill_groups);
}

TEST_CASE("what comes after the ranks are being ended changes nothing", "[launcher][stop]") {
  StopPolicy policy;
  policy.end(kStart);
  REQUIRE(policy.due(kStart) == Order::terminate_groups);
  const auto deadline = policy.deadline();
  policy.failed(kStart + milliseconds(10), false);
  policy.end(kStart + milliseconds(20));
  policy.ask_finish();
  CHECK(policy.due(kStart + milliseconds(20)) == Order::none);
  CHECK(policy.deadline() == deadline);
}
