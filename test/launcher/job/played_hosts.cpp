#include "test/launcher/job/played_hosts.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <ctime>
#include <fstream>
#include <stdexcept>

#include "engine/base/clock.h"
#include "engine/base/open_files.h"
#include "test/support/temp_dir.h"

namespace dstrain::launcher::test {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr const char* kPlayedBuild = "played";
constexpr int kKilledRank = 29;
constexpr int kSilentHost = 5;
constexpr int kRackBegin = 32;
constexpr int kRackEnd = 64;
constexpr milliseconds kPlayedPace{3000};  ///< as an agent's
constexpr milliseconds kAfterMessage{5000};
constexpr std::int64_t kPlayedStepNs = 100'000'000;

double cpu_of_process() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

double resident_mib() {
  std::ifstream file("/proc/self/statm");
  long pages = 0;
  long resident = 0;
  file >> pages >> resident;
  return static_cast<double>(resident * ::sysconf(_SC_PAGESIZE)) / (1 << 20);
}

/// When things happened, system_time_ns(), in memory that the child shares.
struct PlayedTimes {
  std::atomic<std::int64_t> hello;
  std::atomic<std::int64_t> running;
  std::atomic<std::int64_t> event;
};

class PlayedHost {
 public:
  PlayedHost(int number, UniqueFd socket, const Play& play, PlayedTimes& times)
      : number_(number), play_(play), times_(times) {
    UniqueFd out(::fcntl(socket.get(), F_DUPFD_CLOEXEC, 3));
    channel_.emplace(std::move(socket), std::move(out));
  }

  [[nodiscard]] bool open() const { return channel_.has_value(); }
  [[nodiscard]] bool runs() const { return running_ && !ended_; }
  [[nodiscard]] pollfd poll_entry() const {
    const int events = POLLIN | (channel_->wants_write() ? POLLOUT : 0);
    return {channel_->in(), static_cast<short>(events), 0};
  }
  void cut() { channel_.reset(); }
  void fall_silent() { silent_ = true; }
  void say(std::string text) { channel_->send(ReportLine{std::move(text)}); }

  void serve() {
    if (!channel_->receive()) {
      cut();
      return;
    }
    channel_->flush();
    while (const auto frame = channel_->next()) answer(*frame);
  }

  void send_pace(int periods) {
    PaceMessage message;
    for (int i = 0; i < play_.ranks_each; ++i) {
      const int rank = first_rank() + i;
      const std::int64_t steps = 30 * periods;
      const std::int64_t busy = rank == play_.slow_rank ? 96 : 40;  // of 100 parts
      message.ranks.push_back({.rank = rank,
                               .steps = steps,
                               .steps_ns = steps * kPlayedStepNs,
                               .waited_ns = steps * kPlayedStepNs / 100 * (100 - busy)});
    }
    channel_->send(message);
  }

  /// `signal` is what rank `killed` dies of, or without one that of all.
  void end_ranks(int signal, bool stopped, int killed = -1) {
    ended_ = true;
    for (int i = 0; i < play_.ranks_each; ++i) {
      const int rank = first_rank() + i;
      const bool by_us = stopped || (killed >= 0 && rank != killed);
      const std::int64_t now = system_time_ns();
      channel_->send(RankEnd{.rank = rank,
                             .host = name(),
                             .pid = 1000 + rank,
                             .signal = by_us ? SIGTERM : signal,
                             .time_ns = now,
                             .stop_time_ns = by_us ? now - 1 : 0,
                             .step = 30,
                             .action = {},
                             .error = {},
                             .last_lines = std::vector<std::string>(50, std::string(80, 'x'))});
    }
    channel_->send(AgentDone{});
  }

 private:
  [[nodiscard]] std::string name() const { return fmt::format("n{:04d}", number_); }
  [[nodiscard]] int first_rank() const { return number_ * play_.ranks_each; }

