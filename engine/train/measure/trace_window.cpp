#include "engine/train/measure/trace_window.h"

#include <fmt/format.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/host_name.h"
#include "engine/base/json.h"
#include "engine/base/units.h"
#include "engine/base/words.h"
#include "engine/mesh/mesh.h"
#include "engine/program/actions_json.h"
#include "engine/samples/share.h"

namespace dstrain {
namespace {

namespace profiler = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;

profiler::ProfilerConfig profiler_config(const TraceConfig& config) {
  return profiler::ProfilerConfig(torch::profiler::impl::ProfilerState::KINETO,
                                  /*report_input_shapes=*/config.detail == TraceDetail::shapes,
                                  /*profile_memory=*/config.memory);
}

std::set<ActivityType> activities(bool cuda) {
  std::set<ActivityType> all = {ActivityType::CPU};
  if (cuda) all.insert(ActivityType::CUDA);
  return all;
}

std::vector<std::string> action_names(const Program& program, const ModelCost& cost) {
  std::vector<std::string> names;
  for (const Action& action : program.actions) names.push_back(describe(action, cost));
  return names;
}

/// What Kineto opens by itself: a file that it renames to `source` when it is whole, which it
/// leaves behind on a full disk. Nothing may stand there before, such as a FIFO, nor stay.
class KinetoFiles {
 public:
  explicit KinetoFiles(std::filesystem::path source) : source_(std::move(source)) { remove(); }
  ~KinetoFiles() { remove(); }
  KinetoFiles(const KinetoFiles&) = delete;
  KinetoFiles& operator=(const KinetoFiles&) = delete;

 private:
  void remove() const {
    std::error_code ignored;
    std::filesystem::remove(source_, ignored);
    std::filesystem::remove(source_.string() + ".tmp", ignored);
  }

  std::filesystem::path source_;
};

/// The note about the files.
std::string write_files(profiler::ProfilerResult& result, const trace::Recording& recording,
                        const std::filesystem::path& actions_file,
                        const nlohmann::ordered_json& actions) {
  // Training needs the cores more.
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::syscall(SYS_gettid)), 15);
  const std::string steps =
      fmt::format("trace of steps {} to {}", recording.first_step, recording.last_step);
  const KinetoFiles kineto(recording.source);
  try {
    result.save(recording.source.string());
    const trace::RewriteResult written = trace::rewrite(recording);
    write_file_atomically(actions_file, json_text(actions) + "\n");
    return fmt::format("{}: {} ({}){}", steps, recording.target.string(),
                       format_bytes(static_cast<Bytes>(written.bytes)),
                       written.incomplete.empty() ? "" : "; incomplete: " + written.incomplete);
  } catch (const std::exception& error) {
    return fmt::format("warning: no {}: {}", steps, error.what());
  }
}

}  // namespace

