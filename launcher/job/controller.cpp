#include "launcher/job/controller.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <csignal>

#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/job_environment.h"
#include "engine/base/run_layout.h"
#include "launcher/base/line_folder.h"
#include "launcher/base/process_tree.h"
#include "launcher/base/words.h"
#include "launcher/hang/hang_inquiry.h"
#include "launcher/hang/straggler.h"
#include "launcher/job/clock_log.h"
#include "launcher/job/job_node.h"
#include "launcher/job/progress_report.h"
#include "launcher/job/rendezvous_address.h"

namespace dstrain::launcher {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::chrono::seconds kHelloLimit{60};  ///< a cold disk may take long to load the program
constexpr std::chrono::seconds kPrepareLimit{30};
constexpr std::chrono::seconds kEndLimit{8};  ///< from "end now" to the agents' last word
constexpr std::chrono::seconds kSweepLimit{5};
constexpr std::chrono::seconds kPingInterval{1};
/// A turn of the loop longer than this is no silence of the nodes.
constexpr std::chrono::seconds kLongTurn{1};

/// Silence after which a node is given up: before its agent ends itself.
milliseconds patience_of(milliseconds lease) {
  return lease - std::max(milliseconds(2000), lease / 6);
}

bool shows_several(const PrepareJob& job) { return job.world_size > 1 && job.tee.shows_several(); }

std::vector<JobNode> make_nodes(Attempt& attempt) {
  std::vector<JobNode> nodes(attempt.nodes.size());
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    nodes[i].index = i;
    nodes[i].placement = std::move(attempt.nodes[i]);
    nodes[i].job = std::move(attempt.jobs[i]);
  }
  return nodes;
}

class Controller {
 public:
  Controller(Attempt attempt, StopRequests& stops, Console& console, Interrupts& interrupts)
      : nodes_(make_nodes(attempt)),
        transport_(std::move(attempt.transport)),
        build_(std::move(attempt.build)),
        lease_(attempt.lease),
        stops_(stops),
        console_(console),
        interrupts_(interrupts),
        links_(nodes_.size()),
        clocks_(RunLayout(nodes_.front().job.run_directory).clocks(), nodes_.size(), console),
        folder_(shows_several(nodes_.front().job)) {}

  ~Controller() {
    for (JobNode& node : nodes_) end_agent(node);
  }
  Controller(const Controller&) = delete;
  Controller& operator=(const Controller&) = delete;

  Outcome run() {
    while (!over()) step();
    write_last_clocks();
    flush_lines(true);
    console_.finish_progress();
    for (JobNode& node : nodes_) end_agent(node);
    return conclude({.nodes = nodes_,
                     .ends = ends_,
                     .hang = hang_,
                     .stops = stops_,
                     .started = phase_ == Phase::running,
                     .step = progress_.step(),
                     .memory_bytes = progress_.memory_bytes(),
                     .lease = lease_},
                    console_);
  }

 private:
  using State = JobNode::State;

  // ---- one turn of the loop

  void step() {
    transport_->advance(links_, Clock::now());
    take_links();
    std::vector<pollfd> fds = {{interrupts_.fd(), POLLIN, 0}};
    std::vector<JobNode*> readers = {nullptr};  // parallel to fds
    for (JobNode& node : nodes_) {
      if (!node.channel) continue;
      fds.push_back({node.channel->in(), POLLIN, 0});
      readers.push_back(&node);
      if (node.channel->wants_write()) {
        fds.push_back({node.channel->out(), POLLOUT, 0});
        readers.push_back(nullptr);
      }
    }
    transport_->add_polls(fds);
    const int timeout = timeout_ms();
    const auto asleep = Clock::now();
    ::poll(fds.data(), fds.size(), timeout);
    // What this process takes longer than it asked for, stopped or without a core, is its own time.
    const auto due = asleep + milliseconds(std::max(timeout, 0));
    const auto awake = timeout < 0 ? Clock::now() : std::min(Clock::now(), due);
    for (std::size_t i = 0; i < readers.size(); ++i) {
      // What another node said may have closed the channel.
      if (readers[i] != nullptr && readers[i]->channel && fds[i].revents != 0) receive(*readers[i]);
    }
    for (JobNode& node : nodes_) {
      if (node.channel) node.channel->flush();
    }
    while (const int number = interrupts_.next()) {
      // A scheduler signals all processes of a job; an agent's word may be here first.
      if (number == told_)
        told_ = 0;
      else
        interrupt(number);
    }
    ping();
    forgive(Clock::now() - awake + (asleep - turn_end_));
    watch_times();
    go_on();
    flush_lines(false);
  }

