#include "launcher/job/launch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <map>
#include <optional>
#include <thread>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/handshake.h"
#include "engine/base/input_file.h"
#include "engine/base/json.h"
#include "engine/base/redact.h"
#include "engine/base/replica_words.h"
#include "engine/base/run_layout.h"
#include "engine/base/words.h"
#include "launcher/base/plan_file.h"
#include "launcher/base/process_tree.h"
#include "launcher/base/run_directory.h"
#include "launcher/hosts/placement.h"
#include "launcher/job/controller.h"
#include "launcher/job/environment_file.h"
#include "launcher/job/event_log.h"
#include "launcher/job/failure.h"
#include "launcher/job/host_rates.h"
#include "launcher/job/job_words.h"
#include "launcher/job/preflight.h"
#include "launcher/job/prepare_job.h"
#include "launcher/job/rank_log.h"
#include "launcher/job/restart_budget.h"
#include "launcher/job/run_files.h"
#include "launcher/job/token.h"
#include "launcher/transport/joined.h"
#include "launcher/transport/reach_hosts.h"
#include "launcher/transport/sweep_hosts.h"
#include "launcher/transport/transport.h"

namespace dstrain::launcher {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kNumRepeatedLines = 20;
/// A host that was lost is often still unreachable: the job should not wait long to see it.
constexpr std::chrono::seconds kSweepConnectLimit{3};

std::string own_program() { return fs::read_symlink("/proc/self/exe").string(); }

/// One job from its first start to its end.
class Job {
 public:
  Job(const LaunchOptions& options, Console& console, Interrupts& interrupts)
      : options_(options),
        console_(console),
        interrupts_(interrupts),
        events_(console),
        machine_(probe_machine()),
        request_(options.request),
        budget_(options.max_restarts) {
    if (options.cpu_ranks) machine_.gpus = 0;
    request_.cpu_ranks = options.cpu_ranks;
    allocation_ = options.joined ? allocate_joined(*options.joined, request_)
                                 : allocate(request_, machine_, ::getenv);
    placement_ = place(allocation_, options.request.ranks);
    if (options.preflight && !options.dry_run) look_at_hosts();
    if (options.min_ranks > placement_.world_size) {
      throw Error(ErrorKind::usage,
                  fmt::format("--min-ranks {}: the job starts with {} rank{}", options.min_ranks,
                              placement_.world_size, plural(placement_.world_size)));
    }
    for (const int rank : options_.tee.ranks) {
      if (rank >= placement_.world_size)
        throw Error(ErrorKind::usage,
                    fmt::format("--tee {}: the job has {} rank{}, counted from 0", rank,
                                placement_.world_size, plural(placement_.world_size)));
    }
    first_world_size_ = placement_.world_size;
    files_ = make_files(placement_);
    for (const std::string& remark : allocation_.remarks) console_.lines(remark);
  }

  void describe_only() {
    ChosenRun run = choose_run(options_.output, options_.recipe_name, options_.resume,
                               std::time(nullptr), options_.run_name);
    for (const std::string& line : remarks(run, options_.resume)) console_.lines(line);
    if (run.path.empty()) {
      run.path = fs::absolute(options_.output).lexically_normal() /
                 (options_.recipe_name + "-<utc time>-<short id>");
    }
    std::vector<PrepareJob> jobs;
    for (const NodePlacement& node : placement_.nodes) {
      jobs.push_back(prepare_job(options_, node, placement_.world_size, run.path, run.resume_from));
    }
    std::string text = describe(placement_, jobs, openmp_choice(::getenv));
    redactor().apply(text);
    console_.lines(text);
  }

  int run() {
    run_ = open_run_directory(options_.output, options_.recipe_name, options_.resume,
                              std::time(nullptr), options_.run_name);
    for (const std::string& line : remarks(run_, options_.resume)) console_.lines(line);
    try {
      return run_to_the_end();
    } catch (const Error&) {
      if (!has_run_) remove_refused(run_);
      throw;
    }
  }

