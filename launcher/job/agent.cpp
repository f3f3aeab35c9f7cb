#include "launcher/job/agent.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <sstream>
#include <vector>

#include "engine/base/background_queue.h"
#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/handshake.h"
#include "engine/base/job_environment.h"
#include "engine/base/module.h"
#include "engine/base/open_files.h"
#include "engine/base/run_layout.h"
#include "engine/base/socket.h"
#include "launcher/base/interrupts.h"
#include "launcher/base/process_tree.h"
#include "launcher/doctor/inspect.h"
#include "launcher/doctor/reach_peers.h"
#include "launcher/hang/hang_watch.h"
#include "launcher/hosts/affinity.h"
#include "launcher/hosts/machine.h"
#include "launcher/hosts/network_interface.h"
#include "launcher/hosts/placement.h"
#include "launcher/job/failure.h"
#include "launcher/job/oom.h"
#include "launcher/job/rank_log.h"
#include "launcher/job/rank_process.h"
#include "launcher/job/stop_policy.h"
#include "launcher/protocol/channel.h"
#include "launcher/transport/dial.h"

namespace dstrain::launcher {
namespace {

using Clock = std::chrono::steady_clock;

/// Above this much unread output the console loses lines (the log files do not) and the ranks go
/// on.
constexpr std::size_t kConsoleBuffer = std::size_t{1} << 20;
/// Taken from one rank before the others have their turn.
constexpr std::size_t kReadAtOnce = std::size_t{256} << 10;
constexpr std::size_t kMaxReportBytes = 64 << 10;
constexpr std::chrono::milliseconds kKillLimit{5000};
constexpr std::chrono::milliseconds kGoodbyeLimit{5000};
constexpr std::chrono::seconds kLogLimit{5};
constexpr std::chrono::milliseconds kReachLimit{3000};  ///< of all other agents
constexpr std::chrono::milliseconds kFullLimit{100};    ///< between looks at a log that was full
/// Without an order for so long an agent that nothing ties to a controller ends itself.
constexpr std::chrono::seconds kIdleLimit{90};

struct AgentRank {
  int rank = 0;
  RankProcess process;
  RankLog log;
  std::string report;  ///< unfinished line of the report pipe
  bool ended = false;
  bool log_error_told = false;
};

class Agent {
 public:
  Agent(UniqueFd in, UniqueFd out, const AgentIdentity& identity)
      : signals_({SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGUSR1}),
        channel_(std::move(in), std::move(out)),
        identity_(identity),
        redactor_(own_environment()) {
    channel_.send(Hello{.build = identity.build,
                        .host = probe_machine().host,
                        .address = identity.address,
                        .peer_address = identity.peer_address});
  }

  int run() {
    try {
      while (!finished()) step();
    } catch (const Error& error) {
      channel_.send(FaultMessage{exit_code(error.kind()), error.what(), error.hint()});
      end_everything();
      say_goodbye();
      return exit_code(error.kind());
    }
    end_everything();
    return lost_ ? 1 : 0;
  }

 private:
  [[nodiscard]] bool finished() const { return lost_ || (started_ && num_running_ == 0); }

  /// When the controller's silence ends the ranks. The end of the stream says the same at once; a
  /// cable that is cut says nothing.
  [[nodiscard]] std::optional<Clock::time_point> lease_end() const {
    if (job_.lease_ms > 0) return heard_ + std::chrono::milliseconds(job_.lease_ms);
    if (job_.num_ranks == 0) return heard_ + kIdleLimit;
    return std::nullopt;
  }

  void step() {
    std::vector<pollfd> fds = {{channel_.in(), POLLIN, 0}, {signals_.fd(), POLLIN, 0}};
    if (channel_.wants_write()) fds.push_back({channel_.out(), POLLOUT, 0});
    for (const AgentRank& rank : ranks_) {
      if (rank.process.output && !is_full(rank))
        fds.push_back({rank.process.output.get(), POLLIN, 0});
      if (rank.process.report) fds.push_back({rank.process.report.get(), POLLIN, 0});
    }
    hangs_.add_polls(fds);
    ::poll(fds.data(), fds.size(), timeout_ms());
    channel_.flush();
    if (fds[0].revents != 0) take_orders();
    for (AgentRank& rank : ranks_) read_rank(rank);
    while (const int number = signals_.next()) take_signal(number);
    reap();
    if (watches_for_hangs()) hangs_.advance(Clock::now(), watched_ranks(), channel_);
    carry_out();
    report_dropped();
    if (const auto lease = lease_end(); lease && Clock::now() >= *lease) lost_ = true;
  }

