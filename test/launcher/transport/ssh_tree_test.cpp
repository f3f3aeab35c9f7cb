#include "launcher/transport/ssh_tree.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <thread>

#include "launcher/base/process_tree.h"
#include "launcher/protocol/protocol.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"

using namespace dstrain::launcher;
using dstrain::test::TempDir;
using std::chrono::milliseconds;
using std::chrono::seconds;
using Clock = std::chrono::steady_clock;

namespace {

/// Runs the remote command here. A file FROM-TO (or -TO from the controller) in its folder says
/// what happens instead or before. Every call is in `calls`.
constexpr const char* kFakeSsh = R"(#!/bin/sh
while [ "$1" != -- ]; do shift; done
way="$FAKE_SSH_HOST-$2"
echo "$way" >> "$FAKE_SSH/calls"
if [ -e "$FAKE_SSH/$way" ]; then . "$FAKE_SSH/$way"; fi
export FAKE_SSH_HOST="$2"
exec sh -c "$3"
)";

/// ssh of this process and its children is the script, until the end of the scope.
class FakeSsh {
 public:
  FakeSsh() : path_(std::getenv("PATH")) {
    write("ssh", kFakeSsh);
    std::filesystem::permissions(directory_ / "ssh", std::filesystem::perms::owner_all);
    ::setenv("PATH", (directory_.path().string() + ":" + path_).c_str(), 1);
    ::setenv("FAKE_SSH", directory_.path().c_str(), 1);
  }
  ~FakeSsh() {
    ::setenv("PATH", path_.c_str(), 1);
    ::unsetenv("FAKE_SSH");
  }
  FakeSsh(const FakeSsh&) = delete;
  FakeSsh& operator=(const FakeSsh&) = delete;

  void write(const std::string& name, const std::string& script) const {
    std::ofstream(directory_ / name) << script << '\n';
  }
  [[nodiscard]] std::multiset<std::string> calls() const {
    std::ifstream file(directory_ / "calls");
    std::multiset<std::string> calls;
    for (std::string line; std::getline(file, line);) calls.insert(line);
    return calls;
  }
  /// Live processes that this ssh has started.
  [[nodiscard]] std::vector<pid_t> processes() const {
    const std::string mark = "FAKE_SSH=" + directory_.path().string();
    std::vector<pid_t> found;
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      const auto pid = static_cast<pid_t>(std::atoi(entry.path().filename().c_str()));
      if (pid > 0 && pid != ::getpid() && has_environment(pid, mark) &&
          describe_process(pid).find("state Z") == std::string::npos)
        found.push_back(pid);
    }
    return found;
  }
  [[nodiscard]] bool all_gone(milliseconds limit) const {
    for (const auto until = Clock::now() + limit; Clock::now() < until;
         std::this_thread::sleep_for(milliseconds(20))) {
      if (processes().empty()) return true;
    }
    return false;
  }

 private:
  TempDir directory_;
  std::string path_;
};

/// A transport to hosts h0.. and what has come of them.
struct Start {
  Start(int num_hosts, SshOptions options) : links(static_cast<std::size_t>(num_hosts)) {
    std::vector<NodeHost> nodes;
    for (int i = 0; i < num_hosts; ++i) {
      NodeHost node;
      node.node = i;
      node.host.name = "h" + std::to_string(i);
      nodes.push_back(node);
    }
    options.agent_command = {FAKE_DSTRAIN, "agent", "--over-ssh"};
    options.tree.say = [this](const std::string& line) { said.push_back(line); };
    channels.resize(links.size());
    transport = make_ssh_transport(std::move(nodes), std::move(options));
  }