TraceWindow::TraceWindow(const TraceConfig& config, const World& world, Session& session,
                         RankRecordFile& record, const Simulation& plan,
                         std::filesystem::path folder, std::string run, std::int64_t first_step)
    : config_(config),
      world_(world),
      session_(session),
      record_(record),
      plan_(plan),
      folder_(std::move(folder)),
      run_(std::move(run)),
      first_step_(first_step),
      every_(config.every.in_steps(session.steps_per_epoch())),
      names_(action_names(session.strategy().training, session.cost())),
      regions_(session.strategy().training, names_, world.device.device, config.graphs) {
  const auto& ranks = config.ranks;
  for (const int rank : ranks) {
    if (rank >= world.size)
      notes_.push_back(fmt::format("warning: trace.ranks names rank {} of a run of {} rank{}", rank,
                                   world.size, plural(world.size)));
  }
  const Mesh& mesh = session.strategy().mesh;
  const auto records = [&](int rank) {
    const bool first_of_stage = mesh.coordinate(rank, kAllAxes - Axis::pipeline) == 0;
    return ranks.empty() ? records_trace(rank, world.size, world.local_size, first_of_stage)
                         : std::ranges::find(ranks, rank) != ranks.end();
  };
  records_ = records(world.rank);
  int recording = 0;
  for (int rank = 0; rank < world.size; ++rank) recording += records(rank) ? 1 : 0;
  if (every_ > 0) every_ = std::max<std::int64_t>(every_, config.warmup + config.steps);
  if (config.steps == 0 || !records_) return;
  const Place window = *place(first_step_);
  const std::int64_t end = session.end_step();
  if (window.begin >= end) {
    notes_.push_back(fmt::format(
        "warning: no trace: the last step is {}, the first recorded one would be {} (trace.first)",
        end, window.begin + 1));
    return;
  }
  const std::int64_t first = window.begin + 1, last = std::min(window.end, end);
  notes_.push_back(fmt::format(
      "trace: step{} recorded, with the profiler on from step {}{}",
      first < last ? fmt::format("s {} to {} are", first, last) : fmt::format(" {} is", first),
      window.warmup + 1,
      window.warmup > first_step_ ? "; the steps before make handles, plans and buffers "
                                    "(trace.first: 2 records the second step)"
                                  : ""));
  if (ranks.empty() && recording < world.size)
    notes_.push_back(
        fmt::format("trace: {} of {} ranks record, of some hosts and of each stage; "
                    "trace.ranks names others",
                    recording, world.size));
}

TraceWindow::~TraceWindow() {
  if (files_.valid()) files_.wait();
}

void TraceWindow::request(int steps, std::int64_t step) {
  const std::optional<Place> next = place(step);
  const std::int64_t end = step + config_.warmup + steps;
  if (next && next->warmup < end) {
    notes_.push_back(
        fmt::format("warning: steps {} to {} are traced anyway: the request for a trace is dropped",
                    next->begin + 1, next->end));
    return;
  }
  requested_ = {.warmup = step, .begin = step + config_.warmup, .end = end};
  notes_.push_back(fmt::format("somebody asked for a trace: steps {} to {} are recorded",
                               requested_->begin + 1, requested_->end));
}

std::optional<TraceWindow::Place> TraceWindow::place(std::int64_t step) const {
  if (requested_ && step < requested_->end) return requested_;
  if (config_.steps == 0) return std::nullopt;
  const std::int64_t first = first_step_ + config_.first - 1;
  Place place;
  if (every_ > 0 && step >= first + config_.steps)
    place.window = (step - first - config_.steps) / every_ + 1;
  place.begin = first + place.window * every_;
  place.end = place.begin + config_.steps;
  place.warmup = std::max(first_step_, place.begin - config_.warmup);
  if (every_ == 0 && step >= place.end) return std::nullopt;
  return place;
}

bool TraceWindow::observes(std::int64_t step) const {
  const std::optional<Place> at = place(step);
  return records_ && at && step >= at->warmup && step < at->end;
}

bool TraceWindow::changes_before(std::int64_t step) const {
  if (state_ == State::off) return observes(step);
  if (!observes(step)) return true;
  const std::int64_t begin = place(step)->begin;
  return state_ == State::recording ? begin != recorded_from_ : step >= begin;
}

void TraceWindow::change_before(std::int64_t step) {
  const SectionScope section(record_, RankSection::checkpoint);
  record_.enter(step, "trace");
  if (state_ == State::recording) stop(step);
  if (state_ == State::off && observes(step)) prepare();
  if (state_ == State::warming && step >= place(step)->begin) start(step);
}

void TraceWindow::prepare() {
  wait_for_files();
  synchronize(world_.device.device);
  // Where there is no GPU, Kineto's errors say no more than that.
  constexpr const char* kNothing = "5";
  if (!world_.device.is_cuda()) ::setenv("KINETO_LOG_LEVEL", kNothing, /*overwrite=*/0);
  profiler::prepareProfiler(profiler_config(config_), activities(world_.device.is_cuda()));
  regions_.restart(/*keep=*/false);
  session_.executor().observe(&regions_);
  state_ = State::warming;
}