  [[nodiscard]] int timeout_ms() const {
    std::optional<Clock::time_point> deadline = policy_.deadline();
    if (const auto lease = lease_end(); lease && (!deadline || *lease < *deadline))
      deadline = lease;
    if (watches_for_hangs() && (!deadline || hangs_.deadline() < *deadline))
      deadline = hangs_.deadline();
    if (std::ranges::any_of(ranks_, is_full)) {
      const auto look_again = Clock::now() + kFullLimit;
      deadline = deadline ? std::min(*deadline, look_again) : look_again;
    }
    if (!deadline) return -1;
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(*deadline - Clock::now()).count();
    return left < 0 ? 0 : static_cast<int>(left) + 1;
  }

  /// The disk does not keep up: the rank waits, as it would for its own file.
  static bool is_full(const AgentRank& rank) {
    return !rank.ended && rank.log.waiting() > RankLog::kMaxWaiting;
  }

  /// Ranks that are being ended stand still for good reasons.
  [[nodiscard]] bool watches_for_hangs() const { return num_running_ > 0 && !policy_.stopping(); }

  [[nodiscard]] std::vector<WatchedRank> watched_ranks() const {
    std::vector<WatchedRank> watched;
    for (const AgentRank& rank : ranks_) {
      watched.push_back({rank.rank, rank.process.pid, &rank.process.record.get(), rank.ended});
    }
    return watched;
  }

  void take_orders() {
    const bool open = channel_.receive();
    heard_ = Clock::now();
    while (const auto frame = channel_.next()) {
      switch (frame->type) {
        case FrameType::hello:
          (void)unpack<Hello>(*frame);
          break;
        case FrameType::prepare:
          prepare(unpack<PrepareJob>(*frame));
          break;
        case FrameType::start:
          start(unpack<StartRanks>(*frame));
          break;
        case FrameType::stop:
          stop(unpack<StopRanks>(*frame).kind);
          break;
        case FrameType::ping:
          channel_.send(
              Pong{unpack<Ping>(*frame).clock_ns, system_time_ns(), signal_ != 0, signal_});
          break;
        case FrameType::sweep: {
          AgentDone done;
          done.num_leftovers = sweep_run(unpack<SweepRun>(*frame).run_directory, kKillLimit);
          channel_.send(done);
          break;
        }
        case FrameType::inspect:
          inspect_host(unpack<InspectHost>(*frame));
          break;
        case FrameType::reach:
          channel_.send(ReachedPeers{reach_peers(unpack<ReachPeers>(*frame).peers, kReachLimit)});
          break;
        case FrameType::states:
          hangs_.ask(Clock::now(), watched_ranks());
          break;
        case FrameType::ready:
        case FrameType::started:
        case FrameType::console:
        case FrameType::report:
        case FrameType::ended:
        case FrameType::done:
        case FrameType::fault:
        case FrameType::pong:
        case FrameType::stall:
        case FrameType::state:
        case FrameType::states_end:
        case FrameType::inspection:
        case FrameType::pace:
        case FrameType::listening:
        case FrameType::reached:
          throw Error(ErrorKind::internal, "the controller sent a message that only agents send");
      }
    }
    if (!open) lost_ = true;
  }

  void stop(StopKind kind) {
    switch (kind) {
      case StopKind::finish:
        policy_.ask_finish();
        break;
      case StopKind::end:
        policy_.end(Clock::now());
        break;
      case StopKind::elsewhere:
        policy_.failed(Clock::now(), true);
        break;
    }
  }

  void inspect_host(const InspectHost& request) {
    if (request.listen) {
      peers_ = listen_for_peers();
      channel_.send(ListeningAgent{peers_.port, identity_.address, identity_.peer_address});
    }
    channel_.send(InspectionAnswer{
        to_json(inspect({.build = identity_.build,
                         .working_directory = request.working_directory,
                         .peer_address = request.peer_address.empty() ? identity_.peer_address
                                                                      : request.peer_address,
                         .engine_library = engine_library_path()}))});
  }