  void turn() {
    transport->advance(links, Clock::now());
    for (std::size_t i = 0; i < links.size(); ++i) {
      if (links[i].channel) {
        REQUIRE_FALSE(channels[i]);
        channels[i].emplace(std::move(*links[i].channel));
        links[i].channel.reset();
      }
      if (!channels[i]) continue;
      if (!channels[i]->receive()) lost.insert(static_cast<int>(i));
      while (const auto frame = channels[i]->next()) {
        if (frame->type == FrameType::hello) ++hellos[static_cast<int>(i)];
      }
    }
    std::this_thread::sleep_for(milliseconds(5));
  }
  [[nodiscard]] bool settled() const {
    for (std::size_t i = 0; i < links.size(); ++i) {
      if (!links[i].problem && hellos.count(static_cast<int>(i)) == 0) return false;
    }
    return true;
  }
  void run(milliseconds limit) {
    const auto until = Clock::now() + limit;
    while (!settled() && Clock::now() < until) turn();
  }
  void end() {
    for (std::size_t i = 0; i < links.size(); ++i) {
      channels[i].reset();
      (void)transport->end(static_cast<int>(i), seconds(5));
    }
  }

  std::vector<AgentLink> links;
  std::vector<std::optional<Channel>> channels;
  std::map<int, int> hellos;
  std::set<int> lost;
  std::vector<std::string> said;
  std::unique_ptr<Transport> transport;
};

/// 8 hosts: h0 starts h3 and h6, h1 starts h4 and h7, h2 starts h5.
SshOptions tree() { return {.agent_command = {}, .tree = {.from = 4, .radix = 2}}; }

}  // namespace

TEST_CASE("a tree has two levels, and no host starts more than the radix", "[ssh][tree]") {
  CHECK(plan_tree(8, 2) == std::vector<int>{-1, -1, -1, 0, 1, 2, 0, 1});
  CHECK(plan_tree(2, 32) == std::vector<int>{-1, -1});
  for (const int num_hosts : {65, 72, 1056, 1057, 4000}) {
    const std::vector<int> parents = plan_tree(num_hosts, 32);
    const auto num_own = std::count(parents.begin(), parents.end(), -1);
    CHECK(num_own == std::max<long>(32, (num_hosts + 32) / 33));
    for (int host = 0; host < num_own; ++host)
      CHECK(std::count(parents.begin(), parents.end(), host) <= 32);
    CHECK(*std::max_element(parents.begin(), parents.end()) < num_own);
  }
}

TEST_CASE("hosts start each other, each by one ssh", "[ssh][tree]") {
  const FakeSsh ssh;
  Start start(8, tree());
  start.run(seconds(20));
  for (int host = 0; host < 8; ++host) CHECK(start.hellos[host] == 1);
  CHECK(start.said.empty());
  CHECK(ssh.calls() == std::multiset<std::string>{"-h0", "-h1", "-h2", "h0-h3", "h0-h6", "h1-h4",
                                                  "h1-h7", "h2-h5"});
  start.end();
  CHECK(ssh.all_gone(seconds(3)));
}

TEST_CASE("below the threshold every host is started from here", "[ssh][tree]") {
  const FakeSsh ssh;
  SshOptions options = tree();
  options.tree.from = GENERATE(0, 5);
  Start start(4, options);
  start.run(seconds(20));
  CHECK(ssh.calls() == std::multiset<std::string>{"-h0", "-h1", "-h2", "-h3"});
  start.end();
}

TEST_CASE("hosts that may not log in to each other are started from here, and it is said once",
          "[ssh][tree]") {
  const FakeSsh ssh;
  for (const char* way : {"h0-h3", "h0-h6"})
    ssh.write(way, "echo 'Permission denied (publickey).' >&2; exit 255");
  Start start(8, tree());
  start.run(seconds(20));
  for (int host = 0; host < 8; ++host) CHECK(start.hellos[host] == 1);
  REQUIRE(start.said.size() == 1);
  CHECK_THAT(start.said[0], Catch::StartsWith("2 of 8 hosts are started from here, not from other "
                                              "hosts; first h3: authentication: from h0: "));
  CHECK(ssh.calls().count("-h3") == 1);
  start.end();
  CHECK(ssh.all_gone(seconds(3)));
}