 private:
  int run_to_the_end() {
    if (options_.preflight) {
      if (const auto code = measure_hosts()) return *code;
    }
    while (true) {
      write_run_files(run_, files_);
      report_start();
      write_event("launched", budget_.best_step(),
                  {{"start", attempt_},
                   {"hosts", placement_.nodes.size()},
                   {"ranks", placement_.world_size}});
      const Outcome outcome = run_attempt(make_attempt(placement_), stops_, console_, interrupts_);
      ++attempt_;
      has_run_ = has_run_ || outcome.started;
      if (const auto code = handle(outcome)) return *code;
    }
  }

  void write_event(std::string_view kind, std::int64_t step, const nlohmann::ordered_json& fields) {
    events_.add(RunLayout(run_.path).events(), kind, step, fields);
  }

  /// Hides secrets in our environment and among --env.
  [[nodiscard]] Redactor redactor() const {
    std::vector<std::string> known = own_environment();
    known.insert(known.end(), options_.environment.begin(), options_.environment.end());
    return Redactor(known);
  }

  [[nodiscard]] std::vector<RunFile> make_files(const Placement& placement) const {
    std::vector<RunFile> files = options_.files(placement.world_size);
    const Redactor redactor = this->redactor();
    files.push_back(
        {run_file::kEnvironment,
         describe_environment(options_.build, options_.command_line, machine_, placement, redactor),
         Readers::owner});
    const auto named = std::ranges::find_if(options_.recipe_variables, is_secret_name);
    if (named != options_.recipe_variables.end()) refuse_secret(run_file::kRecipe, *named);
    for (const RunFile& file : files) {
      const std::string secret = redactor.find(file.content);
      if (!secret.empty()) refuse_secret(file.name, secret);
    }
    return files;
  }

  void report_start() {
    console_.lines(fmt::format("{}, {} {}", describe_start(placement_),
                               run_.continued || attempt_ > 0 ? "continuing" : "run directory",
                               short_path(run_.path)));
  }

  /// `measured`: for the measurement of the preflight, which writes this file; empty: to train.
  [[nodiscard]] Attempt make_attempt(const Placement& placement, const fs::path& measured = {}) {
    Attempt attempt;
    attempt.nodes = placement.nodes;
    attempt.lease = lease_of(placement.nodes.size());
    attempt.build = options_.build;
    const JobSecret secret = draw_secret();
    const bool here_only =
        std::all_of(placement.nodes.begin(), placement.nodes.end(),
                    [](const NodePlacement& node) { return node.host.reach == Reach::local; });
    // One for each start: an agent of an earlier start that lost its launcher takes its own away.
    if (!here_only) token_.emplace(run_.path);
    std::vector<Host> hosts;
    for (const NodePlacement& node : placement.nodes) {
      PrepareJob job = prepare_job(options_, node, placement.world_size, run_.path,
                                   measured.empty() ? run_.resume_from : "");
      if (!measured.empty())
        job.command.insert(job.command.end(), {"--measure", measured.string()});
      job.attempt = attempt_;
      job.secret.assign(secret.begin(), secret.end());
      if (!here_only) job.token = token_->name();
      if (node.host.reach != Reach::local && job.command.front() == own_program())
        job.command.front() = kAgentProgram;
      if (node.host.reach != Reach::local) job.lease_ms = static_cast<int>(attempt.lease.count());
      attempt.jobs.push_back(std::move(job));
      hosts.push_back(node.host);
    }
    attempt.transport = reach_hosts(hosts, reach_options());
    return attempt;
  }

  /// The hosts of the first placement may be bad ones.
  void look_at_hosts() {
    ReachOptions how = reach_options();
    how.srun_log.clear();  // there is no run directory yet
    const std::unique_ptr<Transport> transport = reach_hosts(allocation_.hosts, how);
    const int ranks = placement_.world_size;
    const std::vector<Host> all = allocation_.hosts;
    allocation_ =
        without_bad_hosts(std::move(allocation_), ranks, *transport, options_.build, console_);
    for (const Host& host : all) {
      if (std::ranges::find(allocation_.hosts, host.name, &Host::name) == allocation_.hosts.end())
        unfit_.push_back(host.name);
    }
    placement_ = place(allocation_, ranks);
  }