  void prepare(PrepareJob job) {
    job_ = std::move(job);
    if (!job_.command.empty() && job_.command.front() == kAgentProgram)
      job_.command.front() = std::filesystem::read_symlink("/proc/self/exe").string();
    std::vector<std::string> known = own_environment();
    known.insert(known.end(), job_.environment.begin(), job_.environment.end());
    if (JobSecret secret{}; job_.secret.size() == secret.size()) {
      std::copy(job_.secret.begin(), job_.secret.end(), secret.begin());
      known.push_back(fmt::format("{}={}", job_environment::kJobSecret, to_hex(secret)));
    }
    redactor_ = Redactor(known);
    if (job_.cores == 0) job_.cores = probe_machine().cores;
    // Slurm goes to /tmp when the folder is missing on a node; a job must not run in a place
    // that was not chosen.
    if (::chdir(job_.working_directory.c_str()) != 0) {
      throw Error(ErrorKind::hosts,
                  fmt::format("{}: cannot enter {}: {}", job_.host, job_.working_directory,
                              std::strerror(errno)),
                  "start from a folder that every host has");
    }
    if (!job_.token.empty() &&
        ::access((job_.run_directory + "/" + job_.token).c_str(), F_OK) != 0) {
      throw Error(
          ErrorKind::hosts,
          fmt::format("{}: does not see the run directory {}", job_.host, job_.run_directory),
          "put it on a file system that every host shares, with --set run.output=DIR");
    }
    // Per rank two pipes, its record and its log; the rest is the agent's own.
    require_open_files(32 + 4LL * job_.num_ranks,
                       fmt::format("{}: the agent of {} ranks", job_.host, job_.num_ranks));
    // A daemonised grandchild of a rank may be left of an agent that was killed here.
    (void)sweep_run(job_.run_directory, kKillLimit);
    ReadyAgent ready;
    if (!job_.rendezvous_address.empty()) ready.port = bind_rendezvous();
    channel_.send(ready);
  }

  /// The port is bound by the process that hands it on, so no other job can take it between choice
  /// and use.
  int bind_rendezvous() try {
    ListeningSocket listener = listen_on(job_.rendezvous_address, 0);
    rendezvous_ = std::move(listener.fd);
    return listener.port;
  } catch (const Error& error) {
    throw Error(ErrorKind::hosts, fmt::format("{}: cannot listen on {}: {}", job_.host,
                                              job_.rendezvous_address, error.what()));
  }

  void start(const StartRanks& order) {
    DSTRAIN_CHECK(!started_ && job_.num_ranks > 0, "ranks must be prepared once before they start");
    oom_kills_ = count_oom_kills();
    const Variables variables = [this](const char* name) { return rank_variable(name); };
    const OpenMpChoice openmp = openmp_choice(variables);
    for (std::string& entry : interface_variables(job_.peer_address, variables))
      job_.environment.push_back(std::move(entry));
    const Affinity affinity = plan_affinity(affinity_request(job_.num_ranks, variables));
    std::vector<RankProcess> processes;
    for (int local_rank = 0; local_rank < job_.num_ranks; ++local_rank) {
      const int rank = job_.first_rank + local_rank;
      RankProcess process = start_rank(
          {.command = job_.command,
           .environment = rank_environment(job_, order, local_rank, openmp),
           .cpus = affinity.cpus.empty() ? std::vector<int>{}
                                         : affinity.cpus[static_cast<std::size_t>(local_rank)],
           .rank_zero = rank == 0,
           .master_fd = rank == 0 ? rendezvous_.get() : -1});
      channel_.send(StartedRank{rank, process.pid});
      processes.push_back(std::move(process));
      ++num_running_;
    }
    // A thread from here on: what is forked from now on must not need another one's locks.
    writer_.emplace([] {}, BackgroundQueue::kUnlimited);
    for (RankProcess& process : processes) {
      const int rank = job_.first_rank + static_cast<int>(ranks_.size());
      RankLog log(RunLayout(job_.run_directory).rank_log(rank), redactor_, *writer_);
      ranks_.push_back({rank, std::move(process), std::move(log), {}, false, false});
    }
    // Only rank 0 accepts: once it is gone, a peer's attempt to connect must fail at once.
    rendezvous_.reset();
    started_ = true;
    hangs_ = HangWatch(job_.host, job_.run_directory, job_.hang_limit);
  }

  /// A variable as the ranks will see it: the job's own, else this process's.
  [[nodiscard]] const char* rank_variable(std::string_view name) const {
    for (const std::string& entry : job_.environment) {
      if (entry.starts_with(name) && entry.size() > name.size() && entry[name.size()] == '=')
        return entry.c_str() + name.size() + 1;
    }
    return std::getenv(std::string(name).c_str());
  }

