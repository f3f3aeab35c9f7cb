#include "launcher/doctor/inspect_hosts.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <array>
#include <fstream>
#include <sstream>

#include "engine/base/error.h"
#include "test/launcher/units.h"
#include "test/support/catch.h"

using namespace dstrain::launcher;

namespace {

using dstrain::launcher::test::kGiB;
using dstrain::launcher::test::kSecond;

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

/// Starts nothing: plays the agent of each node itself, over real channels.
class FakeTransport final : public Transport {
 public:
  struct Agent {
    int node = 0;
    std::optional<HostProblem> problem = {};
    std::int64_t protocol = kProtocolVersion;
    std::int64_t clock_ahead_ns = 0;
    std::string answer = {};  ///< JSON; empty: leaves instead of answering
    bool silent = false;
    std::string fault = {};
    int unreached = -1;  ///< node
  };
  explicit FakeTransport(std::vector<Agent> agents) : agents_(std::move(agents)) {
    channels_.resize(agents_.size());
  }

  void add_polls(std::vector<pollfd>& fds) const override {
    for (const auto& channel : channels_) {
      if (channel) fds.push_back({channel->in(), POLLIN, 0});
    }
  }
  void advance(std::vector<AgentLink>& links, Time) override {
    for (std::size_t i = 0; i < agents_.size(); ++i) {
      if (!opened_) open(agents_[i], links[static_cast<std::size_t>(agents_[i].node)], i);
      if (channels_[i]) serve(agents_[i], channels_[i]);
    }
    opened_ = true;
  }
  [[nodiscard]] std::optional<Time> deadline() const override { return std::nullopt; }
  AgentEnding end(int, std::chrono::milliseconds) override {
    ++num_ended;
    return {.exit_code = 127, .words = "libfmt.so.9: cannot open"};
  }
  void kill(int) override {}

  int num_ended = 0;
  std::vector<InspectHost> requests;

 private:
  void open(const Agent& agent, AgentLink& link, std::size_t i) {
    if (agent.problem) {
      link.problem = agent.problem;
      return;
    }
    std::array<int, 4> ends{};
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()) == 0);
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, &ends[2]) == 0);
    link.channel.emplace(UniqueFd(ends[0]), UniqueFd(ends[2]));
    channels_[i].emplace(UniqueFd(ends[3]), UniqueFd(ends[1]));
    if (!agent.silent) {
      Hello hello{.build = "dstrain test"};
      hello.version = agent.protocol;
      channels_[i]->send(hello);
    }
  }
  void serve(const Agent& agent, std::optional<Channel>& channel) {
    if (!channel->receive()) return channel.reset();
    while (const auto frame = channel->next()) {
      if (frame->type == FrameType::ping) {
        channel->send(Pong{.ping_ns = unpack<Ping>(*frame).clock_ns,
                           .clock_ns = now_ns() + agent.clock_ahead_ns});
      }
      if (frame->type == FrameType::reach) {
        ReachedPeers answer;
        for (const Peer& peer : unpack<ReachPeers>(*frame).peers) {
          CHECK(peer.address == "10.0.0.1");
          if (peer.node == agent.unreached) answer.problems.push_back({peer.node, "timeout"});
        }
        channel->send(answer);
      }
      if (frame->type != FrameType::inspect) continue;
      requests.push_back(unpack<InspectHost>(*frame));
      if (requests.back().listen) channel->send(ListeningAgent{1, "10.0.0.1", ""});
      if (!agent.fault.empty()) {
        channel->send(FaultMessage{.exit_code = 70, .message = agent.fault, .hint = ""});
      } else if (agent.answer.empty()) {
        return channel.reset();
      } else {
        channel->send(InspectionAnswer{agent.answer});
      }
    }
  }

  std::vector<Agent> agents_;
  std::vector<std::optional<Channel>> channels_;
  bool opened_ = false;
};

Inspection machine(const std::string& name) {
  Inspection at;
  at.host = name;
  at.build = "dstrain 0.1.0 (commit abc)\ncompilers: GNU 12";
  at.arch = "x86_64";
  at.memory_bytes = at.available_bytes = 256 * kGiB;
  at.disks = {{"working directory", "/data/work", true, 500 * kGiB, 1000 * kGiB}};
  at.gpu_nodes = at.gpus_visible = 2;
  at.driver = "580.65";
  for (int i = 0; i < 2; ++i) {
    GpuFacts gpu;
    gpu.index = i;
    gpu.name = "NVIDIA H200";
    gpu.memory_bytes = 140 * kGiB;
    gpu.used_bytes = i * kGiB / 2;
    at.gpus.push_back(gpu);
  }
  at.engine.libraries = {{"NCCL", "2.28.9", ""}};
  return at;
}

HostInspection visited(const Inspection& at) {
  HostInspection host;
  host.host.name = at.host;
  host.inspection = at;
  host.round_trip_s = 0.002;
  host.findings = examine(at);
  return host;
}

std::vector<HostInspection> ask(std::vector<FakeTransport::Agent> agents,
                                std::chrono::milliseconds limit = std::chrono::seconds(20)) {
  std::vector<Host> hosts;
  for (const auto& agent : agents) {
    hosts.push_back({.name = fmt::format("h{}", agent.node), .address = ""});
  }
  FakeTransport transport(std::move(agents));
  InspectHostsOptions options{.build = "dstrain test",
                              .request = {.working_directory = "/data/work", .peer_address = ""}};
  options.answer_limit = limit;
  return inspect_hosts(hosts, transport, options);
}

}  // namespace