  /// Lets the ranks of all hosts measure products and sums, and takes spares for hosts that are
  /// slow. The exit code, where the job ends there.
  std::optional<int> measure_hosts() {
    const Placement all = place(allocation_, slots_left());
    const fs::path file = run_.path / "preflight.json";
    fs::remove(file);
    write_run_files(run_, files_);
    const Outcome outcome = run_attempt(make_attempt(all, file), stops_, console_, interrupts_);
    const auto leave_out_slow = [&](const std::string& name, const std::string& why) {
      if (leave_out(name, why.c_str())) return true;
      console_.lines(fmt::format("preflight: {} {}, and there is no spare", name, why));
      return false;
    };
    if (outcome.kind == Outcome::Kind::failed) {
      const std::string& host = outcome.report->root.host;
      console_.lines("preflight: the measurement failed: " + outcome.report->summary);
      if (!leave_out_slow(host, "failed in the measurement"))
        throw Error(ErrorKind::hosts, "preflight: " + outcome.report->summary,
                    fmt::format("take {} out, or leave out --preflight", host));
    } else if (outcome.kind != Outcome::Kind::finished) {
      return handle(outcome);
    } else {
      const std::vector<HostRates> rates = read_host_rates(file, all.nodes);
      console_.lines(fmt::format("preflight: {}", describe(rates)));
      for (const SlowHost& slow : slow_hosts(rates))
        leave_out_slow(slow.host, "is slow: " + slow.text);
    }
    placement_ = place(allocation_, placement_.world_size);
    files_ = make_files(placement_);
    return std::nullopt;
  }

  [[nodiscard]] ReachOptions reach_options() const {
    return {.agent_command = options_.agent_command,
            .ssh_config = options_.ssh_config,
            .ship = options_.ship,
            .srun_log = RunLayout(run_.path).srun_log(),
            .joined = options_.joined};
  }

  /// An agent that was killed leaves what its ranks have daemonised: a fresh one clears it away.
  /// (On this machine the controller has adopted and killed it.)
  void sweep(const std::vector<std::string>& lost) {
    std::vector<Host> hosts;
    for (const NodePlacement& node : placement_.nodes) {
      const bool reachable = node.host.reach == Reach::ssh || node.host.reach == Reach::slurm;
      if (reachable && std::find(lost.begin(), lost.end(), node.host.name) != lost.end())
        hosts.push_back(node.host);
    }
    if (hosts.empty()) return;
    ReachOptions how = reach_options();
    how.connect_limit = kSweepConnectLimit;
    const std::unique_ptr<Transport> transport = reach_hosts(hosts, how);
    const std::vector<HostSweep> sweeps = sweep_hosts(
        hosts.size(), *transport, {.build = options_.build, .run_directory = run_.path.string()});
    std::vector<std::string> unswept;
    for (std::size_t i = 0; i < sweeps.size(); ++i) {
      if (!sweeps[i].problem.empty()) {
        unswept.push_back(fmt::format("{} ({})", hosts[i].name, sweeps[i].problem));
      } else if (sweeps[i].num_killed > 0) {
        console_.lines(fmt::format("{}: killed {} process{} that the lost agent had left",
                                   hosts[i].name, sweeps[i].num_killed,
                                   sweeps[i].num_killed == 1 ? "" : "es"));
      }
    }
    if (!unswept.empty())
      console_.lines(fmt::format("not reached to clear up: {}", fmt::join(unswept, ", ")));
  }

  /// The exit code, or nothing when the job is started again.
  std::optional<int> handle(const Outcome& outcome) {
    switch (outcome.kind) {
      case Outcome::Kind::finished:
        finish();
        return outcome.exit_code;
      case Outcome::Kind::interrupted:
        sweep(outcome.lost_hosts);
        write_event("ended", outcome.step, {{"how", "interrupted"}});
        if (!has_run_) remove_refused(run_);
        return outcome.exit_code;
      case Outcome::Kind::saved:
        return handle_stop(outcome);
      case Outcome::Kind::unreachable:
        return handle_unreachable(outcome);
      case Outcome::Kind::failed:
        return handle_failure(outcome);
    }
    return outcome.exit_code;
  }

