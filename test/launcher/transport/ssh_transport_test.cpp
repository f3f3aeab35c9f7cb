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
#include "launcher/transport/transport.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"

using namespace dstrain::launcher;
using dstrain::test::TempDir;
using std::chrono::milliseconds;
using std::chrono::seconds;
using Clock = std::chrono::steady_clock;

namespace {

/// Runs the remote command here. A file of the host's name in its folder says what happens instead
/// or before. Every call is in `calls`.
constexpr const char* kFakeSsh = R"(#!/bin/sh
while [ "$1" != -- ]; do shift; done
echo "$2" >> "$FAKE_SSH/calls"
if [ -e "$FAKE_SSH/$2" ]; then . "$FAKE_SSH/$2"; fi
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
      (void)channels[i]->receive();
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
  std::unique_ptr<Transport> transport;
};

}  // namespace

TEST_CASE("every host is started from here, by one ssh", "[ssh]") {
  const FakeSsh ssh;
  Start start(4, {});
  start.run(seconds(20));
  for (int host = 0; host < 4; ++host) CHECK(start.hellos[host] == 1);
  CHECK(ssh.calls() == std::multiset<std::string>{"h0", "h1", "h2", "h3"});
  start.end();
  CHECK(ssh.all_gone(seconds(3)));
}

TEST_CASE("a host that is bad has its class, and the others have agents", "[ssh]") {
  const FakeSsh ssh;
  const bool hangs = GENERATE(false, true);
  ssh.write("h1", hangs
                      ? "exec sleep 100"
                      : "echo 'ssh: connect to host h1 port 22: Connection refused' >&2; exit 255");
  SshOptions options;
  options.hello_limit = seconds(2);
  Start start(4, options);
  start.run(seconds(20));
  REQUIRE(start.links[1].problem);
  CHECK(start.links[1].problem->kind ==
        (hangs ? HostProblem::Kind::timeout : HostProblem::Kind::refused));
  CHECK(start.hellos.size() == 3);
  start.end();
  CHECK(ssh.all_gone(seconds(3)));
}

TEST_CASE("a start that is given up at any moment leaves nothing", "[ssh]") {
  const int delay_ms = GENERATE(0, 5, 10, 20, 30, 40, 60, 80, 120);
  const FakeSsh ssh;
  ssh.write("h2", "sleep 1");
  {
    Start start(4, {});
    for (const auto until = Clock::now() + milliseconds(delay_ms); Clock::now() < until;)
      start.turn();
  }
  CHECK(ssh.all_gone(seconds(5)));
}
