#include "launcher/job/stop_policy.h"

#include "test/support/catch.h"

using dstrain::launcher::StopPolicy;
using Order = StopPolicy::Order;
using std::chrono::milliseconds;

namespace {

const StopPolicy::Time kPolicyStart{};

}  // namespace

TEST_CASE("a failure settles, then SIGTERM, then SIGKILL, within a second", "[launcher][stop]") {
  const bool peer_only = GENERATE(true, false);
  StopPolicy policy;
  policy.failed(kPolicyStart, peer_only);
  CHECK(policy.due(kPolicyStart) == Order::none);
  const auto settled = *policy.deadline();
  CHECK(settled - kPolicyStart == (peer_only ? StopPolicy::kSettlePeer : StopPolicy::kSettle));
  CHECK(policy.due(settled) == Order::terminate_groups);
  CHECK(policy.due(settled) == Order::none);
  const auto killed = *policy.deadline();
  CHECK(killed - kPolicyStart < milliseconds(1000));
  CHECK(policy.due(killed) == Order::kill_groups);
  CHECK(!policy.deadline());
}

TEST_CASE("a death after a peer's complaint shortens the wait", "[launcher][stop]") {
  StopPolicy policy;
  policy.failed(kPolicyStart, true);
  policy.failed(kPolicyStart + milliseconds(50), false);
  CHECK(*policy.deadline() == kPolicyStart + milliseconds(50) + StopPolicy::kSettle);
}

TEST_CASE("a request to finish is passed on once and has no deadline", "[launcher][stop]") {
  StopPolicy policy;
  policy.ask_finish();
  CHECK(policy.due(kPolicyStart) == Order::ask_ranks);
  CHECK(policy.due(kPolicyStart) == Order::none);
  CHECK(!policy.deadline());
  policy.end(kPolicyStart);
  CHECK(policy.due(kPolicyStart) == Order::terminate_groups);
  CHECK(policy.due(kPolicyStart + StopPolicy::kGrace) == Order::kill_groups);
}

TEST_CASE("what comes after the ranks are being ended changes nothing", "[launcher][stop]") {
  StopPolicy policy;
  policy.end(kPolicyStart);
  REQUIRE(policy.due(kPolicyStart) == Order::terminate_groups);
  const auto deadline = policy.deadline();
  policy.failed(kPolicyStart + milliseconds(10), false);
  policy.end(kPolicyStart + milliseconds(20));
  policy.ask_finish();
  CHECK(policy.due(kPolicyStart + milliseconds(20)) == Order::none);
  CHECK(policy.deadline() == deadline);
}