  [[nodiscard]] int timeout_ms() const {
    std::optional<Clock::time_point> next = deadline_;
    const auto sooner = [&next](std::optional<Clock::time_point> time) {
      if (time && (!next || *time < *next)) next = time;
    };
    sooner(transport_->deadline());
    sooner(folder_.deadline());
    sooner(inquiry_.deadline());
    const bool starting = phase_ < Phase::running;
    if (!all_local() || starting || inquiry_.deadline()) sooner(last_ping_ + kPingInterval);
    if (!next) return -1;
    const auto left = std::chrono::duration_cast<milliseconds>(*next - Clock::now()).count();
    return left < 0 ? 0 : static_cast<int>(left) + 1;
  }

  [[nodiscard]] bool all_local() const {
    return std::ranges::all_of(nodes_, [](const JobNode& node) { return node.is_local(); });
  }

  void take_links() {
    for (JobNode& node : nodes_) {
      if (node.state != State::connecting) continue;
      AgentLink& link = links_[node.index];
      if (link.problem) {
        refuse(node, *link.problem);
      } else if (link.channel) {
        node.channel = std::move(link.channel);
        link.channel.reset();
        node.channel->send(Hello{.build = build_});
        node.enter(State::greeting);
      }
    }
  }

  void receive(JobNode& node) {
    const bool open = node.channel->receive();
    node.last_heard = Clock::now();
    try {
      while (node.channel) {
        const auto frame = node.channel->next();
        if (!frame) break;
        take(node, *frame);
      }
    } catch (const Error& error) {
      if (node.state < State::running) {
        refuse(node, {HostProblem::Kind::version, error.what(), error.hint()});
      } else {
        lose(node, error.what());
      }
    }
    if (!open && node.channel) closed(node);
  }

  void take(JobNode& node, const Frame& frame) {
    switch (frame.type) {
      case FrameType::hello:
        greet(node, unpack<Hello>(frame));
        break;
      case FrameType::ready: {
        const int port = unpack<ReadyAgent>(frame).port;
        if (port != 0) master_port_ = port;
        if (node.state == State::preparing) node.enter(State::ready);
        break;
      }
      case FrameType::started:
        node.pids.push_back(static_cast<pid_t>(unpack<StartedRank>(frame).pid));
        break;
      case FrameType::console: {
        const RankOutput output = unpack<RankOutput>(frame);
        folder_.add(output.rank, output.lines, Clock::now());
        break;
      }
      case FrameType::report:
        progress_.take(unpack<ReportLine>(frame).text, console_, Clock::now());
        break;
      case FrameType::ended:
        ended(node, unpack<RankEnd>(frame));
        break;
      case FrameType::done:
        node.done = unpack<AgentDone>(frame);
        node.enter(State::done);
        break;
      case FrameType::fault:
        node.fault = unpack<FaultMessage>(frame);
        node.enter(State::gone);
        // Its ranks ended with it; those of other nodes wait for them.
        if (phase_ == Phase::running) {
          node.lost = node.fault->message;
          stop_others(&node, StopKind::elsewhere);
        }
        break;
      case FrameType::pong:
        pong(node, unpack<Pong>(frame));
        break;
      case FrameType::stall:
        stalled(unpack<StalledRank>(frame).state);
        break;
      case FrameType::state:
        inquiry_.add(unpack<RankState>(frame));
        break;
      case FrameType::states_end:
        inquiry_.complete(node.index);
        break;
      case FrameType::pace:
        for (const std::string& note : stragglers_.add(unpack<PaceMessage>(frame), node.name()))
          console_.lines(note);
        break;
      case FrameType::prepare:
      case FrameType::start:
      case FrameType::stop:
      case FrameType::ping:
      case FrameType::states:
      case FrameType::sweep:
      case FrameType::inspect:
      case FrameType::inspection:
      case FrameType::listening:
      case FrameType::reach:
      case FrameType::reached:
        throw Error(ErrorKind::internal, "the agent sent a message that only controllers send");
    }
  }

