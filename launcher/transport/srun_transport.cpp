#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>
#include <sstream>

#include "engine/base/error.h"
#include "engine/base/output_file.h"
#include "launcher/base/child_process.h"
#include "launcher/transport/dial_listener.h"
#include "launcher/transport/srun_output.h"
#include "launcher/transport/transport.h"

namespace dstrain::launcher {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLookInterval{100};  ///< srun's standard error is a file
constexpr std::chrono::seconds kFirstStateQuery{3};
constexpr std::chrono::seconds kStateQueryInterval{10};
constexpr std::chrono::seconds kStateQueryLimit{8};
/// srun tells how a task ended a moment after its connection has closed; all nodes share this wait.
constexpr milliseconds kEndingWait{200};
/// An agent ends within this time once its stream has closed; longer means that it, or its node,
/// cannot.
constexpr milliseconds kMaxEndTime{2000};
constexpr int kMaxAttempts = 4;

/// Options of srun that a batch script's own options would set behind our back. SLURM_NTASKS alone
/// overrides --ntasks-per-node, SLURM_GPUS_PER_TASK gives an agent one GPU of many, SLURM_MEM_PER_*
/// contradict each other, SLURM_WAIT ends the others soon after the first.
constexpr std::array kOptionVariables = {"SLURM_NTASKS",
                                         "SLURM_NPROCS",
                                         "SLURM_NTASKS_PER_CORE",
                                         "SLURM_NTASKS_PER_GPU",
                                         "SLURM_NTASKS_PER_NODE",
                                         "SLURM_NTASKS_PER_SOCKET",
                                         "SLURM_NTASKS_PER_TRES",
                                         "SLURM_TASKS_PER_NODE",
                                         "SLURM_CPUS_PER_TASK",
                                         "SRUN_CPUS_PER_TASK",
                                         "SLURM_CPUS_PER_GPU",
                                         "SLURM_GPUS",
                                         "SLURM_GPUS_PER_NODE",
                                         "SLURM_GPUS_PER_SOCKET",
                                         "SLURM_GPUS_PER_TASK",
                                         "SLURM_GPU_BIND",
                                         "SLURM_GRES",
                                         "SLURM_STEP_GRES",
                                         "SLURM_TRES_PER_TASK",
                                         "SLURM_TRES_BIND",
                                         "SLURM_MEM_PER_CPU",
                                         "SLURM_MEM_PER_GPU",
                                         "SLURM_MEM_PER_NODE",
                                         "SLURM_MEM_BIND",
                                         "SLURM_CPU_BIND",
                                         "SLURM_CORE_SPEC",
                                         "SLURM_THREAD_SPEC",
                                         "SLURM_THREADS_PER_CORE",
                                         "SLURM_HINT",
                                         "SLURM_DISTRIBUTION",
                                         "SLURM_EXACT",
                                         "SLURM_EXCLUSIVE",
                                         "SLURM_WHOLE",
                                         "SLURM_EXPORT_ENV",
                                         "SLURM_IMMEDIATE",
                                         "SLURM_KILL_BAD_EXIT",
                                         "SLURM_LABELIO",
                                         "SLURM_MPI_TYPE",
                                         "SLURM_MULTI_PROG",
                                         "SLURM_NODE_FILE",
                                         "SLURM_RESV_PORTS",
                                         "SLURM_STDERRMODE",
                                         "SLURM_STDINMODE",
                                         "SLURM_STDOUTMODE",
                                         "SLURM_TIMELIMIT",
                                         "SLURM_WAIT",
                                         "SLURM_WORKING_DIR"};

UniqueFd open_log(const std::filesystem::path& path) {
  if (!path.empty()) {
    return open_output_file(
        path, {.old = OldContent::append, .readers = Readers::owner, .also_read = true});
  }
  UniqueFd log(::memfd_create("srun", MFD_CLOEXEC));
  if (!log) fail_system("make a file in memory");
  return log;
}

/// What `fd` holds from `offset` on, which moves.
std::string read_from(int fd, off_t& offset) {
  std::string text;
  std::array<char, 8192> block{};
  for (;;) {
    const ssize_t got = ::pread(fd, block.data(), block.size(), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return text;
    text.append(block.data(), static_cast<std::size_t>(got));
    offset += got;
  }
}

class SrunTransport final : public Transport {
 public:
  SrunTransport(std::vector<NodeHost> nodes, SrunOptions options)
      : options_(std::move(options)), listener_(nodes.size()), log_(open_log(options_.log)) {
    DSTRAIN_CHECK(!options_.agent_command.empty(), "the agent needs a command");
    log_read_ = ::lseek(log_.get(), 0, SEEK_END);
    for (NodeHost& node : nodes) nodes_.push_back({std::move(node), State::waiting, std::nullopt});
  }
  ~SrunTransport() override { stop_srun(milliseconds(0)); }
  SrunTransport(const SrunTransport&) = delete;
  SrunTransport& operator=(const SrunTransport&) = delete;

  void add_polls(std::vector<pollfd>& fds) const override {
    if (!over_) listener_.add_polls(fds);
  }

  [[nodiscard]] std::optional<Time> deadline() const override {
    if (over_) return std::nullopt;
    return next_look_;
  }

  void advance(std::vector<AgentLink>& links, Time now) override {
    if (over_) return;
    if (attempts_ == 0) {
      until_ = now + options_.dial_limit;
      start(now);
    }
    next_look_ = now + kLookInterval;
    for (DialledAgent& agent : listener_.advance(now)) take_agent(std::move(agent));
    const bool ended = srun_.ended();  // before the log is read: its last words are then in it
    read_log();
    for (Node& node : nodes_) {
      if (node.state != State::waiting) continue;
      if (auto problem = output_.problem(node.host.host.name))
        fail(node, *std::move(problem), links);
    }
    query_states(links, now, ended);
    if (now >= until_) {
      fail_waiting(links, HostProblem::Kind::timeout,
                   fmt::format("its agent did not report within {} s{}",
                               options_.dial_limit.count(), quoted_srun_line()),
                   "a slow prolog, a node that hangs, or a firewall between the nodes");
    }
    // srun ends the tasks that it has when it cannot start all, and does not start, or waits for
    // ever, when a node is down: the others get a new one.
    const bool useless = ended || output_.aborted() || (down_found_ && !any(State::called));
    if (useless && any_left()) {
      if (num_failed_ > failed_at_start_ && attempts_ < kMaxAttempts) {
        start(now);
      } else if (ended && asked_after_end_) {
        fail_left(links, HostProblem::Kind::other, "srun ended" + quoted_srun_line(),
                  fmt::format("try: srun --overlap --nodes={} hostname", nodes_.size()));
      } else if (ended) {
        next_query_ = std::min(next_query_, now);
      }
    }
    if (!any(State::waiting)) hand_over(links);
  }

  AgentEnding end(int number, milliseconds limit) override {
    AgentEnding ending;
    const auto node = std::find_if(nodes_.begin(), nodes_.end(), [number](const Node& candidate) {
      return candidate.host.node == number;
    });
    if (node == nodes_.end()) return ending;
    node->state = State::ended;
    if (std::all_of(nodes_.begin(), nodes_.end(), [](const Node& other) {
          return other.state == State::ended || other.state == State::failed;
        })) {
      over_ = true;
      stop_srun(linked_ ? std::min(limit, kMaxEndTime) : milliseconds(0));
    }
    const std::string& name = node->host.host.name;
    for (read_log();
         output_.ending(name).empty() && ending_wait_ > milliseconds(0) && !srun_.ended();
         read_log()) {
      constexpr milliseconds kTurn{10};
      ::poll(nullptr, 0, static_cast<int>(kTurn.count()));
      ending_wait_ -= kTurn;
    }
    const SrunEnding parsed = parse_srun_ending(output_.ending(name));
    return {parsed.exit_code, parsed.signal, output_.last_line(name)};
  }

  /// One task of a step cannot be killed alone: the end of its connection ends a live agent, and
  /// the end of srun, soon after that of the last connection, ends any.
  void kill(int /*node*/) override {}

 private:
  enum class State {
    waiting,  ///< srun is to start its agent
    called,   ///< its agent has dialled and waits to be welcomed
    linked,   ///< its channel was handed over
    failed,
    ended
  };
  struct Node {
    NodeHost host;
    State state = State::waiting;
    std::optional<DialledAgent> dialled;
  };

  [[nodiscard]] bool any(State state) const {
    return std::any_of(nodes_.begin(), nodes_.end(),
                       [state](const Node& node) { return node.state == state; });
  }
  [[nodiscard]] bool any_left() const { return any(State::waiting) || any(State::called); }

  /// One srun for all nodes that have not failed.
  void start(Time now) {
    stop_srun(milliseconds(0));
    // A task of an earlier srun may live a little longer than that srun.
    listener_.renew();
    ++attempts_;
    failed_at_start_ = num_failed_;
    down_found_ = false;
    asked_after_end_ = false;
    output_ = SrunOutput();
    unread_.clear();
    std::vector<std::string> names;
    for (Node& node : nodes_) {
      if (node.state == State::failed) continue;
      node.state = State::waiting;
      node.dialled.reset();
      names.push_back(node.host.host.name);
    }
    const Pipe pipe = make_pipe();
    srun_ = ChildProcess(command(names), {pipe.read.get(), log_.get(), log_.get()});
    const std::string line = to_line(listener_.target()) + "\n";
    // Shorter than PIPE_BUF and the pipe is empty: written whole, at once.
    if (::write(pipe.write.get(), line.data(), line.size()) < 0) fail_system("write to srun");
    lifeline_ = UniqueFd(::fcntl(pipe.write.get(), F_DUPFD_CLOEXEC, 3));
    next_query_ = now + kFirstStateQuery;
  }

  [[nodiscard]] std::vector<std::string> command(const std::vector<std::string>& names) const {
    std::vector<std::string> words = {"env"};
    for (const char* name : kOptionVariables) words.insert(words.end(), {"-u", name});
    words.insert(
        words.end(),
        {"srun", fmt::format("--nodes={}", names.size()), fmt::format("--ntasks={}", names.size()),
         "--ntasks-per-node=1", fmt::format("--nodelist={}", fmt::join(names, ",")), "--overlap",
         "--kill-on-bad-exit=0", "--no-kill", "--wait=0", "--mpi=none", "--cpu-bind=none",
         "--input=all", "--unbuffered", "--label", "--export=ALL", "--job-name=dstrain-agent",
         // Slurm goes to /tmp when a folder is missing; the agent enters the right one and says so.
         "--chdir=/"});
    // All GPUs of the node for its one agent, whatever the job's tasks were to get each. A step
    // takes one number for all nodes.
    int gpus = nodes_.front().host.host.gpus;
    for (const Node& node : nodes_) gpus = std::min(gpus, node.host.host.gpus);
    if (gpus > 0) words.push_back(fmt::format("--gpus-per-node={}", gpus));
    words.insert(words.end(), options_.agent_command.begin(), options_.agent_command.end());
    return words;
  }

  void stop_srun(milliseconds limit) {
    lifeline_.reset();
    srun_.end(limit);
    read_log();
  }

  void take_agent(DialledAgent agent) {
    const auto node = std::find_if(nodes_.begin(), nodes_.end(), [&agent](const Node& candidate) {
      return candidate.host.host.name == agent.introduction.name;
    });
    // A node that was given up.
    if (node == nodes_.end() || (node->state != State::waiting && node->state != State::called))
      return;
    // Called already: its connection was cut, and it dials again.
    node->dialled = std::move(agent);
    node->state = State::called;
  }

  void read_log() {
    unread_ += read_from(log_.get(), log_read_);
    for (auto end = unread_.find('\n'); end != std::string::npos; end = unread_.find('\n')) {
      output_.add(unread_.substr(0, end));
      unread_.erase(0, end + 1);
    }
  }

  [[nodiscard]] std::string quoted_srun_line() const {
    return output_.own_line().empty() ? "" : "; srun says: " + output_.own_line();
  }

  void fail(Node& node, HostProblem problem, std::vector<AgentLink>& links) {
    node.state = State::failed;
    node.dialled.reset();
    ++num_failed_;
    links[static_cast<std::size_t>(node.host.node)].problem = std::move(problem);
  }

  void fail_waiting(std::vector<AgentLink>& links, HostProblem::Kind kind, const std::string& text,
                    const std::string& hint) {
    for (Node& node : nodes_) {
      if (node.state == State::waiting) fail(node, {kind, text, hint}, links);
    }
  }

  void fail_left(std::vector<AgentLink>& links, HostProblem::Kind kind, const std::string& text,
                 const std::string& hint) {
    for (Node& node : nodes_) {
      if (node.state == State::called) node.state = State::waiting;
    }
    fail_waiting(links, kind, text, hint);
  }

  /// srun does not name a node that is down: it refuses all, or waits until there are enough
  /// others.
  void query_states(std::vector<AgentLink>& links, Time now, bool srun_ended) {
    if (!querying_ && any(State::waiting) && now >= next_query_) {
      std::vector<std::string> names;
      for (const Node& node : nodes_) {
        if (node.state == State::waiting) names.push_back(node.host.host.name);
      }
      answer_ = open_log({});
      null_ = open_null();
      query_ = ChildProcess({"sinfo", "--noheader", "--Node",
                             fmt::format("--nodes={}", fmt::join(names, ",")), "--format=%N %T %E"},
                            {null_.get(), answer_.get(), null_.get()});
      querying_ = true;
      query_after_end_ = srun_ended;
      query_until_ = now + kStateQueryLimit;
    }
    if (!querying_ || (!query_.ended() && now < query_until_)) return;
    query_.end(milliseconds(0));
    querying_ = false;
    asked_after_end_ = query_after_end_;
    next_query_ = now + kStateQueryInterval;
    off_t begin = 0;
    std::istringstream lines(read_from(answer_.get(), begin));
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      std::string name;
      std::string state;
      std::string reason;
      words >> name >> state;
      std::getline(words >> std::ws, reason);
      if (!state.starts_with("down") && !state.starts_with("fail")) continue;
      for (Node& node : nodes_) {
        if (node.host.host.name != name || node.state != State::waiting) continue;
        down_found_ = true;
        fail(
            node,
            {HostProblem::Kind::timeout,
             fmt::format("Slurm calls it {} (reason: {})", state, reason.empty() ? "none" : reason),
             fmt::format("`scontrol show node {}` says more", name)},
            links);
      }
    }
  }

  /// Every node is either called or given up. Only now are the agents welcomed: until the last one
  /// has come, srun may still have ended the first.
  void hand_over(std::vector<AgentLink>& links) {
    over_ = true;
    listener_.close();
    for (Node& node : nodes_) {
      if (node.state != State::called) continue;
      links[static_cast<std::size_t>(node.host.node)].channel.emplace(
          welcome(*std::exchange(node.dialled, std::nullopt)));
      node.state = State::linked;
      linked_ = true;
    }
  }

  SrunOptions options_;
  DialListener listener_;
  std::vector<Node> nodes_;
  UniqueFd log_;
  off_t log_read_ = 0;
  std::string unread_;  ///< unfinished line of the log
  SrunOutput output_;
  ChildProcess srun_;
  UniqueFd lifeline_;  ///< srun's standard input: its end tells agents that wait to give up
  int attempts_ = 0;
  std::size_t num_failed_ = 0;
  std::size_t failed_at_start_ = 0;  ///< of the present attempt
  bool down_found_ = false;
  bool over_ = false;    ///< nothing more to start or to hear of
  bool linked_ = false;  ///< an agent was handed over
  Time until_{};
  Time next_look_{};
  milliseconds ending_wait_ = kEndingWait;

  UniqueFd null_;
  UniqueFd answer_;
  ChildProcess query_;
  bool querying_ = false;
  bool query_after_end_ = false;
  bool asked_after_end_ = false;  ///< sinfo has spoken since srun ended: there is no more to learn
  Time query_until_{};
  Time next_query_{};
};

}  // namespace

std::unique_ptr<Transport> make_srun_transport(std::vector<NodeHost> nodes, SrunOptions options) {
  return std::make_unique<SrunTransport>(std::move(nodes), std::move(options));
}

}  // namespace dstrain::launcher