TEST_CASE("a host that is bad has its own class whoever was to start it", "[ssh][tree]") {
  const FakeSsh ssh;
  const std::string refuse =
      "echo 'ssh: connect to host h4 port 22: Connection refused' >&2; exit 255";
  ssh.write("h1-h4", refuse);
  ssh.write("-h4", refuse);
  Start start(8, tree());
  start.run(seconds(20));
  REQUIRE(start.links[4].problem);
  CHECK(start.links[4].problem->kind == HostProblem::Kind::refused);
  CHECK(start.hellos.size() == 7);
  start.end();
}

TEST_CASE("children of a host that is dead or that hangs are started from here", "[ssh][tree]") {
  const FakeSsh ssh;
  const bool hangs = GENERATE(false, true);
  ssh.write("-h1", hangs ? "exec sleep 100"
                         : "echo 'ssh: connect to host h1 port 22: Connection refused' >&2; "
                           "exit 255");
  SshOptions options = tree();
  options.tree.limit = options.connect_timeout = seconds(1);
  options.hello_limit = seconds(3);
  Start start(8, options);
  const auto begin = Clock::now();
  start.run(seconds(20));
  CHECK(Clock::now() - begin < seconds(8));
  REQUIRE(start.links[1].problem);
  CHECK(start.hellos.size() == 7);
  REQUIRE(start.said.size() == 1);
  CHECK_THAT(start.said[0], Catch::StartsWith("2 of 8 hosts"));
  start.end();
  CHECK(ssh.all_gone(seconds(3)));
}

TEST_CASE("an agent that comes after its host was given up is not wanted and ends itself",
          "[ssh][tree]") {
  const FakeSsh ssh;
  ssh.write("h2-h5", "sleep 3");  // the agent comes all the same: its ssh is not killed
  ssh.write("-h2", "kill -STOP $$");
  SshOptions options = tree();
  options.tree.limit = options.connect_timeout = seconds(1);
  Start start(8, options);
  for (const auto until = Clock::now() + seconds(3); Clock::now() < until;) start.turn();
  CHECK(start.hellos[5] == 1);
  // Now h2 wakes and starts h5 as it was told.
  for (const pid_t pid : ssh.processes()) ::kill(pid, SIGCONT);
  for (const auto until = Clock::now() + seconds(6); Clock::now() < until;) start.turn();
  CHECK(ssh.calls().count("h2-h5") == 1);
  for (int host = 0; host < 8; ++host) CHECK(start.hellos[host] == 1);
  CHECK(start.lost.empty());
  start.end();
  CHECK(ssh.all_gone(seconds(3)));
}

TEST_CASE("an agent outlives the one that started it", "[ssh][tree]") {
  const FakeSsh ssh;
  Start start(8, tree());
  start.run(seconds(20));
  REQUIRE(start.hellos.size() == 8);
  for (const pid_t pid : ssh.processes()) {
    if (has_environment(pid, "FAKE_SSH_HOST=h0")) ::kill(pid, SIGKILL);
  }
  for (const auto until = Clock::now() + seconds(1); Clock::now() < until;) start.turn();
  CHECK(start.lost == std::set<int>{0});
  start.end();
  CHECK(ssh.all_gone(seconds(3)));
}

TEST_CASE("a start that is given up at any moment leaves nothing", "[ssh][tree]") {
  const int delay_ms = GENERATE(0, 5, 10, 20, 30, 40, 60, 80, 120);
  const FakeSsh ssh;
  ssh.write("h0-h3", "sleep 1");
  {
    Start start(8, tree());
    for (const auto until = Clock::now() + milliseconds(delay_ms); Clock::now() < until;)
      start.turn();
  }
  CHECK(ssh.all_gone(seconds(5)));
}