  // ---- the start

  void greet(JobNode& node, const Hello& hello) {
    if (hello.build != build_) {
      refuse(node, {HostProblem::Kind::version,
                    fmt::format("dstrain there is {}, here {}", hello.build, build_),
                    "install the same build on every host, or let --ship copy it"});
      return;
    }
    node.hello = hello;
    node.enter(State::greeted);
  }

  /// What is done once for all nodes, when the slowest one has come so far.
  void go_on() {
    if (phase_ == Phase::greeting && all_in(State::greeted)) {
      choose_addresses(nodes_);
      for (JobNode& node : nodes_) {
        node.channel->send(node.job);
        node.enter(State::preparing);
      }
      phase_ = Phase::preparing;
    }
    if (phase_ == Phase::preparing && all_in(State::ready)) {
      for (JobNode& node : nodes_) {
        node.channel->send(StartRanks{nodes_.front().job.rendezvous_address, master_port_});
        node.enter(State::running);
      }
      phase_ = Phase::running;
      last_ping_ = {};  // so that a short job's clocks are known, too
    }
  }

  [[nodiscard]] bool all_in(State state) const {
    return std::all_of(nodes_.begin(), nodes_.end(),
                       [state](const JobNode& node) { return node.state == state; });
  }

  /// The node never ran a rank; the others are still waited for, so that all bad hosts are told at
  /// once.
  static void refuse(JobNode& node, HostProblem problem) {
    node.problem = std::move(problem);
    node.channel.reset();
    node.enter(State::gone);
  }

  // ---- the run

  void ended(const JobNode& node, RankEnd end) {
    for (std::int64_t* time : {&end.time_ns, &end.stop_time_ns, &end.error_time_ns})
      *time = node.clock.to_ours(*time);
    const EndClass end_class = classify(end);
    if (!is_failure(end_class))
      end.last_lines.clear();  // of thousands that are ended; nobody reads them
    ends_.push_back(std::move(end));
    if (is_failure(end_class)) stop_others(&node, StopKind::elsewhere);
    // Asked to save, it died instead: the others would wait for it for ever.
    if (end_class == EndClass::stopped) stop_others(&node, StopKind::end);
  }

  void stop_others(const JobNode* cause, StopKind kind) {
    if (stopping_) return;
    stopping_ = true;
    if (!deadline_) deadline_ = Clock::now() + kEndLimit;
    for (JobNode& node : nodes_) {
      if (&node != cause) send_stop(node, kind);
    }
  }

  static void send_stop(JobNode& node, StopKind kind) {
    if (node.channel && node.state == State::running) node.channel->send(StopRanks{kind});
  }

  void closed(JobNode& node) {
    if (node.state == State::done || node.state == State::gone) {
      node.channel.reset();
      return;
    }
    const AgentEnding ending = transport_->end(static_cast<int>(node.index), milliseconds(1000));
    std::string how = ending.signal != 0      ? signal_name(ending.signal)
                      : ending.exit_code != 0 ? fmt::format("exit code {}", ending.exit_code)
                                              : "its connection has closed";
    if (!ending.words.empty()) how += ": " + ending.words;
    if (node.state < State::running) {
      refuse(node, {HostProblem::Kind::other,
                    node.state < State::greeted
                        ? fmt::format("cannot start the agent ({})", how)
                        : fmt::format("the agent ended before a rank was started ({})", how),
                    "run `dstrain doctor` there"});
      return;
    }
    lose(node, how, ending.signal);
  }