  void answer(const Frame& frame) {
    if (silent_) return;
    switch (frame.type) {
      case FrameType::hello:
        if (number_ == 0) times_.hello = system_time_ns();
        channel_->send(Hello{.build = kPlayedBuild,
                             .host = name(),
                             .address = fmt::format("10.1.{}.{}", number_ / 250, number_ % 250 + 1),
                             .peer_address = "10.2.0.1"});
        break;
      case FrameType::prepare:
        channel_->send(ReadyAgent{number_ == 0 ? 29400 : 0});
        break;
      case FrameType::start:
        for (int i = 0; i < play_.ranks_each; ++i)
          channel_->send(StartedRank{first_rank() + i, 1000 + first_rank() + i});
        times_.running = system_time_ns();
        running_ = true;
        break;
      case FrameType::ping:
        channel_->send(Pong{.ping_ns = unpack<Ping>(frame).clock_ns, .clock_ns = system_time_ns()});
        break;
      case FrameType::stop:
        if (!ended_) end_ranks(SIGTERM, /*stopped=*/true);
        break;
      default:
        break;
    }
  }

  int number_;
  const Play& play_;
  PlayedTimes& times_;
  std::optional<Channel> channel_;
  bool running_ = false;
  bool ended_ = false;
  bool silent_ = false;
};

void cause(const Play& play, std::vector<PlayedHost>& hosts) {
  const auto host = [&](int number) -> PlayedHost& {
    return hosts.at(static_cast<std::size_t>(number));
  };
  switch (play.event) {
    case Event::finish:
      for (PlayedHost& each : hosts) each.end_ranks(0, /*stopped=*/false);
      break;
    case Event::killed:
      host(kKilledRank / play.ranks_each).end_ranks(SIGKILL, /*stopped=*/false, kKilledRank);
      break;
    case Event::rack:
      for (int number = kRackBegin; number < kRackEnd; ++number) host(number).cut();
      break;
    case Event::silent:
      host(kSilentHost).fall_silent();
      break;
    case Event::message:
      host(0).say(R"({"kind": "note", "text": "now"})");
      break;
  }
}

/// The life of the child: all hosts until the controller has closed every stream.
void play_hosts(std::vector<UniqueFd> sockets, const Play& play, PlayedTimes& times) {
  std::vector<PlayedHost> hosts;
  for (std::size_t i = 0; i < sockets.size(); ++i)
    hosts.emplace_back(static_cast<int>(i), std::move(sockets[i]), play, times);
  std::optional<Clock::time_point> started;
  auto last_end = Clock::time_point::max();
  bool caused = false;
  int paces = 0;
  for (;;) {
    std::vector<pollfd> fds;
    std::vector<PlayedHost*> open;
    for (PlayedHost& host : hosts) {
      if (!host.open()) continue;
      fds.push_back(host.poll_entry());
      open.push_back(&host);
    }
    if (open.empty()) return;
    ::poll(fds.data(), fds.size(), 20);
    for (std::size_t i = 0; i < open.size(); ++i) {
      if (fds[i].revents != 0) open[i]->serve();
    }
    const auto now = Clock::now();
    if (!started && std::ranges::all_of(hosts, &PlayedHost::runs)) started = now;
    if (!started) continue;
    if (now - *started >= paces * kPlayedPace) {
      for (PlayedHost* host : open) {
        if (host->open() && host->runs()) host->send_pace(paces);
      }
      ++paces;
    }
    if (!caused && now - *started >= play.runs_for) {
      caused = true;
      times.event = system_time_ns();
      cause(play, hosts);
      if (play.event == Event::message) last_end = now + kAfterMessage;
    }
    if (now >= last_end) {
      last_end = Clock::time_point::max();
      for (PlayedHost& host : hosts) {
        if (host.open() && host.runs()) host.end_ranks(0, /*stopped=*/false);
      }
    }
  }
}

/// Hands over the ends of the socketpairs and measures the loop that calls it.
class PlayedTransport final : public Transport {
 public:
  PlayedTransport(std::vector<UniqueFd> sockets, double& longest_turn_s)
      : sockets_(std::move(sockets)), longest_turn_s_(longest_turn_s) {}

