#include "cmd/bench_runner.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>

#include <chrono>
#include <utility>

#include "cmd/recipe_plan.h"
#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/output.h"
#include "engine/base/output_file.h"
#include "engine/base/unique_fd.h"
#include "engine/device/device.h"
#include "engine/report/figures.h"
#include "engine/report/words.h"
#include "engine/samples/gpu_sample.h"
#include "launcher/base/child_process.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

/// Why the program ended: its line "error: ...", else what it says of the rank that failed.
std::string reason_in(const fs::path& log, int exit_code) {
  std::string text;
  try {
    text = read_file(log);
  } catch (const Error&) {
    return fmt::format("exit code {}", exit_code);
  }
  constexpr std::string_view kError = "error: ";
  std::size_t at = text.rfind(kError);
  if (at != std::string::npos) {
    at += kError.size();
  } else {
    at = text.find(" failed in ");
    if (at == std::string::npos) return fmt::format("exit code {}", exit_code);
    at = text.rfind('\n', at) + 1;  // 0 in the first line
  }
  return text.substr(at, std::min<std::size_t>(text.find('\n', at) - at, 300));
}

/// The same descriptor, or a copy of it that is none of the standard streams.
int above_two(int fd) {
  if (fd < 0 || fd > 2) return fd;
  const int copy = ::fcntl(fd, F_DUPFD_CLOEXEC, 3);
  ::close(fd);
  return copy;
}

/// MiB by the GPU's number.
std::vector<double> used_memory(const Nvml& nvml) {
  std::vector<double> used;
  for (const GpuSample& sample : sample_gpus(nvml)) {
    const auto index = static_cast<std::size_t>(std::max(sample.index, 0));
    used.resize(std::max(used.size(), index + 1), 0.0);
    if (sample.used_bytes > 0) used[index] = static_cast<double>(sample.used_bytes) / (1 << 20);
  }
  return used;
}

std::string gigabytes(Bytes bytes) {
  return fmt::format("{:.3g} GB", static_cast<double>(bytes) / 1e9);
}

bench::CellPlan plan_cell(const bench::BenchPlan& plan, std::size_t index) {
  const bench::Case& one = plan.cases.at(index);
  bench::CellPlan cell;
  try {
    const LoadedRecipe loaded =
        load_recipe(plan.recipes[one.recipe], bench::turn_overrides(plan, {.index = index}));
    const Backend backend = loaded.recipe.parallel.backend;
    const int gpus = backend == Backend::gloo ? 0 : num_gpus();
    const bool on_cpu = backend == Backend::gloo || (backend == Backend::automatic && gpus == 0);
    if (!on_cpu && one.ranks > gpus) {
      cell.refusal = fmt::format("needs {} GPU{}, this machine has {}", one.ranks,
                                 one.ranks == 1 ? "" : "s", gpus);
    }
    const Machine machine = plan_machine({}, on_cpu, one.ranks);
    const RecipePlan made = plan_recipe(loaded, one.ranks, machine);
    cell.plan = json_or_null(plan_json(made.report, made.strategy, made.cost));
    if (cell.refusal.empty() && !made.report.fits() &&
        (!machine.shares_memory || loaded.recipe.memory.limit > 0)) {
      cell.refusal = fmt::format(
          "plan: {}, does not fit the {} of {}", gigabytes(made.report.step.ledger.total()),
          gigabytes(made.report.machine.device_memory), made.report.machine.name);
    }
  } catch (const RecipeError& error) {
    const Diagnostic& first = error.diagnostics().front();
    cell.refusal = fmt::format("{}: {}", first.path, first.message);
  } catch (const Error& error) {
    cell.refusal = error.what();
  }
  return cell;
}

}  // namespace

const bench::CellPlan& BenchRunner::planned(std::size_t index) {
  const auto [found, added] = planned_.try_emplace(index);
  if (added) found->second = plan_cell(plan_, index);
  return found->second;
}