  void lose(JobNode& node, const std::string& how, int signal = 0) {
    node.lost = how;
    node.lost_signal = signal;
    node.channel.reset();
    node.enter(State::gone);
    stop_others(&node, StopKind::elsewhere);
  }

  // ---- heartbeat and limits of time

  void ping() {
    const auto now = Clock::now();
    if (now - last_ping_ < kPingInterval) return;
    last_ping_ = now;
    for (JobNode& node : nodes_) {
      if (node.channel && node.state >= State::greeted && node.state < State::gone)
        node.channel->send(Ping{system_time_ns()});
    }
  }

  void pong(JobNode& node, const Pong& message) {
    if (message.ping_ns > 0 && !node.is_local()) {
      const auto reading = node.clock.add(message.ping_ns, message.clock_ns, system_time_ns());
      if (reading && phase_ == Phase::running) clocks_.add(node.hello.host, *reading);
    }
    // A scheduler signals the agents themselves: the job as a whole is asked to stop.
    if (message.stop_signalled && stops_.count == 0) {
      told_ = message.signal;
      interrupt(message.signal);
    }
  }

  void write_last_clocks() {
    if (phase_ != Phase::running || all_local()) return;
    for (JobNode& node : nodes_) {
      const std::optional<ClockReading> reading =
          node.is_local() ? ClockReading{.t_ns = system_time_ns()}  // ours
                          : node.clock.take_rest();
      if (reading) clocks_.add_last(node.hello.host, *reading);
    }
  }

  /// Nobody was heard while this process itself did not listen.
  void forgive(Clock::duration turn) {
    const auto now = turn_end_ = Clock::now();
    if (turn <= kLongTurn) return;
    for (JobNode& node : nodes_) {
      for (Clock::time_point* time : {&node.since, &node.last_heard})
        *time = std::min(now, *time + turn);
    }
  }

  void watch_times() {
    const auto now = Clock::now();
    for (JobNode& node : nodes_) {
      if (node.state == State::greeting && now - node.since > kHelloLimit) {
        kill(node);
        refuse(node, {HostProblem::Kind::timeout,
                      fmt::format("the agent said nothing for {} s", kHelloLimit.count()),
                      "run `dstrain --version` there"});
      } else if (node.state == State::preparing && now - node.since > kPrepareLimit) {
        kill(node);
        refuse(node, {HostProblem::Kind::timeout,
                      fmt::format("the agent was not ready in {} s", kPrepareLimit.count()),
                      "a file system that hangs? try to enter the working directory there"});
      } else if (!node.is_local() && node.channel && node.state >= State::greeted &&
                 node.state < State::done && now - node.last_heard > patience_of(lease_)) {
        const std::string silent =
            fmt::format("no sign of life for {:.0f} s",
                        std::chrono::duration<double>(now - node.last_heard).count());
        kill(node);
        if (node.state < State::running) {
          refuse(node, {HostProblem::Kind::timeout, silent, ""});
        } else {
          lose(node, silent);
        }
      }
    }
    if (inquiry_.deadline() && (now >= *inquiry_.deadline() || all_states())) conclude_hang();
    if (deadline_ && now >= *deadline_) abandon();
  }

  /// The time to end is over: what has not said its last word is killed.
  void abandon() {
    for (JobNode& node : nodes_) {
      if (node.state >= State::done) continue;
      kill(node);
      node.channel.reset();
      if (node.state == State::running && stops_.count < 2) node.lost = "did not end its ranks";
      node.enter(State::gone);
    }
    abandoned_ = true;
  }

  // ---- hangs

  void stalled(RankState state) {
    if (inquiry_.deadline() || stopping_ || hang_) return;
    if (!inquiry_.was_begun()) {
      console_.lines(fmt::format(
          "rank {} on {} has made no progress for {:.0f} s; taking the stacks of all ranks",
          state.rank, state.host, static_cast<double>(state.stalled_ns) * 1e-9));
    }
    inquiry_.begin(std::move(state), Clock::now());
    for (JobNode& node : nodes_) {
      if (node.channel && node.state == State::running) node.channel->send(AskStates{});
    }
  }

