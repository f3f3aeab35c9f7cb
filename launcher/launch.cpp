#include "launcher/launch.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <nlohmann/json.hpp>
#include <optional>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/job_environment.h"
#include "launcher/allocation.h"
#include "launcher/environment_file.h"
#include "launcher/failure.h"
#include "launcher/placement.h"
#include "launcher/process_tree.h"
#include "launcher/redact.h"
#include "launcher/run_directory.h"
#include "launcher/transport.h"

namespace dstrain::launcher {
namespace {

using Clock = std::chrono::steady_clock;
namespace fs = std::filesystem;

constexpr std::chrono::seconds kHelloLimit{60};  ///< a cold disk may take long to load the program
constexpr std::chrono::seconds kEndLimit{8};     ///< from "end now" to the agent's last word
constexpr std::chrono::seconds kSweepLimit{5};
constexpr std::size_t kNumRepeatedLines = 20;

/// Short for a person: relative when it lies below the present folder.
std::string shown(const fs::path& path) {
  std::error_code error;
  const fs::path relative = fs::proximate(path, error);
  return error || relative.empty() || *relative.begin() == ".." ? path.string() : relative.string();
}

ErrorKind kind_of(int code) {
  using enum ErrorKind;
  for (const ErrorKind kind : {usage, data, hosts, checkpoint, again, stop}) {
    if (exit_code(kind) == code) return kind;
  }
  return internal;
}

/// Watches one agent from its start to its end.
class Controller {
 public:
  Controller(const LaunchOptions& options, const RunDirectory& run, PrepareJob job,
             Console& console, Interrupts& interrupts)
      : run_(run),
        job_(std::move(job)),
        console_(console),
        interrupts_(interrupts),
        agent_(start_local_agent(options.agent_command)),
        agent_program_(options.agent_command.front()) {
    agent_.channel.send(FrameType::hello, pack(Hello{kProtocolVersion, options.build}));
    deadline_ = Clock::now() + kHelloLimit;
  }

  ~Controller() {
    if (agent_.pid > 0) end_agent();
  }
  Controller(const Controller&) = delete;
  Controller& operator=(const Controller&) = delete;

  int run() {
    bool open = true;
    while (open && !done_) {
      std::array<pollfd, 3> fds = {
          {{agent_.channel.in(), POLLIN, 0},
           {interrupts_.fd(), POLLIN, 0},
           {agent_.channel.wants_write() ? agent_.channel.out() : -1, POLLOUT, 0}}};
      ::poll(fds.data(), fds.size(), timeout_ms());
      agent_.channel.flush();
      if (fds[0].revents != 0) open = agent_.channel.receive();
      while (const auto frame = agent_.channel.next()) take(*frame);
      while (const int number = interrupts_.next()) interrupt(number);
      if (deadline_ && Clock::now() >= *deadline_) break;
    }
    console_.finish_progress();
    const int status = end_agent();
    if (fault_) throw Error(kind_of(fault_->exit_code), fault_->message, fault_->hint);
    return conclude(status);
  }

 private:
  [[nodiscard]] int timeout_ms() const {
    if (!deadline_) return -1;
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(*deadline_ - Clock::now()).count();
    return left < 0 ? 0 : static_cast<int>(left) + 1;
  }

  void take(const Frame& frame) {
    switch (frame.type) {
      case FrameType::hello:
        (void)unpack_hello(frame);
        said_hello_ = true;
        deadline_.reset();
        agent_.channel.send(FrameType::prepare, pack(job_));
        break;
      case FrameType::ready:
        agent_.channel.send(FrameType::start,
                            pack(StartRanks{job_.rendezvous_address, unpack_ready(frame).port}));
        break;
      case FrameType::started:
        pids_.push_back(static_cast<pid_t>(unpack_started(frame).pid));
        break;
      case FrameType::console: {
        const RankOutput output = unpack_console(frame);
        console_.lines(output.lines, fmt::format("[rank {}] ", output.rank));
        break;
      }
      case FrameType::report:
        report(frame.payload);
        break;
      case FrameType::ended:
        ends_.push_back(unpack_ended(frame));
        break;
      case FrameType::done:
        done_ = unpack_done(frame);
        break;
      case FrameType::fault:
        fault_ = unpack_fault(frame);
        break;
      case FrameType::prepare:
      case FrameType::start:
      case FrameType::stop:
        throw Error(ErrorKind::internal, "the agent sent a message that only controllers send");
    }
  }