  void finish() {
    if (!options_.finished) return;
    try {
      options_.finished(run_.path);
    } catch (const std::exception& error) {
      console_.lines(fmt::format("warning: {}", error.what()));
    }
  }

  /// A rank that stops early saves or fails: those that left no checkpoint had come to their end.
  int handle_stop(const Outcome& outcome) {
    if (!has_checkpoint(run_.path)) {
      console_.lines("the ranks were done; they saved no checkpoint (run.checkpoint.every: never)");
      return 0;
    }
    console_.lines(fmt::format("stopped as asked; go on with --resume {}", short_path(run_.path)));
    return outcome.exit_code;
  }

  std::optional<int> handle_unreachable(const Outcome& outcome) {
    write_event("ended", outcome.step, {{"how", "unreachable"}});
    std::string lines;
    std::vector<std::string> hints;
    for (const auto& [host, problem] : outcome.problems) {
      lines += fmt::format("{}{}: {}: {}", lines.empty() ? "" : "\n", host, kind_name(problem.kind),
                           problem.text);
      if (!problem.hint.empty() &&
          std::find(hints.begin(), hints.end(), problem.hint) == hints.end())
        hints.push_back(problem.hint);
    }
    const std::string hint = fmt::format("{}", fmt::join(hints, "; "));
    // A host that does not come back is one host less, when the job was running before.
    if (attempt_ > 1 && stops_.count == 0) {
      console_.lines(lines);
      std::vector<std::string> names;
      for (const auto& [host, problem] : outcome.problems) names.push_back(host);
      if (replace(names)) return std::nullopt;
    }
    throw Error(ErrorKind::hosts,
                placement_.nodes.size() == 1
                    ? lines
                    : fmt::format("{} of {} hosts cannot take part; nothing was started\n{}",
                                  outcome.problems.size(), placement_.nodes.size(), lines),
                hint);
  }

  std::optional<int> handle_failure(const Outcome& outcome) {
    using Verdict = RestartBudget::Verdict;
    FailureReport report = *outcome.report;
    report.planned_bytes = read_plan(run_.path).allocated_bytes;
    // A host that was named for wrong bits twice is not used again, be there a spare or not.
    const std::string& host = report.root.host;
    const bool named_again = report.kind == FailureKind::replica &&
                             report.root.error.starts_with(kWrongReplica) && ++named_[host] > 1;
    const bool no_spare = named_again && !has_spare(host);
    const bool curable = worth_restart(report) && stops_.count == 0 && !no_spare;
    const Verdict verdict = budget_.decide(
        {.step = outcome.step, .curable = curable, .kind = report.kind, .host = report.root.host});
    int code = outcome.exit_code;
    if (verdict == Verdict::stuck) {
      code = exit_code(ErrorKind::stop);
      report.advice = fmt::format(
          "{} starts in a row came no further than step {} and failed alike: this needs a person, "
          "another start does not help",
          budget_.num_starts(), budget_.best_step());
    } else if (no_spare && options_.max_restarts > 0) {
      report.advice = fmt::format(
          "{} held wrong weights in two starts, and there is no spare in its place: take it out, "
          "then go on with --resume auto",
          host);
    } else if (report.root.rank < 0) {
      report.advice = verdict == Verdict::again ? "" : go_on_advice();
    }
    write_event("failed", outcome.step,
                {{"failure", kind_name(report.kind)},
                 {"host", report.root.host},
                 {"rank", report.root.rank},
                 {"exit_code", code},
                 {"lost_hosts", outcome.lost_hosts}});
    if (is_refusal(outcome)) {
      console_.lines(to_text(report, "", num_repeated(report)));
      remove_refused(run_);
      return code;
    }
    report_failure(report, code);
    sweep(outcome.lost_hosts);
    if (verdict == Verdict::used_up)
      console_.lines(fmt::format("all {} restarts are used", options_.max_restarts));
    const Placement before = placement_;
    if (verdict != Verdict::again) return code;
    const bool fewer_hosts = named_again ? leave_out(host, "held wrong weights twice")
                             : budget_.failed_there_again()
                                 ? leave_out(host, "failed twice in a row")
                                 : false;
    if (!replace(outcome.lost_hosts, fewer_hosts)) return code;
    const std::string left_out =
        lost_.empty() ? "" : fmt::format(", without {}", fmt::join(lost_, ", "));
    const std::vector<std::string> added = added_hosts(before, placement_);
    const std::string with =
        added.empty()
            ? ""
            : fmt::format(", with the spare{} {}", plural(added.size()), fmt::join(added, ", "));
    console_.lines(fmt::format(
        "restart {} of {} from {}{}{}", budget_.num_restarts(), options_.max_restarts,
        run_.resume_from.empty() ? "the beginning" : "the newest checkpoint", left_out, with));
    if (placement_.world_size < before.world_size && options_.price) {
      const std::string price = options_.price(before.world_size, placement_.world_size);
      if (!price.empty()) console_.lines(price);
    }
    const bool at_once = budget_.num_restarts() > 1;
    if (placement_.world_size == before.world_size && !added.empty()) budget_.spend_spare();
    // A cause that comes back at once should not be met a thousand times a minute.
    if (at_once) std::this_thread::sleep_for(std::chrono::seconds(1));
    return std::nullopt;
  }