  void add_polls(std::vector<pollfd>& /*fds*/) const override {}
  void advance(std::vector<AgentLink>& links, Time /*now*/) override {
    const double cpu = cpu_of_process();
    if (last_cpu_ > 0) longest_turn_s_ = std::max(longest_turn_s_, cpu - last_cpu_);
    last_cpu_ = cpu;
    for (std::size_t i = 0; i < sockets_.size(); ++i) {
      UniqueFd out(::fcntl(sockets_[i].get(), F_DUPFD_CLOEXEC, 3));
      links[i].channel.emplace(std::move(sockets_[i]), std::move(out));
    }
    sockets_.clear();
  }
  [[nodiscard]] std::optional<Time> deadline() const override { return std::nullopt; }
  AgentEnding end(int /*node*/, milliseconds /*limit*/) override { return {}; }
  void kill(int /*node*/) override {}

 private:
  std::vector<UniqueFd> sockets_;
  double& longest_turn_s_;
  double last_cpu_ = 0;
};

Attempt attempt_of(const Play& play, const std::string& run) {
  Attempt attempt;
  attempt.build = kPlayedBuild;
  attempt.lease = play.lease;
  for (int i = 0; i < play.hosts; ++i) {
    NodePlacement node;
    node.host.name = fmt::format("n{:04d}", i);
    node.host.reach = Reach::joined;
    node.first_rank = i * play.ranks_each;
    node.num_ranks = play.ranks_each;
    attempt.nodes.push_back(node);
    PrepareJob job;
    job.run_directory = run;
    job.host = node.host.name;
    job.first_rank = node.first_rank;
    job.num_ranks = node.num_ranks;
    job.world_size = play.hosts * play.ranks_each;
    attempt.jobs.push_back(std::move(job));
  }
  return attempt;
}

}  // namespace

Played play_job(const Play& play, const std::function<void(std::string_view)>& on_line) {
  require_open_files(64 + 4LL * play.hosts, "this test");
  std::vector<UniqueFd> ours;
  std::vector<UniqueFd> theirs;
  for (int i = 0; i < play.hosts; ++i) {
    std::array<int, 2> ends{};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0)
      throw std::runtime_error("socketpair");
    ours.emplace_back(ends[0]);
    theirs.emplace_back(ends[1]);
  }
  auto* times = static_cast<PlayedTimes*>(::mmap(
      nullptr, sizeof(PlayedTimes), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  if (times == MAP_FAILED) throw std::runtime_error("mmap");
  const pid_t child = ::fork();
  if (child == 0) {
    ours.clear();
    try {
      play_hosts(std::move(theirs), play, *times);
    } catch (...) {
      ::_exit(1);
    }
    ::_exit(0);
  }
  theirs.clear();

  Played played;
  const dstrain::test::TempDir run;
  Console console({.write = [&](std::string_view text) {
    played.console += text;
    if (on_line) on_line(text);
  }});
  Interrupts interrupts({SIGUSR2});
  StopRequests stops;
  Attempt attempt = attempt_of(play, run.path().string());
  attempt.transport = std::make_unique<PlayedTransport>(std::move(ours), played.longest_turn_s);
  const double memory = resident_mib();
  const double cpu = cpu_of_process();
  played.outcome = run_attempt(std::move(attempt), stops, console, interrupts);
  played.cpu_s = cpu_of_process() - cpu;
  played.grown_mib = resident_mib() - memory;
  played.after_event_s = static_cast<double>(system_time_ns() - times->event) * 1e-9;
  played.to_running_s = static_cast<double>(times->running - times->hello) * 1e-9;
  ::munmap(times, sizeof(PlayedTimes));
  int status = 0;
  ::waitpid(child, &status, 0);
  if (status != 0) throw std::runtime_error("the child that plays hosts failed");
  return played;
}

}  // namespace dstrain::launcher::test