bool BenchRunner::is_done(const bench::Turn& turn) const {
  const auto record = log_.find(bench::run_name(plan_, turn));
  if (!record || (retry_ && record->exit_code != 0)) return false;
  if (record->fingerprint.empty()) return true;
  try {
    return record->fingerprint == bench::turn_fingerprint(plan_, turn);
  } catch (const Error&) {
    return false;  // run() says why
  }
}

bool BenchRunner::run_all(BenchInterrupts& interrupts) {
  const std::vector<bench::Turn> turns = bench::turns(plan_);
  std::size_t number = 0;
  for (const bench::Turn& turn : turns) {
    ++number;
    if (is_done(turn)) continue;
    const std::string place = fmt::format("{} of {}", number, turns.size());
    if (const std::string& why = planned(turn.index).refusal; !why.empty()) {
      print_error("{}: {}: left out: {}\n", place, bench::run_name(plan_, turn), why);
      continue;
    }
    if (!run(turn, place, interrupts)) return false;
  }
  return true;
}

bool BenchRunner::run(const bench::Turn& turn, const std::string& place,
                      BenchInterrupts& interrupts) {
  bench::Record record{.run = bench::run_name(plan_, turn)};
  const fs::path folder = log_.runs() / record.run;
  const fs::path output = log_.runs() / (record.run + ".log");
  std::error_code ignored;
  fs::remove_all(folder, ignored);  // of a bench that ended in the middle of it
  print_error("{}: {} ...\n", place, record.run);
  record.gpus_before_mib = used_memory(nvml_);
  const auto start = std::chrono::steady_clock::now();
  try {
    record.fingerprint = bench::turn_fingerprint(plan_, turn);
    std::vector<std::string> command = bench::launch_arguments(plan_, turn, log_.runs());
    command.insert(command.begin(), fs::read_symlink("/proc/self/exe").string());
    if (!wait_for(command, output, record, interrupts)) return false;
  } catch (const Error& error) {
    record.exit_code = exit_code(error.kind());
    record.reason = error.what();
  }
  record.seconds = seconds_since(start);
  log_.add(record);
  print_error("{}: {}\n", place, summary(record));
  return true;
}

bool BenchRunner::wait_for(const std::vector<std::string>& command, const fs::path& output,
                           bench::Record& record, BenchInterrupts& interrupts) {
  const UniqueFd in(above_two(::open("/dev/null", O_RDONLY | O_CLOEXEC)));
  const UniqueFd out(above_two(open_output_file(output, {.old = OldContent::cut}).release()));
  if (!in) throw Error(ErrorKind::internal, "cannot open /dev/null");
  launcher::ChildProcess child(command, {.in = in.get(), .out = out.get(), .error = out.get()});
  bool asked = false;
  while (!child.ended()) {
    pollfd entry{interrupts.fd(), POLLIN, 0};
    ::poll(&entry, 1, 20);
    while (const int number = interrupts.next()) {
      child.send(number);
      asked = true;
    }
  }
  if (asked) return false;
  record.exit_code = child.signal() != 0 ? 128 + child.signal() : child.exit_code();
  if (record.exit_code != 0) record.reason = reason_in(output, record.exit_code);
  return true;
}

std::string BenchRunner::summary(const bench::Record& record) const {
  if (!record.reason.empty()) return "failed: " + record.reason;
  try {
    report::RunData data = report::read_run(log_.runs() / record.run);
    if (plan_.steps > 0) data.warmup = plan_.warmup;
    const report::Figures figures = report::run_figures(std::move(data)).figures;
    return fmt::format("{} samples/s, {} a step, loss {}, {} in all",
                       report::rate_words(figures.value("samples_per_s")),
                       report::time_words(figures.value("step_s")),
                       report::number_words(figures.value("final_loss")),
                       report::time_words(record.seconds));
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace dstrain