TEST_CASE("every host answers for itself, and one bad host hides none", "[launcher][doctor]") {
  const std::string answer = to_json(machine("x"));
  const HostProblem refused{
      .kind = HostProblem::Kind::refused, .text = "nobody listens", .hint = "h"};
  const auto hosts = ask({{.node = 0, .answer = answer},
                          {.node = 1, .problem = refused},
                          {.node = 2, .clock_ahead_ns = -3 * kSecond, .answer = answer},
                          {.node = 3},
                          {.node = 4, .protocol = 99, .answer = answer},
                          {.node = 5, .answer = "{\"host\": 3}"},
                          {.node = 6, .fault = "no descriptors left"}});
  REQUIRE(hosts.size() == 7);
  CHECK(hosts[0].usable());
  CHECK(hosts[0].inspection->gpus.size() == 2);
  CHECK(hosts[0].round_trip_s > 0);
  CHECK(std::abs(hosts[0].clock_offset_s) < 0.5);
  CHECK(hosts[1].problem->text == "nobody listens");
  REQUIRE(hosts[2].findings.size() == 1);
  CHECK(hosts[2].findings[0].text == "clock is 3.0 s behind this machine's");
  CHECK(hosts[2].usable());
  CHECK(hosts[3].problem->kind == HostProblem::Kind::cannot_run);
  CHECK(hosts[3].problem->text ==
        "the agent ended before it had answered (exit code 127): libfmt.so.9: cannot open");
  CHECK(hosts[4].problem->kind == HostProblem::Kind::version);
  CHECK_FALSE(hosts[5].usable());
  CHECK(hosts[6].problem->text == "no descriptors left");
}

TEST_CASE("a host that others do not reach is the bad one", "[launcher][doctor]") {
  const std::string answer = to_json(machine("x"));
  const auto hosts = ask({{.node = 0, .answer = answer, .unreached = 1},
                          {.node = 1, .answer = answer},
                          {.node = 2, .answer = answer, .unreached = 1},
                          {.node = 3}});
  CHECK(hosts[0].usable());
  CHECK(hosts[2].usable());
  REQUIRE(hosts[1].findings.size() == 1);
  CHECK(hosts[1].findings[0].text == "is not reached from h0, h2 by TCP (timeout)");
  CHECK(doctor_json(hosts).find("\"class\": \"timeout\"") != std::string::npos);
}

TEST_CASE("an agent that says nothing costs its time and no more", "[launcher][doctor]") {
  const auto hosts = ask({{.node = 0, .silent = true}}, std::chrono::milliseconds(50));
  REQUIRE(hosts.at(0).problem);
  CHECK(hosts[0].problem->kind == HostProblem::Kind::timeout);
}

TEST_CASE("a slow connection does not make a clock wrong", "[launcher][doctor]") {
  HostInspection host;
  host.round_trip_s = 4;
  host.clock_offset_s = 2.2;
  check_clock(host);
  CHECK(host.findings.empty());
  host.clock_offset_s = 2.6;
  check_clock(host);
  REQUIRE(host.findings.size() == 1);
  CHECK(host.findings[0].text == "clock is 2.6 s ahead of this machine's");
}

TEST_CASE("of one machine, cards and driver come first, and whether they serve",
          "[launcher][doctor]") {
  std::vector<HostInspection> here = {visited(machine("h1"))};
  const std::string driver = here[0].inspection->driver;
  const std::string text = doctor_text(here);
  const std::string first = text.substr(0, text.find('\n'));
  CHECK(first.find(here[0].inspection->gpus.front().name) != std::string::npos);
  CHECK(first.find("driver " + driver) != std::string::npos);
  here[0].findings = {{Level::error, "broken", "mend it"}};
  CHECK(doctor_text(here).find("they do not serve, see below\n") != std::string::npos);
  here[0].findings.clear();
  here[0].inspection->driver.clear();
  here[0].inspection->gpu_nodes = 4;
  CHECK(doctor_text(here).starts_with("4 GPUs and no driver that answers: they do not serve\n"));
  here[0].inspection->gpu_nodes = 0;
  here[0].inspection->gpus.clear();
  CHECK(doctor_text(here).starts_with("no NVIDIA GPU: ranks run on the CPU\n"));
}

TEST_CASE("the table shows bad hosts first, shared findings once, and differences",
          "[launcher][doctor]") {
  std::vector<HostInspection> hosts = {visited(machine("h1")), visited(machine("h2")),
                                       visited(machine("h3")), visited(machine("h4"))};
  hosts[1].inspection->open_files = hosts[2].inspection->open_files = 256;
  hosts[1].inspection->gpus[1].used_bytes = 61 * kGiB;
  hosts[2].inspection->driver = "550.54";
  hosts[2].inspection->locked_bytes = 65536;
  hosts[2].inspection->engine.libraries[0].version = "2.21.5";
  hosts[2].clock_offset_s = 12.5;
  for (HostInspection& host : hosts) {
    host.findings = examine(*host.inspection);
    check_clock(host);
  }
  HostInspection lost;
  lost.host.name = "h5";
  lost.problem = HostProblem{.kind = HostProblem::Kind::refused,
                             .text = "nobody listens on port 22",
                             .hint = "start sshd there"};
  hosts.push_back(lost);
  std::ifstream file("test/launcher/golden/doctor.txt");
  std::stringstream golden;
  golden << file.rdbuf();
  CHECK(doctor_text(hosts) == golden.str());
  const std::string json = doctor_json(hosts);
  CHECK(json.find("\"class\": \"refused\"") != std::string::npos);
  CHECK(json.find("\"clock_offset_s\": 12.5") != std::string::npos);
}
