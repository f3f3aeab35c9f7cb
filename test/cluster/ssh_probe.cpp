// Starts real agents on hosts through the ssh transport and says what came of it, without a job.
//   ssh_probe launch [--ship] [--config FILE] [--window N] [--hello-limit S] [--program FILE]
//     HOST...
//     one JSON line per host: {"host", "ms", "hello"} or {"host", "ms", "kind", "text", "hint"}
//   ssh_probe agent
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "launcher/base/interrupts.h"
#include "launcher/job/agent.h"
#include "launcher/transport/transport.h"

namespace {

using namespace dstrain;
using namespace dstrain::launcher;
using Clock = std::chrono::steady_clock;

int agent() {
  fill_standard_streams();
  UniqueFd in(::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3));
  UniqueFd out(::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3));
  return run_agent(std::move(in), std::move(out), identity_over_ssh("probe"));
}

struct Probe {
  explicit Probe(const std::vector<std::string>& names, SshOptions options)
      : hosts(names), links(names.size()), channels(names.size()), told(names.size()) {
    std::vector<NodeHost> nodes;
    for (std::size_t i = 0; i < names.size(); ++i) {
      NodeHost node;
      node.node = static_cast<int>(i);
      node.host.name = names[i];
      node.host.reach = Reach::ssh;
      if (const auto at = names[i].find('@'); at != std::string::npos) {
        node.host.user = names[i].substr(0, at);
        node.host.name = names[i].substr(at + 1);
      }
      if (const auto colon = node.host.name.find(':'); colon != std::string::npos) {
        node.host.port = std::stoi(node.host.name.substr(colon + 1));
        node.host.name.resize(colon);
      }
      nodes.push_back(node);
    }
    transport = make_ssh_transport(std::move(nodes), std::move(options));
  }

  void tell(std::size_t i, nlohmann::json line) {
    using std::chrono::milliseconds;
    line["host"] = hosts[i];
    line["ms"] = std::chrono::duration_cast<milliseconds>(Clock::now() - start).count();
    fmt::print("{}\n", line.dump());
    std::fflush(stdout);
    told[i] = true;
    ++num_told;
  }

  void take(std::size_t i) {
    if (told[i]) return;
    if (links[i].problem) {
      const HostProblem& problem = *links[i].problem;
      tell(i, {{"kind", kind_name(problem.kind)}, {"text", problem.text}, {"hint", problem.hint}});
    } else if (links[i].channel || channels[i]) {
      if (!channels[i]) channels[i].emplace(std::move(*links[i].channel));
      const bool open = channels[i]->receive();
      if (const auto frame = channels[i]->next()) {
        tell(i, {{"hello", unpack<Hello>(*frame).build}});
      } else if (!open) {
        tell(i, {{"kind", "closed"}});
      }
    }
  }

  int run() {
    while (num_told < hosts.size()) {
      transport->advance(links, Clock::now());
      std::vector<pollfd> fds;
      for (std::size_t i = 0; i < hosts.size(); ++i) {
        take(i);
        if (channels[i] && !told[i]) fds.push_back({channels[i]->in(), POLLIN, 0});
      }
      if (num_told == hosts.size()) break;
      transport->add_polls(fds);
      int wait_ms = -1;
      if (const auto deadline = transport->deadline()) {
        wait_ms = static_cast<int>(std::max(
            std::chrono::ceil<std::chrono::milliseconds>(*deadline - Clock::now()).count(), 0L));
      }
      ::poll(fds.data(), fds.size(), wait_ms);
      ++num_turns;
    }
    for (std::size_t i = 0; i < hosts.size(); ++i) {
      channels[i].reset();
      const AgentEnding ending =
          transport->end(static_cast<int>(i), std::chrono::milliseconds(5000));
      if (ending.signal != 0) fmt::print(stderr, "{}: signal {}\n", hosts[i], ending.signal);
    }
    fmt::print(stderr, "turns {}\n", num_turns);
    return 0;
  }

  std::vector<std::string> hosts;
  std::vector<AgentLink> links;
  std::vector<std::optional<Channel>> channels;
  std::vector<bool> told;
  std::unique_ptr<Transport> transport;
  std::size_t num_told = 0;
  std::size_t num_turns = 0;
  Clock::time_point start = Clock::now();
};

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("ssh transport without a job");
  app.require_subcommand(1);
  app.add_subcommand("agent");
  CLI::App* launch = app.add_subcommand("launch");
  std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  std::vector<std::string> hosts;
  SshOptions options;
  int hello_limit_s = 60;
  launch->add_flag("--ship", options.ship);
  launch->add_option("--config", options.config);
  launch->add_option("--window", options.window);
  launch->add_option("--hello-limit", hello_limit_s);
  launch->add_option("--environment", options.environment);
  launch->add_option("--program", program);
  launch->add_option("hosts", hosts);
  CLI11_PARSE(app, argc, argv);
  try {
    if (!launch->parsed()) return agent();
    ::signal(SIGPIPE, SIG_IGN);
    fill_standard_streams();
    options.hello_limit = std::chrono::seconds(hello_limit_s);
    options.agent_command = {program, "agent"};
    return Probe(hosts, options).run();
  } catch (const Error& error) {
    fmt::print(stderr, "error: {}\n  hint: {}\n", error.what(), error.hint());
    return exit_code(error.kind());
  }
}