  /// One line of rank 0's report pipe; see launcher/README.md.
  void report(const std::string& line) {
    const nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
    const bool known = json.is_object() && json.contains("text") && json["text"].is_string();
    if (known && json.value("kind", nlohmann::json()) == "progress") {
      console_.progress(json["text"].get<std::string>(), Clock::now());
      // The last step is shown before what is said about the whole.
      if (json.contains("steps") && json["steps"] == json.value("step", nlohmann::json())) {
        console_.finish_progress();
      }
    } else {
      console_.lines(known ? json["text"].get<std::string>() : line);
    }
  }

  void interrupt(int number) {
    ++num_interrupts_;
    last_signal_ = number;
    if (num_interrupts_ == 1) {
      console_.lines(fmt::format("{}: finishing this step, saving, ending; once more ends at once",
                                 signal_name(number)));
      agent_.channel.send(FrameType::stop, pack(StopKind::finish));
    } else if (num_interrupts_ == 2) {
      console_.lines(fmt::format("{} again: ending now", signal_name(number)));
      agent_.channel.send(FrameType::stop, pack(StopKind::end));
      deadline_ = Clock::now() + kEndLimit;
    } else {
      deadline_ = Clock::now();
    }
  }

  /// Returns the agent's wait status. Nothing of the job lives afterwards.
  int end_agent() {
    int status = 0;
    if (!done_ && !fault_) ::kill(agent_.pid, SIGKILL);
    // With its last word said, the agent ends as soon as our end of the channel closes.
    agent_.channel = Channel(make_pipe().read, make_pipe().write);
    const auto deadline = Clock::now() + kSweepLimit;
    pid_t ended = 0;
    while ((ended = ::waitpid(agent_.pid, &status, WNOHANG)) == 0 && Clock::now() < deadline) {
      ::poll(nullptr, 0, 1);
    }
    if (ended == 0) {
      ::kill(agent_.pid, SIGKILL);
      ::waitpid(agent_.pid, &status, 0);
    }
    agent_.pid = -1;
    if (!done_) {
      kill_orphans(pids_, fmt::format("{}={}", job_environment::kRunDirectory, job_.run_directory),
                   kSweepLimit);
    }
    return status;
  }

  int conclude(int agent_status) {
    if (done_ && done_->num_leftovers > 0) {
      console_.lines(fmt::format("killed {} process{} that the ranks had left behind",
                                 done_->num_leftovers, done_->num_leftovers == 1 ? "" : "es"));
    }
    if (done_) {
      for (const std::string& process : done_->unkillable) {
        console_.lines(
            fmt::format("process {} does not end even on SIGKILL: look at its host", process));
      }
    }
    if (num_interrupts_ >= 2) {
      console_.lines(fmt::format("ended by {}", signal_name(last_signal_)));
      return 128 + last_signal_;
    }
    if (const auto root = find_root(ends_)) return fail(make_report(*root, ends_));
    if (!done_) return fail(agent_lost(agent_status));
    const bool all_clean = std::all_of(ends_.begin(), ends_.end(), [](const RankEnd& end) {
      return classify(end) == EndClass::clean;
    });
    if (!all_clean || static_cast<int>(ends_.size()) != job_.num_ranks) {
      const int number = last_signal_ != 0 ? last_signal_ : SIGTERM;
      console_.lines(fmt::format("ended by {} before the ranks could save", signal_name(number)));
      return 128 + number;
    }
    if (num_interrupts_ > 0) {
      console_.lines(fmt::format("stopped as asked; go on with --resume {}", shown(run_.path)));
    }
    return 0;
  }

  [[nodiscard]] FailureReport agent_lost(int status) const {
    FailureReport report;
    report.kind = "agent";
    report.root.rank = -1;
    report.root.host = job_.host;
    if (WIFSIGNALED(status)) report.root.signal = WTERMSIG(status);
    if (WIFEXITED(status)) report.root.exit_code = WEXITSTATUS(status);
    report.root.error_code = exit_code(ErrorKind::again);
    report.summary =
        fmt::format("the agent on {} was lost ({}); its ranks were ended", job_.host,
                    report.root.signal != 0 ? signal_name(report.root.signal)
                                            : fmt::format("exit code {}", report.root.exit_code));
    if (!said_hello_)
      report.summary = fmt::format("cannot start the agent {} on {}", agent_program_, job_.host);
    return report;
  }