  /// The hosts without `name` have room for the ranks.
  [[nodiscard]] bool has_spare(const std::string& name) const {
    const std::vector<Host> rest = hosts_left().hosts;
    const auto host = std::ranges::find(rest, name, &Host::name);
    return host != rest.end() && slots_left() - host->slots >= placement_.world_size;
  }

  /// A host whose machine may be at fault is not used again where a spare takes its place.
  bool leave_out(const std::string& name, const char* why) {
    if (!has_spare(name)) return false;
    console_.lines(
        fmt::format("{} {}: it is left out, as there is a spare in its place", name, why));
    unfit_.push_back(name);
    std::erase_if(allocation_.hosts, [&name](const Host& each) { return each.name == name; });
    return true;
  }

  /// The recipe, the data or the machine were refused before the first step: all that there is to
  /// know has been said.
  [[nodiscard]] bool is_refusal(const Outcome& outcome) const {
    using enum ErrorKind;
    constexpr std::array kRefusals = {usage, data, hosts, checkpoint};
    return attempt_ == 1 && outcome.step < 0 &&
           std::ranges::any_of(kRefusals, [&outcome](ErrorKind kind) {
             return outcome.exit_code == exit_code(kind);
           });
  }

  /// Lines of the failed rank's log to repeat: none where all of them stand on the console.
  [[nodiscard]] std::size_t num_repeated(const FailureReport& report) const {
    const bool seen = report.root.error.empty() && options_.tee.shows(report.root.rank);
    return seen ? 0 : kNumRepeatedLines;
  }

  [[nodiscard]] const char* go_on_advice() const {
    if (!has_checkpoint(run_.path)) return "start it again; no checkpoint was saved yet";
    return options_.max_restarts > 0
               ? "go on with --resume auto"
               : "go on with --resume auto, or let it restart by itself with --max-restarts 3";
  }

  /// The next placement, without `lost` hosts: the largest world, at most the first one, that the
  /// hosts hold and the recipe fits. False, and said, when there is none.
  bool replace(const std::vector<std::string>& lost, bool fewer_hosts = false) {
    if (has_checkpoint(run_.path)) {
      run_.continued = true;
      run_.resume_from = run_.path.string();
    }
    lost_.insert(lost_.end(), lost.begin(), lost.end());
    if (options_.joined) look_who_is_there(lost);
    const bool may_grow = options_.joined && placement_.world_size < first_world_size_;
    if (lost.empty() && !fewer_hosts && !may_grow) return true;
    if (place_again() || wait_for_lost()) return true;
    const int slots = slots_left();
    const std::size_t hosts = hosts_left().hosts.size();
    console_.lines(fmt::format("no restart: {} slot{} left on {} host{}, and the job needs {}",
                               slots, plural(slots), hosts, plural(hosts),
                               options_.min_ranks > 0
                                   ? fmt::format("at least {} (--min-ranks)", options_.min_ranks)
                                   : "a number that the recipe's mesh and batch fit"));
    return false;
  }