  void read_rank(AgentRank& rank) {
    if (rank.process.output && !is_full(rank)) {
      std::string lines = rank.log.append(read_available(rank.process.output, kReadAtOnce));
      if (!rank.process.output) lines += rank.log.finish();
      show(rank, lines);
      tell_log_error(rank);
    }
    if (rank.process.report) {
      rank.report += read_available(rank.process.report, kReadAtOnce);
      for (auto end = rank.report.find('\n'); end != std::string::npos;
           end = rank.report.find('\n')) {
        std::string line = rank.report.substr(0, end);
        rank.report.erase(0, end + 1);
        redactor_.apply(line);
        if (line.size() > kMaxReportBytes || channel_.pending_bytes() > kConsoleBuffer) {
          ++num_dropped_;
        } else {
          channel_.send(ReportLine{line});
        }
      }
      if (rank.report.size() > kMaxReportBytes) rank.report.clear();
    }
  }

  void tell_log_error(AgentRank& rank) {
    if (rank.log_error_told) return;
    const std::string error = rank.log.error();
    if (error.empty()) return;
    rank.log_error_told = true;
    channel_.send(RankOutput{rank.rank, "warning: " + error + "; the rank goes on\n"});
  }

  void show(const AgentRank& rank, const std::string& lines) {
    if (lines.empty() || !job_.tee.shows(rank.rank)) return;
    // What a rank says of an error that it has recorded is told by the report, once.
    if (rank.process.record.get().error_time_ns.load() > 0) return;
    if (channel_.pending_bytes() > kConsoleBuffer) {
      for (const char c : lines) num_dropped_ += c == '\n' ? 1 : 0;
      return;
    }
    channel_.send(RankOutput{rank.rank, lines});
  }

  void report_dropped() {
    if (num_dropped_ == 0 || channel_.pending_bytes() > kConsoleBuffer / 2) return;
    channel_.send(RankOutput{
        0, fmt::format("dropped {} lines: the console was too slow; they are in the log\n",
                       num_dropped_)});
    num_dropped_ = 0;
  }

  void take_signal(int number) {
    if (number == SIGCHLD) return;
    if (signal_ == 0) {
      signal_ = number;
      channel_.send(Pong{0, system_time_ns(), true, number});
    }
    // A scheduler may signal the agent itself: once to save and end, again to end.
    if (policy_.finish_asked()) {
      policy_.end(Clock::now());
    } else {
      policy_.ask_finish();
    }
  }

  void reap() {
    while (true) {
      siginfo_t info{};
      // WNOWAIT: while the dead rank is not reaped its process group cannot be another's.
      if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return;
      for (AgentRank& rank : ranks_) {
        if (rank.process.pid == info.si_pid) rank_ended(rank, info);
      }
      ::waitpid(info.si_pid, nullptr, WNOHANG);
    }
  }

  void rank_ended(AgentRank& rank, const siginfo_t& info) {
    ::kill(-rank.process.pid, SIGKILL);
    rank.ended = true;
    --num_running_;
    // Everything that it had written is in the pipe; a bound, in case a grandchild writes without
    // end.
    for (int i = 0; i < 64; ++i) read_rank(rank);
    show(rank, rank.log.finish());

    const RankRecord& record = rank.process.record.get();
    RankEnd end;
    end.rank = rank.rank;
    end.host = job_.host;
    end.pid = info.si_pid;
    if (info.si_code == CLD_EXITED) {
      end.exit_code = info.si_status;
    } else {
      end.signal = info.si_status;
    }
    end.time_ns = system_time_ns();
    end.stop_time_ns = stop_time_ns_;
    end.finish_asked = policy_.finish_asked();
    if (end.signal == SIGKILL && !policy_.stopping()) {
      const std::int64_t kills = count_oom_kills();
      end.out_of_memory = kills > oom_kills_ && oom_kills_ >= 0;
      if (end.out_of_memory) end.memory_limit_bytes = memory_limit_bytes();
    }
    end.step = record.step.load();
    end.action = record.action.data();
    if (const std::int64_t entered = record.collectives.load(); entered > 0) {
      end.collective = fmt::format("collective {}, {}{}", entered, record.collective.data(),
                                   record.collectives_left.load() == entered ? ", left" : "");
    }
    end.error = record.error.data();
    end.error_code = record.error_code.load();
    end.error_time_ns = record.error_time_ns.load();
    end.last_lines = rank.log.last_lines();
    redactor_.apply(end.error);
    channel_.send(end);

    const EndClass end_class = classify(end);
    if (is_failure(end_class)) policy_.failed(Clock::now(), end_class == EndClass::peer);
    // Asked to save, it died instead: the others would wait for it for ever.
    if (end_class == EndClass::stopped) policy_.end(Clock::now());
  }

