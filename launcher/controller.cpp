#include "launcher/controller.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <csignal>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/base/job_environment.h"
#include "launcher/hang_report.h"
#include "launcher/line_folder.h"
#include "launcher/process_tree.h"
#include "launcher/straggler.h"

namespace dstrain::launcher {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::chrono::seconds kHelloLimit{60};  ///< a cold disk may take long to load the program
constexpr std::chrono::seconds kPrepareLimit{30};
constexpr std::chrono::seconds kEndLimit{8};  ///< from "end now" to the agents' last word
constexpr std::chrono::seconds kSweepLimit{5};
constexpr std::chrono::seconds kStatesLimit{8};  ///< for the stacks of all ranks
constexpr std::chrono::seconds kPingInterval{1};
constexpr milliseconds kLostBeforeLease{2000};  ///< given up before the agent ends itself

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

ErrorKind kind_of(int code) {
  using enum ErrorKind;
  for (const ErrorKind kind : {usage, data, hosts, checkpoint, again, stop}) {
    if (exit_code(kind) == code) return kind;
  }
  return internal;
}

/// One node of the job as the controller sees it.
struct Node {
  enum class State { connecting, greeting, greeted, preparing, ready, running, done, gone };

  State state = State::connecting;
  std::optional<Channel> channel;
  Hello hello;
  Clock::time_point since;  ///< of the present state, until the node runs
  Clock::time_point last_heard;
  std::int64_t best_round_trip_ns = INT64_MAX;
  std::int64_t clock_offset_ns = 0;  ///< its clock minus ours
  std::vector<pid_t> pids;
  std::vector<RankState> states;
  bool states_complete = false;
  std::optional<AgentDone> done;
  std::optional<FaultMessage> fault;
  std::optional<HostProblem> problem;
  std::string lost;  ///< how it was lost while its ranks ran; empty: it was not
};

bool shows_several(const PrepareJob& job) {
  return job.world_size > 1 && (job.tee == "all" || job.tee.find(',') != std::string::npos);
}

class Controller {
 public:
  Controller(Generation generation, StopRequests& stops, Console& console, Interrupts& interrupts)
      : generation_(std::move(generation)),
        stops_(stops),
        console_(console),
        interrupts_(interrupts),
        links_(generation_.nodes.size()),
        nodes_(generation_.nodes.size()),
        folder_(shows_several(generation_.jobs.front())) {
    for (Node& node : nodes_) node.since = Clock::now();
  }

  ~Controller() {
    for (std::size_t i = 0; i < nodes_.size(); ++i) end_agent(i);
  }
  Controller(const Controller&) = delete;
  Controller& operator=(const Controller&) = delete;

  Outcome run() {
    while (!over()) step();
    flush_lines(true);
    console_.finish_progress();
    for (std::size_t i = 0; i < nodes_.size(); ++i) end_agent(i);
    return conclude();
  }

 private:
  using State = Node::State;

  // ---- one turn of the loop

  void step() {
    for (const auto& transport : generation_.transports) transport->advance(links_, Clock::now());
    take_links();
    std::vector<pollfd> fds = {{interrupts_.fd(), POLLIN, 0}};
    std::vector<std::size_t> owners = {nodes_.size()};
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      const Node& node = nodes_[i];
      if (!node.channel) continue;
      fds.push_back({node.channel->in(), POLLIN, 0});
      owners.push_back(i);
      if (node.channel->wants_write()) {
        fds.push_back({node.channel->out(), POLLOUT, 0});
        owners.push_back(nodes_.size());
      }
    }
    for (const auto& transport : generation_.transports) transport->add_polls(fds);
    ::poll(fds.data(), fds.size(), timeout_ms());
    for (std::size_t i = 1; i < owners.size(); ++i) {
      if (owners[i] < nodes_.size() && fds[i].revents != 0) receive(owners[i]);
    }
    for (Node& node : nodes_) {
      if (node.channel) node.channel->flush();
    }
    while (const int number = interrupts_.next()) interrupt(number);
    ping();
    watch_times();
    go_on();
    flush_lines(false);
  }

