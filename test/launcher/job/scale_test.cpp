#include <cstdio>
#include <thread>

#include "test/launcher/job/played_hosts.h"
#include "test/support/catch.h"

// Level 1 of what stands for a thousand hosts that nobody has lent: the controller is real, the
// hosts are played by one process. Limits are of CPU time where they can be, since the machine of a
// test is busy.

using namespace dstrain::launcher;
using namespace dstrain::launcher::test;
using std::chrono::milliseconds;

namespace {

void print(const char* what, const Played& played) {
  std::printf(
      "%s: %.2f s to running, longest turn %.3f s of CPU, %.2f s of CPU, %.0f MiB, %.2f s "
      "after the event\n",
      what, played.to_running_s, played.longest_turn_s, played.cpu_s, played.grown_mib,
      played.after_event_s);
}

}  // namespace

TEST_CASE("1024 played hosts of 8 ranks run, a slow rank is named, and the controller idles",
          "[launcher][scale][not_emulated]") {
  const Played played = play_job({.runs_for = milliseconds(6500), .slow_rank = 100});
  print("1024 hosts", played);
  CAPTURE(played.console);
  CHECK(played.outcome.kind == Outcome::Kind::finished);
  CHECK(played.outcome.lost_hosts.empty());
  CHECK_THAT(played.console, Catch::Contains("rank 100 on n0012 is slow: 2.4 x"));
  CHECK(played.longest_turn_s < 0.25);
  CHECK(played.cpu_s < 2.0);
  CHECK(played.grown_mib < 200);
}

TEST_CASE("one rank that dies on 1024 played hosts is the one that is named",
          "[launcher][scale][not_emulated]") {
  const Played played = play_job({.event = Event::killed});
  print("a rank killed", played);
  REQUIRE(played.outcome.kind == Outcome::Kind::failed);
  CHECK(played.outcome.exit_code == 137);
  CHECK(played.outcome.report->root.rank == 29);
  CHECK(played.outcome.report->root.host == "n0003");
  CHECK(played.outcome.report->root.last_lines.size() == 50);
  CHECK(played.outcome.lost_hosts.empty());
  CHECK(played.longest_turn_s < 0.25);
  CHECK(played.grown_mib < 200);
  CHECK(played.after_event_s < 10);
}

TEST_CASE("a rack of 32 played hosts that is lost at once is one cause, told in one line",
          "[launcher][scale][not_emulated]") {
  const Played played = play_job({.hosts = 256, .event = Event::rack});
  print("a rack lost", played);
  REQUIRE(played.outcome.kind == Outcome::Kind::failed);
  CHECK(played.outcome.exit_code == 75);
  CHECK(played.outcome.lost_hosts.size() == 32);
  CHECK(played.outcome.report->summary ==
        "32 hosts were lost, n0032 .. n0063 (its connection has closed); their agents end ranks "
        "256-511 by themselves within 30 s");
  CHECK(played.after_event_s < 10);
}

TEST_CASE("a controller that is stuck gives no healthy host up, and a silent one it does",
          "[launcher][scale][not_emulated]") {
  const Play play{.hosts = 64, .event = Event::message, .lease = milliseconds(4000)};
  const Played stuck = play_job(play, [](std::string_view text) {
    // A console, or a disk, that takes nothing for longer than a host may be silent (2 s).
    if (text.find("now") != std::string_view::npos) std::this_thread::sleep_for(milliseconds(3000));
  });
  CAPTURE(stuck.console);
  CHECK(stuck.outcome.kind == Outcome::Kind::finished);
  CHECK(stuck.outcome.lost_hosts.empty());

  const Played silent =
      play_job({.hosts = 16, .event = Event::silent, .lease = milliseconds(4000)});
  REQUIRE(silent.outcome.kind == Outcome::Kind::failed);
  CHECK(silent.outcome.lost_hosts == std::vector<std::string>{"n0005"});
  CHECK_THAT(silent.outcome.report->summary, Catch::Contains("no sign of life for 2 s"));
}