  [[nodiscard]] bool all_states() const {
    return std::all_of(nodes_.begin(), nodes_.end(), [this](const JobNode& node) {
      return inquiry_.is_complete(node.index) || node.state != State::running;
    });
  }

  void conclude_hang() {
    HangReport hang = inquiry_.conclude(ends_, nodes_.front().job.world_size);
    // What was reported waits for a rank that has more time, for a long save perhaps.
    if (!hang.hung) return;
    hang_ = std::move(hang);
    stop_others(nullptr, StopKind::end);
  }

  // ---- the end

  void interrupt(int number) {
    stops_.add(number);
    if (stops_.count == 1) {
      if (phase_ < Phase::running) {
        abandon();
        return;
      }
      console_.lines(fmt::format("{}: finishing this step, saving, ending; once more ends at once",
                                 signal_name(number)));
      for (JobNode& node : nodes_) send_stop(node, StopKind::finish);
    } else if (stops_.count == 2) {
      console_.lines(fmt::format("{} again: ending now", signal_name(number)));
      for (JobNode& node : nodes_) send_stop(node, StopKind::end);
      deadline_ = Clock::now() + kEndLimit;
    } else {
      deadline_ = Clock::now();
    }
  }

  [[nodiscard]] bool over() const {
    if (abandoned_) return true;
    const auto at_end = [](const JobNode& node) { return node.state >= State::done; };
    if (std::all_of(nodes_.begin(), nodes_.end(), at_end)) return true;
    if (phase_ == Phase::running) return false;
    // Some host cannot take part: wait only for those whose own fate is open.
    const bool bad = std::any_of(nodes_.begin(), nodes_.end(), at_end);
    const bool open = std::any_of(nodes_.begin(), nodes_.end(), [this](const JobNode& node) {
      return phase_ == Phase::greeting ? node.state < State::greeted
                                       : node.state == State::preparing;
    });
    return bad && !open;
  }

  void kill(const JobNode& node) { transport_->kill(static_cast<int>(node.index)); }

  /// Nothing of the node's part lives on this machine afterwards.
  void end_agent(JobNode& node) {
    if (std::exchange(node.released, true)) return;
    const bool clean = node.done || node.fault;
    if (!clean) kill(node);
    // With its last word said, the agent ends as soon as our end of the channel closes.
    node.channel.reset();
    (void)transport_->end(static_cast<int>(node.index), kSweepLimit);
    if (!node.done && !node.pids.empty() && node.is_local()) {
      kill_orphans(node.pids,
                   fmt::format("{}={}", job_environment::kRunDirectory, node.job.run_directory),
                   kSweepLimit);
    }
  }

  void flush_lines(bool all) {
    for (const LineFolder::Line& line : folder_.take(Clock::now(), all))
      console_.lines(line.text, line.prefix);
  }

  enum class Phase { greeting, preparing, running };

  std::vector<JobNode> nodes_;
  std::unique_ptr<Transport> transport_;
  std::string build_;
  milliseconds lease_;
  StopRequests& stops_;
  Console& console_;
  Interrupts& interrupts_;
  std::vector<AgentLink> links_;
  ClockLog clocks_;
  Phase phase_ = Phase::greeting;
  LineFolder folder_;
  ProgressReport progress_;
  StragglerWatch stragglers_;
  HangInquiry inquiry_;
  std::vector<RankEnd> ends_;
  std::optional<HangReport> hang_;
  std::optional<Clock::time_point> deadline_;
  Clock::time_point turn_end_ = Clock::now();
  Clock::time_point last_ping_;
  int master_port_ = 0;
  bool stopping_ = false;
  int told_ = 0;  ///< signal that an agent had before it came here
  bool abandoned_ = false;
};

}  // namespace

Outcome run_attempt(Attempt attempt, StopRequests& stops, Console& console,
                    Interrupts& interrupts) {
  Controller controller(std::move(attempt), stops, console, interrupts);
  return controller.run();
}

}  // namespace dstrain::launcher
