#include "launcher/doctor/reach_peers.h"

#include <algorithm>

#include "test/support/catch.h"

using namespace dstrain::launcher;
using std::chrono::milliseconds;

namespace {

using Texts = std::vector<std::string>;

/// "h2: text" of every finding.
Texts explain(const std::vector<UnreachedPair>& pairs, int num_hosts) {
  std::vector<std::string> names;
  for (int i = 0; i < num_hosts; ++i) names.push_back("h" + std::to_string(i));
  Texts texts;
  for (const PairFinding& each : explain_pairs(pairs, choose_peers(num_hosts), names))
    texts.push_back(names[static_cast<std::size_t>(each.host)] + ": " + each.finding.text);
  return texts;
}

}  // namespace

TEST_CASE("a peer is reached, refuses, or has no route", "[launcher][peers]") {
  const dstrain::ListeningSocket listener = listen_for_peers();
  REQUIRE(listener.port != 0);
  dstrain::ListeningSocket other = listen_for_peers();
  const int closed = other.port;
  other.fd.reset();
  const auto problems = reach_peers({{.node = 0, .address = "127.0.0.1", .port = listener.port},
                                     {.node = 1, .address = "127.0.0.1", .port = closed},
                                     {.node = 2, .address = "255.255.255.255", .port = 1},
                                     {.node = 3, .address = "no address", .port = 1}},
                                    milliseconds(2000));
  REQUIRE(problems.size() == 3);
  const auto kind = [&problems](int node) {
    return std::find_if(problems.begin(), problems.end(),
                        [node](const PeerProblem& problem) { return problem.node == node; })
        ->kind;
  };
  CHECK(kind(1) == "refused");
  CHECK_FALSE(kind(2).empty());
  CHECK(kind(3) == "Invalid argument");
}

TEST_CASE("up to 32 hosts try all others, above each tries and is tried by 8",
          "[launcher][peers]") {
  CHECK(choose_peers(1) == std::vector<std::vector<int>>{{}});
  for (const std::vector<int>& peers : choose_peers(32)) CHECK(peers.size() == 31);
  std::vector<int> num_tried(1000);
  const auto chosen = choose_peers(1000);
  for (int host = 0; host < 1000; ++host) {
    const std::vector<int>& peers = chosen[static_cast<std::size_t>(host)];
    CHECK(peers.size() == 8);
    CHECK(std::count(peers.begin(), peers.end(), (host + 1) % 1000) == 1);
    CHECK(std::count(peers.begin(), peers.end(), host) == 0);
    for (const int peer : peers) ++num_tried[static_cast<std::size_t>(peer)];
  }
  CHECK(std::count(num_tried.begin(), num_tried.end(), 8) == 1000);
}

TEST_CASE("pairs that cannot talk are told by the host that is the odd one", "[launcher][peers]") {
  CHECK(explain({}, 4).empty());
  CHECK(explain({{3, 2, "timeout"}}, 4) == Texts{"h2: is not reached from h3 by TCP (timeout)"});
  CHECK(explain({{0, 2, "refused"}, {1, 2, "refused"}, {3, 2, "refused"}}, 4) ==
        Texts{"h2: is not reached from any other host by TCP (refused)"});
  CHECK(explain({{1, 0, "no route"}, {1, 2, "no route"}, {1, 3, "no route"}}, 4) ==
        Texts{"h1: does not reach any other host by TCP (no route)"});
  CHECK(explain({{0, 2, "timeout"}, {1, 2, "timeout"}, {2, 0, "timeout"}, {3, 1, "refused"}}, 4) ==
        Texts{"h2: is not reached from h0, h1 by TCP (timeout)",
              "h2: does not reach h0 by TCP (timeout)",
              "h1: is not reached from h3 by TCP (refused)"});
  std::vector<UnreachedPair> all;
  for (int from = 0; from < 3; ++from) {
    for (int to = 0; to < 3; ++to) {
      if (from != to) all.push_back({from, to, "timeout"});
    }
  }
  const Texts texts = explain(all, 3);
  CHECK(std::count_if(texts.begin(), texts.end(), [](const std::string& text) {
          return text.ends_with(": is not reached from any other host by TCP (timeout)");
        }) == 2);
}