  [[nodiscard]] Allocation hosts_left() const {
    Allocation rest = allocation_;
    std::erase_if(rest.hosts, [this](const Host& host) {
      return std::find(lost_.begin(), lost_.end(), host.name) != lost_.end();
    });
    return rest;
  }

  [[nodiscard]] int slots_left() const {
    int slots = 0;
    for (const Host& host : hosts_left().hosts) slots += host.slots;
    return slots;
  }

  bool place_again() {
    const Allocation rest = hosts_left();
    const int max = options_.joined ? first_world_size_ : placement_.world_size;
    for (int ranks = std::min(slots_left(), max); ranks >= std::max(1, options_.min_ranks);
         --ranks) {
      try {
        const Placement placement = place(rest, ranks);
        files_ = make_files(placement);
        placement_ = placement;
        return true;
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::usage) throw;
      }
    }
    return false;
  }

  /// Joined hosts that were lost may have come back; each is a host of the next start.
  void look_who_is_there(const std::vector<std::string>& lost) {
    JoinedHosts& joined = *options_.joined;
    joined.advance(std::chrono::steady_clock::now());
    joined.lose(lost);
    const std::vector<std::string> before = std::exchange(lost_, joined.lost());
    for (const std::string& name : before) {
      if (std::ranges::find(lost_, name) == lost_.end())
        console_.lines(fmt::format("{} was lost and is there again", name));
    }
    allocation_ = allocate_joined(joined, request_);
    std::erase_if(allocation_.hosts, [this](const Host& host) {
      return std::ranges::find(unfit_, host.name) != unfit_.end();
    });
  }

  /// For a lost host to be started anew by what started it, where that is known to do so.
  bool wait_for_lost() {
    if (!options_.joined || !options_.joined->returns() || lost_.empty()) return false;
    const auto limit = options_.joined->patience();
    console_.lines(fmt::format("the job needs {} back: waiting up to {} s for {} to start it anew",
                               fmt::join(lost_, ", "), limit.count() / 1000,
                               options_.joined->started_by()));
    using Clock = std::chrono::steady_clock;
    for (const auto until = Clock::now() + limit; Clock::now() < until && stops_.count == 0;) {
      options_.joined->wait(std::min(until, Clock::now() + std::chrono::seconds(1)));
      while (const int signal = interrupts_.next()) stops_.add(signal);
      if (options_.joined->lost().size() == lost_.size()) continue;
      look_who_is_there({});
      if (place_again()) return true;
    }
    return false;
  }

  void report_failure(const FailureReport& report, int code) {
    const std::string log = short_path(RunLayout(run_.path).rank_log(report.root.rank));
    console_.lines(to_text(report, log, num_repeated(report)));
    try {
      const fs::path file = RunLayout(run_.path).failure();
      keep_previous(file);
      write_file_atomically(file, to_json(report, code));
    } catch (const Error& error) {
      console_.lines(fmt::format("warning: {}", error.what()));
    }
  }

  const LaunchOptions& options_;
  Console& console_;
  Interrupts& interrupts_;
  EventLog events_;
  Machine machine_;
  HostRequest request_;
  Allocation allocation_;
  Placement placement_;
  int first_world_size_ = 0;
  std::vector<RunFile> files_;
  RunDirectory run_;
  std::optional<Token> token_;
  StopRequests stops_;
  RestartBudget budget_;
  Subreaper subreaper_;
  std::vector<std::string> lost_;
  std::vector<std::string> unfit_;    ///< left out by preflight, or since they failed again
  std::map<std::string, int> named_;  ///< hosts, how often for wrong weights
  int attempt_ = 0;
  bool has_run_ = false;  ///< ranks were started, now or before
};

}  // namespace

int launch(const LaunchOptions& options, const ConsoleSink& sink, Interrupts& interrupts) {
  Console console(sink);
  Job job(options, console, interrupts);
  if (options.dry_run) {
    job.describe_only();
    return 0;
  }
  return job.run();
}

}  // namespace dstrain::launcher