  int fail(const FailureReport& report) {
    const bool agent = report.root.rank < 0;
    const int code = agent ? report.root.error_code : exit_code(report.root);
    const std::string log =
        shown(run_.path / "ranks" / fmt::format("rank{:04d}.log", report.root.rank));
    console_.lines(agent ? report.summary + "\n" : to_text(report, log, kNumRepeatedLines));
    try {
      write_file_atomically(run_.path / "failure.json", to_json(report, code));
    } catch (const Error& error) {
      console_.lines(fmt::format("warning: {}", error.what()));
    }
    return code;
  }

  const RunDirectory& run_;
  PrepareJob job_;
  Console& console_;
  Interrupts& interrupts_;
  Subreaper subreaper_;
  AgentConnection agent_;
  std::string agent_program_;
  std::optional<Clock::time_point> deadline_;
  std::vector<pid_t> pids_;
  std::vector<RankEnd> ends_;
  std::optional<AgentDone> done_;
  std::optional<FaultMessage> fault_;
  int num_interrupts_ = 0;
  int last_signal_ = 0;
  bool said_hello_ = false;
};

PrepareJob make_job(const LaunchOptions& options, const NodePlacement& node, int world_size,
                    const fs::path& run, const std::string& resume_from) {
  PrepareJob job{.run_directory = run.string(),
                 .working_directory = fs::current_path().string(),
                 .command = options.rank_command,
                 .environment = {},
                 .host = node.host.name,
                 .first_rank = node.first_rank,
                 .num_ranks = node.num_ranks,
                 .world_size = world_size,
                 .cores = node.host.cores,
                 .rendezvous_address = node.first_rank == 0 ? node.host.address : ""};
  job.command.push_back((run / "recipe.yaml").string());
  if (!resume_from.empty()) {
    job.command.emplace_back("--resume");
    job.command.push_back(resume_from);
  }
  return job;
}

void write_run_files(const RunDirectory& run, const std::vector<RunFile>& files) {
  for (const RunFile& file : files) {
    const fs::path path = run.path / file.name;
    if (fs::exists(path) && read_file(path) == file.content) continue;
    keep_previous(path);
    write_file_atomically(path, file.content);
  }
  keep_previous(run.path / "failure.json");
}

}  // namespace

int launch(const LaunchOptions& options, const ConsoleSink& sink, Interrupts& interrupts) {
  Machine machine = probe_machine();
  if (options.cpu_ranks) machine.gpus = 0;
  const Allocation allocation = allocate_local(machine, options.ranks);
  const Placement placement = place(allocation);
  std::vector<RunFile> files = options.files(placement.world_size);
  Console console(sink);
  for (const std::string& remark : allocation.remarks) console.lines(remark);

  const Redactor redactor(own_environment());
  std::string environment =
      describe_environment(options.build, options.command_line, machine, placement);
  redactor.apply(environment);
  files.push_back({"environment.json", std::move(environment)});
  for (const RunFile& file : files) {
    const std::string secret = redactor.find(file.content);
    if (!secret.empty()) {
      throw Error(
          ErrorKind::usage,
          fmt::format("{} would hold the value of the environment variable {}", file.name, secret),
          "secrets reach the ranks by environment; leave them out of the recipe");
    }
  }

  const NodePlacement& node = placement.nodes.front();
  if (options.dry_run) {
    const fs::path run = fs::absolute(options.output).lexically_normal() /
                         (options.recipe_name + "-<utc time>-<short id>");
    const auto job = make_job(options, node, placement.world_size, run,
                              options.resume == "never" ? "" : options.resume);
    console.lines(describe(placement, {job}, std::getenv("OMP_NUM_THREADS") != nullptr));
    return 0;
  }

  const RunDirectory run =
      open_run_directory(options.output, options.recipe_name, options.resume, std::time(nullptr));
  write_run_files(run, files);
  if (options.resume == "auto" && !run.continued) {
    console.lines("--resume auto: no checkpoint of this recipe yet, starting from the beginning");
  }
  console.lines(fmt::format("{} rank{} on {} ({}), {} {}", placement.world_size,
                            placement.world_size == 1 ? "" : "s", node.host.name,
                            node.host.gpus > 0 ? "GPU" : "CPU",
                            run.continued ? "continuing" : "run directory", shown(run.path)));
  Controller controller(options, run,
                        make_job(options, node, placement.world_size, run.path, run.resume_from),
                        console, interrupts);
  return controller.run();
}

}  // namespace dstrain::launcher