  [[nodiscard]] int timeout_ms() const {
    std::optional<Clock::time_point> next = deadline_;
    const auto sooner = [&next](std::optional<Clock::time_point> time) {
      if (time && (!next || *time < *next)) next = time;
    };
    for (const auto& transport : generation_.transports) sooner(transport->deadline());
    sooner(folder_.deadline());
    const bool all_local =
        std::all_of(generation_.nodes.begin(), generation_.nodes.end(),
                    [](const NodePlacement& node) { return node.host.reach == Reach::local; });
    const bool starting = phase_ < Phase::running;
    if (!all_local || starting || states_deadline_) sooner(last_ping_ + kPingInterval);
    if (states_deadline_) sooner(states_deadline_);
    if (!next) return -1;
    const auto left = std::chrono::duration_cast<milliseconds>(*next - Clock::now()).count();
    return left < 0 ? 0 : static_cast<int>(left) + 1;
  }

  void take_links() {
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      Node& node = nodes_[i];
      if (node.state != State::connecting) continue;
      if (links_[i].problem) {
        refuse(i, *links_[i].problem);
      } else if (links_[i].channel) {
        node.channel = std::move(links_[i].channel);
        links_[i].channel.reset();
        node.channel->send(FrameType::hello,
                           pack(Hello{kProtocolVersion, generation_.build, {}, {}, {}}));
        enter(node, State::greeting);
      }
    }
  }

  void receive(std::size_t i) {
    Node& node = nodes_[i];
    const bool open = node.channel->receive();
    node.last_heard = Clock::now();
    try {
      while (node.channel) {
        const auto frame = node.channel->next();
        if (!frame) break;
        take(i, *frame);
      }
    } catch (const Error& error) {
      if (node.state < State::running) {
        refuse(i, {HostProblem::Kind::version, error.what(), error.hint()});
      } else {
        lose(i, error.what());
      }
    }
    if (!open && node.channel) closed(i);
  }

  void take(std::size_t i, const Frame& frame) {
    Node& node = nodes_[i];
    switch (frame.type) {
      case FrameType::hello:
        greet(i, unpack_hello(frame));
        break;
      case FrameType::ready: {
        const int port = unpack_ready(frame).port;
        if (port != 0) master_port_ = port;
        if (node.state == State::preparing) enter(node, State::ready);
        break;
      }
      case FrameType::started:
        node.pids.push_back(static_cast<pid_t>(unpack_started(frame).pid));
        break;
      case FrameType::console: {
        const RankOutput output = unpack_console(frame);
        folder_.add(output.rank, output.lines, Clock::now());
        break;
      }
      case FrameType::report:
        report(frame.payload);
        break;
      case FrameType::ended:
        ended(i, unpack_ended(frame));
        break;
      case FrameType::done:
        node.done = unpack_done(frame);
        enter(node, State::done);
        break;
      case FrameType::fault:
        node.fault = unpack_fault(frame);
        enter(node, State::gone);
        break;
      case FrameType::pong:
        pong(i, unpack_pong(frame));
        break;
      case FrameType::stall:
        stalled(unpack_state(frame));
        break;
      case FrameType::state:
        node.states.push_back(unpack_state(frame));
        break;
      case FrameType::pace:
        for (const std::string& note :
             stragglers_.add(unpack_pace(frame), generation_.nodes[i].host.name))
          console_.lines(note);
        break;
      case FrameType::states_end:
        node.states_complete = true;
        break;
      case FrameType::prepare:
      case FrameType::start:
      case FrameType::stop:
      case FrameType::ping:
      case FrameType::states:
      case FrameType::sweep:
      case FrameType::inspect:
      case FrameType::inspection:
        throw Error(ErrorKind::internal, "the agent sent a message that only controllers send");
    }
  }

  // ---- the start

  void greet(std::size_t i, const Hello& hello) {
    Node& node = nodes_[i];
    if (hello.build != generation_.build) {
      refuse(i, {HostProblem::Kind::version,
                 fmt::format("dstrain there is {}, here {}", hello.build, generation_.build),
                 "install the same build on every host, or let --ship copy it"});
      return;
    }
    node.hello = hello;
    enter(node, State::greeted);
  }

  /// What is done once for all nodes, when the slowest one has come so far.
  void go_on() {
    if (phase_ == Phase::greeting && all_in(State::greeted)) {
      choose_addresses();
      for (std::size_t i = 0; i < nodes_.size(); ++i) {
        nodes_[i].channel->send(FrameType::prepare, pack(generation_.jobs[i]));
        enter(nodes_[i], State::preparing);
      }
      phase_ = Phase::preparing;
    }
    if (phase_ == Phase::preparing && all_in(State::ready)) {
      for (std::size_t i = 0; i < nodes_.size(); ++i) {
        nodes_[i].channel->send(
            FrameType::start,
            pack(StartRanks{generation_.jobs.front().rendezvous_address, master_port_}));
        enter(nodes_[i], State::running);
      }
      phase_ = Phase::running;
    }
  }

  [[nodiscard]] bool all_in(State state) const {
    return std::all_of(nodes_.begin(), nodes_.end(),
                       [state](const Node& node) { return node.state == state; });
  }

  /// Rank 0's node is reached where a connection from another host has already reached it.
  void choose_addresses() {
    std::string& master = generation_.jobs.front().rendezvous_address;
    if (nodes_.size() == 1) {
      if (master.empty()) master = "127.0.0.1";
      return;
    }
    const auto is_remote = [](const std::string& address) {
      return !address.empty() && !address.starts_with("127.") && address != "::1";
    };
    master = is_remote(nodes_.front().hello.address) ? nodes_.front().hello.address : "";
    for (std::size_t i = 1; i < nodes_.size() && master.empty(); ++i) {
      // A local agent has no connection; the controller beside it is seen by the others.
      if (is_remote(nodes_[i].hello.peer_address)) master = nodes_[i].hello.peer_address;
    }
    if (master.empty()) master = "127.0.0.1";
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      std::string peer = i > 0 ? master : nodes_[1].hello.address;
      if (!is_remote(peer)) peer = nodes_[i].hello.peer_address;
      generation_.jobs[i].peer_address = peer;
    }
  }

  /// The node never ran a rank; the others are still waited for, so that all bad hosts are told at
  /// once.
  void refuse(std::size_t i, HostProblem problem) {
    nodes_[i].problem = std::move(problem);
    nodes_[i].channel.reset();
    enter(nodes_[i], State::gone);
  }

  // ---- the run

  void report(const std::string& line) {
    const nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
    const bool known = json.is_object() && json.contains("text") && json["text"].is_string();
    if (!known || json.value("kind", nlohmann::json()) != "progress") {
      console_.lines(known ? json["text"].get<std::string>() : line);
      return;
    }
    console_.progress(json["text"].get<std::string>(), Clock::now());
    if (json.contains("step") && json["step"].is_number_integer()) {
      step_ = std::max(step_, json["step"].get<std::int64_t>());
      // The last step is shown before what is said about the whole.
      if (json.contains("steps") && json["steps"] == json["step"]) console_.finish_progress();
    }
    if (json.contains("memory_bytes") && json["memory_bytes"].is_number_integer()) {
      memory_bytes_ = std::max(memory_bytes_, json["memory_bytes"].get<std::int64_t>());
    }
  }

  void ended(std::size_t i, RankEnd end) {
    Node& node = nodes_[i];
    step_ = std::max(step_, end.step);
    const auto shift = [&node](std::int64_t& time) {
      if (time > 0) time -= node.clock_offset_ns;
    };
    shift(end.time_ns);
    shift(end.stop_time_ns);
    shift(end.error_time_ns);
    const EndClass end_class = classify(end);
    ends_.push_back(std::move(end));
    if (is_failure(end_class)) stop_others(i, StopKind::elsewhere);
    // Asked to save, it died instead: the others would wait for it for ever.
    if (end_class == EndClass::stopped) stop_others(i, StopKind::end);
  }

  void stop_others(std::size_t cause, StopKind kind) {
    if (stopping_) return;
    stopping_ = true;
    if (!deadline_) deadline_ = Clock::now() + kEndLimit;
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (i != cause) send_stop(nodes_[i], kind);
    }
  }

  static void send_stop(Node& node, StopKind kind) {
    if (node.channel && node.state == State::running)
      node.channel->send(FrameType::stop, pack(kind));
  }

  void closed(std::size_t i) {
    Node& node = nodes_[i];
    if (node.state == State::done || node.state == State::gone) {
      node.channel.reset();
      return;
    }
    const AgentEnding ending = end_transport(i, milliseconds(1000));
    std::string how = ending.signal != 0      ? signal_name(ending.signal)
                      : ending.exit_code != 0 ? fmt::format("exit code {}", ending.exit_code)
                                              : "its connection has closed";
    if (!ending.words.empty()) how += ": " + ending.words;
    if (node.state < State::running) {
      refuse(i, {HostProblem::Kind::other,
                 node.state < State::greeted
                     ? fmt::format("cannot start the agent ({})", how)
                     : fmt::format("the agent ended before a rank was started ({})", how),
                 "run `dstrain doctor` there"});
      return;
    }
    lose(i, how, ending.signal);
  }

  void lose(std::size_t i, const std::string& how, int signal = 0) {
    Node& node = nodes_[i];
    node.lost = how;
    node.channel.reset();
    if (lost_signal_ == 0) lost_signal_ = signal;
    enter(node, State::gone);
    stop_others(i, StopKind::elsewhere);
  }

  void ping() {
    const auto now = Clock::now();
    if (now - last_ping_ < kPingInterval) return;
    last_ping_ = now;
    for (Node& node : nodes_) {
      if (node.channel && node.state >= State::greeted && node.state < State::gone)
        node.channel->send(FrameType::ping, pack_ping(now_ns()));
    }
  }

  void pong(std::size_t i, const PongMessage& message) {
    Node& node = nodes_[i];
    if (message.ping_ns > 0) {
      const std::int64_t now = now_ns();
      const std::int64_t round_trip = now - message.ping_ns;
      const bool here = generation_.nodes[i].host.reach == Reach::local;
      if (!here && round_trip >= 0 && round_trip < node.best_round_trip_ns) {
        node.best_round_trip_ns = round_trip;
        node.clock_offset_ns = message.clock_ns - (message.ping_ns + round_trip / 2);
      }
    }
    // A scheduler signals the agents themselves: the job as a whole is asked to stop.
    if (message.stop_signalled && stops_.count == 0) interrupt(message.signal);
  }

  void watch_times() {
    const auto now = Clock::now();
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      Node& node = nodes_[i];
      if (node.state == State::greeting && now - node.since > kHelloLimit) {
        kill(i);
        refuse(i, {HostProblem::Kind::timeout,
                   fmt::format("the agent said nothing for {} s", kHelloLimit.count()),
                   "run `dstrain --version` there"});
      } else if (node.state == State::preparing && now - node.since > kPrepareLimit) {
        kill(i);
        refuse(i, {HostProblem::Kind::timeout,
                   fmt::format("the agent was not ready in {} s", kPrepareLimit.count()),
                   "a file system that hangs? try to enter the working directory there"});
      } else if (generation_.nodes[i].host.reach != Reach::local && node.channel &&
                 node.state >= State::greeted && node.state < State::done &&
                 now - node.last_heard > generation_.lease - kLostBeforeLease) {
        const auto silent = std::chrono::duration<double>(now - node.last_heard).count();
        kill(i);
        if (node.state < State::running) {
          refuse(i, {HostProblem::Kind::timeout,
                     fmt::format("no sign of life for {:.0f} s", silent), ""});
        } else {
          lose(i, fmt::format("no sign of life for {:.0f} s", silent));
        }
      }
    }
    if (states_deadline_ && (now >= *states_deadline_ || all_states())) judge_hang();
    if (deadline_ && now >= *deadline_) abandon();
  }

  /// The time to end is over: what has not said its last word is killed.
  void abandon() {
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      Node& node = nodes_[i];
      if (node.state >= State::done) continue;
      kill(i);
      node.channel.reset();
      if (node.state == State::running && stops_.count < 2) node.lost = "did not end its ranks";
      enter(node, State::gone);
    }
    abandoned_ = true;
  }

  // ---- hangs

  void stalled(const RankState& state) {
    if (states_deadline_ || stopping_ || hang_) return;
    if (!stall_) {
      console_.lines(fmt::format(
          "rank {} on {} has made no progress for {:.0f} s; taking the stacks of all ranks",
          state.rank, state.host, static_cast<double>(state.stalled_ns) * 1e-9));
    }
    stall_ = state;
    states_deadline_ = Clock::now() + kStatesLimit;
    for (Node& node : nodes_) {
      if (node.channel && node.state == State::running) node.channel->send(FrameType::states, "");
    }
  }

  [[nodiscard]] bool all_states() const {
    return std::all_of(nodes_.begin(), nodes_.end(), [](const Node& node) {
      return node.states_complete || node.state != State::running;
    });
  }

  void judge_hang() {
    states_deadline_.reset();
    std::vector<RankState> states;
    for (Node& node : nodes_) {
      states.insert(states.end(), node.states.begin(), node.states.end());
      node.states.clear();
      node.states_complete = false;
    }
    // Of a node that has finished no agent is left to answer for its ranks.
    for (const RankEnd& end : ends_) {
      const bool told = std::any_of(states.begin(), states.end(), [&end](const RankState& state) {
        return state.rank == end.rank;
      });
      if (told) continue;
      RankState state;
      state.rank = end.rank;
      state.host = end.host;
      state.step = end.step;
      state.process_state = 'X';
      states.push_back(std::move(state));
    }
    if (states.empty()) states.push_back(*stall_);
    HangReport hang = diagnose_hang(std::move(states), generation_.jobs.front().world_size);
    // What was reported waits for a rank that has more time, for a long save perhaps.
    if (!hang.hung) return;
    hang_ = std::move(hang);
    stop_others(nodes_.size(), StopKind::end);
  }

  // ---- the end

  void interrupt(int number) {
    ++stops_.count;
    stops_.last_signal = number;
    if (stops_.count == 1) {
      stops_.preempted = number == SIGTERM || number == SIGUSR1;
      if (phase_ < Phase::running) {
        abandon();
        return;
      }
      console_.lines(fmt::format("{}: finishing this step, saving, ending; once more ends at once",
                                 signal_name(number)));
      for (Node& node : nodes_) send_stop(node, StopKind::finish);
    } else if (stops_.count == 2) {
      console_.lines(fmt::format("{} again: ending now", signal_name(number)));
      for (Node& node : nodes_) send_stop(node, StopKind::end);
      deadline_ = Clock::now() + kEndLimit;
    } else {
      deadline_ = Clock::now();
    }
  }

  [[nodiscard]] bool over() const {
    if (abandoned_) return true;
    const auto at_end = [](const Node& node) { return node.state >= State::done; };
    if (std::all_of(nodes_.begin(), nodes_.end(), at_end)) return true;
    if (phase_ == Phase::running) return false;
    // Some host cannot take part: wait only for those whose own fate is open.
    const bool bad = std::any_of(nodes_.begin(), nodes_.end(), at_end);
    const bool open = std::any_of(nodes_.begin(), nodes_.end(), [this](const Node& node) {
      return phase_ == Phase::greeting ? node.state < State::greeted
                                       : node.state == State::preparing;
    });
    return bad && !open;
  }

  void kill(std::size_t i) {
    for (const auto& transport : generation_.transports) transport->kill(static_cast<int>(i));
  }

  AgentEnding end_transport(std::size_t i, milliseconds limit) {
    AgentEnding result;
    for (const auto& transport : generation_.transports) {
      const AgentEnding ending = transport->end(static_cast<int>(i), limit);
      if (ending.signal != 0 || ending.exit_code != 0 || !ending.words.empty()) result = ending;
    }
    return result;
  }

  /// Nothing of the node's part lives on this machine afterwards.
  void end_agent(std::size_t i) {
    Node& node = nodes_[i];
    if (node.state == State::connecting && node.since == Clock::time_point()) return;
    const bool clean = node.done || node.fault;
    if (!clean) kill(i);
    // With its last word said, the agent ends as soon as our end of the channel closes.
    node.channel.reset();
    (void)end_transport(i, kSweepLimit);
    if (!node.done && !node.pids.empty() && generation_.nodes[i].host.reach == Reach::local) {
      kill_orphans(
          node.pids,
          fmt::format("{}={}", job_environment::kRunDirectory, generation_.jobs[i].run_directory),
          kSweepLimit);
    }
    node.pids.clear();
    node.since = {};
    if (node.state < State::done) node.state = State::connecting;
  }

  Outcome conclude() {
    Outcome outcome;
    outcome.step = step_;
    tell_leftovers();
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (!nodes_[i].lost.empty()) outcome.lost_hosts.push_back(generation_.nodes[i].host.name);
      if (nodes_[i].problem)
        outcome.problems.emplace_back(generation_.nodes[i].host.name, *nodes_[i].problem);
    }
    if (stops_.count >= 2 || (stops_.count == 1 && phase_ < Phase::running))
      return interrupted(outcome);
    throw_fault();
    if (!outcome.problems.empty()) {
      outcome.kind = Outcome::Kind::unreachable;
      outcome.exit_code = exit_code(ErrorKind::hosts);
      return outcome;
    }
    const auto root = find_root(ends_);
    const bool own_cause = root && classify(*root) < EndClass::late;
    if (own_cause) return failed(outcome, make_report(*root, ends_));
    if (hang_) return failed(outcome, make_hang_report(*hang_, ends_));
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (!nodes_[i].lost.empty()) return failed(outcome, lost_report(i));
    }
    if (root) return failed(outcome, make_report(*root, ends_));
    const bool all_clean = std::all_of(ends_.begin(), ends_.end(), [](const RankEnd& end) {
      return classify(end) == EndClass::clean;
    });
    const int world_size = generation_.jobs.front().world_size;
    if (!all_clean || static_cast<int>(ends_.size()) != world_size) return interrupted(outcome);
    if (stops_.count > 0) {
      outcome.kind = Outcome::Kind::saved;
      outcome.exit_code = stops_.preempted ? exit_code(ErrorKind::again) : 0;
    }
    return outcome;
  }

  void tell_leftovers() {
    int leftovers = 0;
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (!nodes_[i].done) continue;
      leftovers += nodes_[i].done->num_leftovers;
      for (const std::string& process : nodes_[i].done->unkillable) {
        console_.lines(
            fmt::format("process {} on {} does not end even on SIGKILL: look at its host", process,
                        generation_.nodes[i].host.name));
      }
    }
    if (leftovers > 0) {
      console_.lines(fmt::format("killed {} process{} that the ranks had left behind", leftovers,
                                 leftovers == 1 ? "" : "es"));
    }
  }

  Outcome interrupted(Outcome outcome) {
    const int number = stops_.last_signal != 0 ? stops_.last_signal : SIGTERM;
    console_.lines(fmt::format("ended by {}{}", signal_name(number),
                               stops_.count >= 2 ? "" : " before the ranks could save"));
    outcome.kind = Outcome::Kind::interrupted;
    outcome.exit_code = 128 + number;
    return outcome;
  }

  Outcome failed(Outcome outcome, FailureReport report) const {
    outcome.kind = Outcome::Kind::failed;
    report.memory_bytes = memory_bytes_;
    outcome.exit_code = report.root.rank < 0 || report.kind == "hang" ? report.root.error_code
                                                                      : exit_code(report.root);
    outcome.report = std::move(report);
    return outcome;
  }

  /// Nodes that could not prepare, in their own words.
  void throw_fault() const {
    std::string message;
    std::string hint;
    int code = 0;
    for (const Node& node : nodes_) {
      if (!node.fault) continue;
      // Words of an agent that had already run ranks are told as a failure of its own.
      if (!message.empty()) message += '\n';
      message += node.fault->message;
      hint = node.fault->hint;
      code = std::max(code, node.fault->exit_code);
    }
    if (code != 0) throw Error(kind_of(code), message, hint);
  }

  [[nodiscard]] FailureReport lost_report(std::size_t i) const {
    const NodePlacement& placement = generation_.nodes[i];
    const bool local = placement.host.reach == Reach::local;
    FailureReport report;
    report.kind = local ? "agent" : "host";
    report.root.rank = -1;
    report.root.host = placement.host.name;
    report.root.step = step_;
    report.root.signal = lost_signal_;
    report.root.error_code = exit_code(ErrorKind::again);
    report.root.error = nodes_[i].lost;
    report.summary =
        local
            ? fmt::format("the agent on {} was lost ({}); its ranks were ended",
                          placement.host.name, nodes_[i].lost)
            : fmt::format("host {} was lost ({}); its agent ends ranks {}-{} by itself within {} s",
                          placement.host.name, nodes_[i].lost, placement.first_rank,
                          placement.first_rank + placement.num_ranks - 1,
                          generation_.lease.count() / 1000);
    report.others = fold_ends(ends_, -1);
    report.advice = advise(report.kind, report.root);
    return report;
  }

  void flush_lines(bool all) {
    for (const LineFolder::Line& line : folder_.take(Clock::now(), all))
      console_.lines(line.text, line.prefix);
  }

  static void enter(Node& node, State state) {
    node.state = state;
    node.since = Clock::now();
    node.last_heard = Clock::now();
  }

  enum class Phase { greeting, preparing, running };

  Generation generation_;
  StopRequests& stops_;
  Console& console_;
  Interrupts& interrupts_;
  std::vector<AgentLink> links_;
  std::vector<Node> nodes_;
  Phase phase_ = Phase::greeting;
  LineFolder folder_;
  std::vector<RankEnd> ends_;
  std::optional<HangReport> hang_;
  std::optional<RankState> stall_;
  StragglerWatch stragglers_;
  std::optional<Clock::time_point> deadline_;
  std::optional<Clock::time_point> states_deadline_;
  Clock::time_point last_ping_;
  std::int64_t step_ = -1;
  std::int64_t memory_bytes_ = 0;
  int master_port_ = 0;
  int lost_signal_ = 0;
  bool stopping_ = false;
  bool abandoned_ = false;
};

}  // namespace

Outcome run_generation(Generation generation, StopRequests& stops, Console& console,
                       Interrupts& interrupts) {
  Controller controller(std::move(generation), stops, console, interrupts);
  return controller.run();
}

}  // namespace dstrain::launcher