  void carry_out() {
    using Order = StopPolicy::Order;
    // Asked to end before there was anything to end: the job is over with no rank started.
    if (policy_.finish_asked() || policy_.deadline()) started_ = true;
    for (Order order = policy_.due(Clock::now()); order != Order::none;
         order = policy_.due(Clock::now())) {
      if (order == Order::terminate_groups) stop_time_ns_ = system_time_ns();
      for (const AgentRank& rank : ranks_) {
        if (rank.ended) continue;
        switch (order) {
          case Order::none:
            break;
          // Only the rank itself: helpers that it started must live until it has saved.
          case Order::ask_ranks:
            ::kill(rank.process.pid, SIGTERM);
            break;
          case Order::terminate_groups:
            ::kill(-rank.process.pid, SIGTERM);
            break;
          case Order::kill_groups:
            ::kill(-rank.process.pid, SIGKILL);
            break;
        }
        // A stopped process takes SIGTERM only after it goes on.
        if (order != Order::kill_groups) ::kill(rank.process.pid, SIGCONT);
      }
    }
  }

  /// Whatever is left of the job on this node, daemonised grandchildren included.
  void end_everything() {
    hangs_.cancel();
    for (const AgentRank& rank : ranks_) {
      if (!rank.ended) ::kill(-rank.process.pid, SIGKILL);
    }
    AgentDone done;
    for (const pid_t pid : kill_all_children(kKillLimit, done.num_leftovers)) {
      done.unkillable.push_back(describe_process(pid));
    }
    for (AgentRank& rank : ranks_) {
      rank.ended = true;
      read_rank(rank);
      show(rank, rank.log.finish());
    }
    write_logs();
    if (lost_) {
      // The launcher takes it away, unless it was killed.
      if (!job_.token.empty()) ::unlink((job_.run_directory + "/" + job_.token).c_str());
      return;
    }
    report_dropped();
    channel_.send(done);
    say_goodbye();
  }

  /// Waits for the logs. What a stuck disk has not taken by then is lost, and said.
  void write_logs() {
    if (!writer_) return;
    const bool whole = writer_->flush(kLogLimit);
    for (AgentRank& rank : ranks_) {
      tell_log_error(rank);
      if (!whole && rank.log.waiting() > 0)
        channel_.send(RankOutput{
            rank.rank, fmt::format("warning: the last {} bytes of its output were not written to "
                                   "its log within {} s\n",
                                   rank.log.waiting(), kLogLimit.count())});
    }
    writer_->stop(std::chrono::milliseconds(0));
  }

  /// Waits until the controller has read all and closed its end.
  void say_goodbye() {
    const auto deadline = Clock::now() + kGoodbyeLimit;
    while (Clock::now() < deadline) {
      std::array<pollfd, 2> fds = {
          {{channel_.in(), POLLIN, 0}, {channel_.wants_write() ? channel_.out() : -1, POLLOUT, 0}}};
      ::poll(fds.data(), fds.size(), 100);
      channel_.flush();
      if (fds[0].revents != 0 && !channel_.receive()) return;
    }
  }

  Subreaper subreaper_;
  Interrupts signals_;
  Channel channel_;
  AgentIdentity identity_;
  Redactor redactor_;
  PrepareJob job_;
  UniqueFd rendezvous_;
  ListeningSocket peers_;
  StopPolicy policy_;
  std::optional<BackgroundQueue> writer_;  ///< of the logs
  std::vector<AgentRank> ranks_;
  HangWatch hangs_;
  std::int64_t oom_kills_ = -1;
  std::int64_t stop_time_ns_ = 0;
  Clock::time_point heard_ = Clock::now();
  int signal_ = 0;  ///< the first that another process sent to this agent
  int num_running_ = 0;
  int num_dropped_ = 0;
  bool started_ = false;
  bool lost_ = false;
};

}  // namespace

AgentIdentity identity_over_ssh(std::string build) {
  AgentIdentity identity{std::move(build), {}, {}};
  // "client address, client port, server address, server port"
  const char* connection = std::getenv("SSH_CONNECTION");
  std::istringstream words(connection != nullptr ? connection : "");
  std::string port;
  words >> identity.peer_address >> port >> identity.address;
  return identity;
}

int run_agent(UniqueFd in, UniqueFd out, const AgentIdentity& identity) {
  ::signal(SIGPIPE, SIG_IGN);
  return Agent(std::move(in), std::move(out), identity).run();
}

int run_dialled_agent(UniqueFd socket, std::string build) {
  const AgentIdentity identity{std::move(build), own_address(socket.get()),
                               peer_address(socket.get())};
  UniqueFd out(::fcntl(socket.get(), F_DUPFD_CLOEXEC, 3));
  if (!out) fail_system("duplicate a socket");
  return run_agent(std::move(socket), std::move(out), identity);
}

}  // namespace dstrain::launcher
