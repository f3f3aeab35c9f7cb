#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <ctime>
#include <set>
#include <thread>

#include "engine/base/error.h"
#include "engine/base/open_files.h"
#include "launcher/transport/dial.h"
#include "launcher/transport/dial_listener.h"
#include "test/support/catch.h"

using namespace dstrain;
using namespace dstrain::launcher;
using std::chrono::milliseconds;
using std::chrono::seconds;
using Clock = std::chrono::steady_clock;

namespace {

/// Agents that dial at the same moment, in a child process; its exit code is 0 when all were
/// welcomed. `again`: as after a restart of a joined job, when a failed attempt is taken for the
/// job's end.
pid_t dial_at_once(const DialTarget& target, int agents, bool again) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  std::atomic<int> num_welcomed = 0;
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < agents; ++i) {
      threads.emplace_back([&, i] {
        try {
          const Introduction agent{.name = std::to_string(i), .host = "h"};
          if (dial(target, agent, {.limit = seconds(30), .again = again})) ++num_welcomed;
        } catch (const Error&) {
          // It stays uncounted.
        }
      });
    }
  }
  ::_exit(num_welcomed == agents ? 0 : 1);
}

}  // namespace

TEST_CASE("a thousand agents that dial at once are all welcomed, at the start and again",
          "[launcher][dial][scale]") {
  constexpr int kAgents = 1024;
  require_open_files(64 + 4 * kAgents, "this test");
  const bool again = GENERATE(false, true);
  CAPTURE(again);
  DialListener listener(kAgents);
  DialTarget target = listener.target();
  target.addresses = {"127.0.0.1"};
  const pid_t child = dial_at_once(target, kAgents, again);
  std::set<std::string> names;
  std::vector<DialledAgent> agents;
  const std::clock_t begin = std::clock();
  for (const auto deadline = Clock::now() + seconds(30);
       names.size() < kAgents && Clock::now() < deadline;) {
    std::vector<pollfd> fds;
    listener.add_polls(fds);
    ::poll(fds.data(), fds.size(), 50);
    // A controller with other work, as at a start: in this time all of them have come.
    std::this_thread::sleep_for(milliseconds(50));
    for (DialledAgent& agent : listener.advance(Clock::now())) {
      names.insert(agent.introduction.name);
      agents.push_back(std::move(agent));
    }
  }
  const double cpu_s = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  CHECK(names.size() == kAgents);
  CHECK(agents.size() == kAgents);  // none had to come twice
  for (DialledAgent& agent : agents) (void)welcome(std::move(agent));
  listener.close();
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK(status == 0);
  CHECK(cpu_s < 2);
}

TEST_CASE("agents beyond the room that was made for them come a little later",
          "[launcher][dial][scale]") {
  constexpr int kAgents = 300;
  require_open_files(64 + 4 * kAgents, "this test");
  DialListener listener;  // for strangers alone
  DialTarget target = listener.target();
  target.addresses = {"127.0.0.1"};
  const pid_t child = dial_at_once(target, kAgents, /*again=*/true);
  std::vector<DialledAgent> agents;
  for (const auto deadline = Clock::now() + seconds(30);
       agents.size() < kAgents && Clock::now() < deadline;) {
    std::vector<pollfd> fds;
    listener.add_polls(fds);
    ::poll(fds.data(), fds.size(), 20);
    for (DialledAgent& agent : listener.advance(Clock::now())) agents.push_back(std::move(agent));
  }
  CHECK(agents.size() == kAgents);
  for (DialledAgent& agent : agents) (void)welcome(std::move(agent));
  listener.close();
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK(status == 0);
}