void TraceWindow::start(std::int64_t step) {
  synchronize(world_.device.device);
  std::unordered_set<at::RecordScope> scopes;  // all
  if (config_.detail == TraceDetail::kernels) scopes = {at::RecordScope::USER_SCOPE};
  profiler::enableProfiler(profiler_config(config_), activities(world_.device.is_cuda()), scopes);
  regions_.restart(/*keep=*/true);
  recorded_from_ = step;
  state_ = State::recording;
}

void TraceWindow::stop(std::int64_t next_step) {
  synchronize(world_.device.device);
  std::shared_ptr<profiler::ProfilerResult> result = profiler::disableProfiler();
  session_.executor().observe(nullptr);
  state_ = State::off;
  const Strategy& strategy = session_.strategy();
  const Program& training = strategy.training;
  std::filesystem::path folder = folder_;
  if (every_ > 0 || (requested_ && requested_->begin == recorded_from_))
    folder /= fmt::format("step-{:08}", recorded_from_ + 1);
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  const std::string name = fmt::format("rank{}_trace.json", world_.rank);
  trace::Recording recording{.source = folder / (name + ".kineto"),
                             .target = folder / name,
                             .rank = world_.rank,
                             .world_size = world_.size,
                             .backend = world_.device.is_cuda() ? "nccl" : "gloo",
                             .run = run_,
                             .host = host_name(),
                             .program = fmt::format("{:016x}", strategy.hash),
                             .cuda = world_.device.is_cuda(),
                             .first_step = recorded_from_ + 1,
                             .last_step = next_step,
                             .warmup = config_.warmup,
                             .graphs = config_.graphs,
                             .actions = {},
                             .runs = regions_.take_runs()};
  if (config_.compress == Compression::gzip) recording.target += ".gz";
  if (config_.compress == Compression::zstd) recording.target += ".zst";
  const std::vector<Phase> by_action = phases(training);
  for (std::size_t i = 0; i < training.actions.size(); ++i)
    recording.actions.push_back({.name = names_[i],
                                 .lane = lane_name(training.actions[i].lane),
                                 .phase = trace_phase(by_action[i])});
  nlohmann::ordered_json actions = {{"version", 1},
                                    {"rank", world_.rank},
                                    {"world_size", world_.size},
                                    {"program", recording.program},
                                    {"device", recording.cuda ? "cuda" : "cpu"},
                                    {"steps", {recording.first_step, recording.last_step}},
                                    {"graphs", config_.graphs},
                                    {"device_peak_flops", datasheet_flops(world_.device.name)},
                                    {"memory", {{"planned", plan_.ledger.allocated()}}}};
  actions["actions"] = actions_json(training, session_.cost(), plan_);
  files_ = std::async(
      std::launch::async,
      [result, recording = std::move(recording),
       file = folder / fmt::format("rank{}_actions.json", world_.rank),
       actions = std::move(actions)] { return write_files(*result, recording, file, actions); });
}

void TraceWindow::wait_for_files() {
  if (files_.valid()) notes_.push_back(files_.get());
}

void TraceWindow::finish(std::int64_t next_step) {
  if (state_ == State::off && !files_.valid()) return;
  const SectionScope section(record_, RankSection::checkpoint);
  record_.enter(next_step, "trace");
  if (state_ == State::recording) stop(next_step);
  if (state_ == State::warming) {
    // The profiler is on and cannot be left so.
    start(next_step);
    (void)profiler::disableProfiler();
    session_.executor().observe(nullptr);
    state_ = State::off;
    notes_.push_back(fmt::format(
        "warning: no trace: the run ended after step {}, before the first traced one", next_step));
  }
  wait_for_files();
}

std::vector<std::string> TraceWindow::take_notes() {
  using namespace std::chrono_literals;
  if (files_.valid() && files_.wait_for(0s) == std::future_status::ready) wait_for_files();
  return std::exchange(notes_, {});
}

}  // namespace dstrain
