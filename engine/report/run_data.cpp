#include "engine/report/run_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

#include "engine/base/file.h"
#include "engine/base/input_file.h"
#include "engine/base/json.h"
#include "engine/base/run_layout.h"
#include "engine/recipe/load.h"
#include "engine/report/confusion.h"
#include "engine/report/run_files.h"
#include "engine/report/samples.h"
#include "engine/report/traced_steps.h"

namespace dstrain::report {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int kMaxRanks = 4096;

std::optional<std::int64_t> step_of(const json& line) {
  const auto found = line.find("step");
  if (found == line.end() || !found->is_number_integer()) return std::nullopt;
  const auto step = found->get<std::int64_t>();
  if (step < 0) return std::nullopt;
  return step;
}

/// Infinity for what no run can measure, since sums and squares of it would leave the range of
/// double.
double measurable(double value) {
  constexpr double kLargest = 1e100;
  return std::abs(value) > kLargest ? std::copysign(std::numeric_limits<double>::infinity(), value)
                                    : value;
}

/// The line of a step that was repeated after a resume holds.
template <class Row>
void keep_last_of_step(std::vector<Row>& rows) {
  std::stable_sort(rows.begin(), rows.end(),
                   [](const Row& a, const Row& b) { return a.step < b.step; });
  std::vector<Row> kept;
  for (Row& row : rows) {
    if (!kept.empty() && kept.back().step == row.step) kept.pop_back();
    kept.push_back(std::move(row));
  }
  rows = std::move(kept);
}

/// What an evaluation is beside the steps before it.
void add_to_evaluations(RunData& run) {
  auto step = run.steps.begin();
  for (EvaluationRow& row : run.evaluations) {
    double sum = 0, count = 0;
    for (; step != run.steps.end() && step->step <= row.step; ++step) {
      if (!std::isfinite(step->loss)) continue;
      sum += step->loss;
      ++count;
    }
    if (count > 0) row.training_loss = sum / count;
    const int models = std::isfinite(row.ema_loss) ? 2 : 1;
    if (row.seconds > 0) row.samples_per_s = models * row.samples / row.seconds;
  }
}

template <class Row, std::size_t Size>
Row row_of(std::int64_t step, const json& line, const LineNumber<Row> (&numbers)[Size]) {
  Row row{.step = step};
  for (const LineNumber<Row>& one : numbers) row.*one.field = number(line, one.key);
  return row;
}

void read_metrics(RunData& run, const fs::path& path) {
  each_line(run, path, [&](const json& line) {
    const auto step = step_of(line);
    const std::string kind = text(line, "kind");
    if (!step) return false;
    if (kind == "step") {
      run.steps.push_back(row_of(*step, line, kStepNumbers));
    } else if (kind == "evaluation") {
      run.evaluations.push_back(row_of(*step, line, kEvaluationNumbers));
    }
    return kind == "step" || kind == "evaluation";
  });
  keep_last_of_step(run.steps);
  keep_last_of_step(run.evaluations);
  add_to_evaluations(run);
}

/// 0 where it is missing or no number that a time or a size may be; sums of these stay finite.
double amount(const json& object, const char* key) {
  constexpr double kMax = 1e18;
  const double value = number(object, key);
  return value > 0 && value <= kMax ? value : 0;
}

bool read_timing(const json& line, RankTimings& rank) {
  const auto step = step_of(line);
  if (!step || amount(line, "step_s") == 0) return false;
  const json wait = line.value("wait_s", json::object());
  const json waits_in = line.value("waits_in_s", json::object());
  TimingRow row = {.step = *step,
                   .step_s = amount(line, "step_s"),
                   .forward_s = amount(line, "forward_s"),
                   .backward_s = amount(line, "backward_s"),
                   .norm_s = amount(line, "norm_s"),
                   .update_s = amount(line, "update_s"),
                   .data_wait_s = amount(line, "data_wait_s"),
                   .host_s = amount(line, "host_s"),
                   .wait_gather_s = amount(wait, "gather"),
                   .wait_reduce_s = amount(wait, "reduce"),
                   .wait_receive_s = amount(wait, "receive"),
                   .wait_send_s = amount(wait, "send"),
                   .waits_in_norm_s = amount(waits_in, "norm"),
                   .waits_in_update_s = amount(waits_in, "update"),
                   .wait_copy_in_s = amount(wait, "copy_in"),
                   .exposed_comm_s = amount(line, "exposed_comm_s"),
                   .reserved = amount(line, "reserved"),
                   .peak = amount(line, "peak"),
                   .host_rss = amount(line, "host_rss"),
                   .traced = line.contains("traced") && line["traced"] == true};
  const auto calls = line.find("calls");
  if (calls != line.end() && calls->is_object()) {
    for (const auto& [name, value] : calls->items()) {
      if (!value.is_array() || value.size() != 2 || !value[0].is_number() || !value[1].is_number())
        return false;
      row.calls[name] = {measurable(value[0].get<double>()), measurable(value[1].get<double>())};
    }
  }
  rank.rows.push_back(std::move(row));
  return true;
}

int world_size(const RunData& run) {
  const double world = number(run.environment, "world_size");
  return world >= 1 && world <= kMaxRanks ? static_cast<int>(world) : 0;
}

void read_ranks(RunData& run, const RunLayout& layout) {
  std::set<int> present;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(layout.ranks(), ignored)) {
    const std::string name = entry.path().filename().string();
    int rank = -1;
    if (!name.starts_with("rank") || !name.ends_with(".jsonl")) continue;
    const char* end = name.data() + name.size() - 6;
    const auto parsed = std::from_chars(name.data() + 4, end, rank);
    if (parsed.ec == std::errc() && parsed.ptr == end && rank >= 0) present.insert(rank);
  }
  const int world = world_size(run);
  std::string absent;
  for (int rank = 0; rank < world && !present.empty(); ++rank) {
    if (!present.contains(rank)) absent += fmt::format("{}{}", absent.empty() ? "" : ", ", rank);
  }
  if (!absent.empty()) run.problems.push_back({"ranks", "no timings of rank " + absent});
  if (present.empty()) run.missing.push_back("ranks/rank0000.jsonl");
  for (const int rank : present) {
    const std::string name = fmt::format("rank{:04}.jsonl", rank);
    if (world > 0 && rank >= world) {
      run.problems.push_back(
          {"ranks/" + name,
           fmt::format("left out: the run has {} ranks, so none is {}", world, rank)});
      continue;
    }
    RankTimings timings = {.rank = rank, .rows = {}};
    each_line(run, layout.ranks() / name,
              [&](const json& line) { return read_timing(line, timings); });
    keep_last_of_step(timings.rows);
    if (!timings.rows.empty()) run.ranks.push_back(std::move(timings));
  }
}

void read_object(RunData& run, const fs::path& path, json& value) {
  with_file(run, path, [&](const std::string&) { value = read_json_object(path); });
}

}  // namespace

double number(const json& object, const char* key) {
  if (!object.is_object()) return kUnknown;
  const auto found = object.find(key);
  if (found == object.end()) return kUnknown;
  if (found->is_number()) return measurable(found->get<double>());
  if (*found == "inf") return std::numeric_limits<double>::infinity();
  if (*found == "-inf") return -std::numeric_limits<double>::infinity();
  return kUnknown;
}

std::string text(const json& object, const char* key) {
  if (!object.is_object()) return {};
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

std::string setting(const RunData& run, std::string_view path) {
  for (const auto& [key, value] : run.settings) {
    if (key == path) return value;
  }
  return {};
}

RunData read_run(const fs::path& path) {
  const RunLayout layout(fs::absolute(path).lexically_normal());
  if (!path_exists(layout.metrics()) && !path_exists(layout.recipe())) {
    throw Error(
        ErrorKind::data,
        fmt::format("{}: no run: it has neither metrics.jsonl nor recipe.yaml", shown_path(path)),
        "name the folder that a launch printed, such as runs/quickstart-20261123T024220Z-5b2cc1");
  }
  RunData run;
  run.path = layout.root();
  run.name = (layout.root().has_filename() ? layout.root() : layout.root().parent_path())
                 .filename()
                 .string();
  read_object(run, layout.root() / run_file::kEnvironment, run.environment);
  read_object(run, layout.plan(), run.plan);
  if (path_exists(layout.failure())) read_object(run, layout.failure(), run.failure);
  with_file(run, layout.recipe(), [&](const std::string&) {
    const LoadedRecipe loaded = load_recipe(layout.recipe());
    for (const Origin& origin : loaded.origins)
      run.settings.emplace_back(origin.path, origin.value);
    run.trace_steps = loaded.recipe.trace.steps;
    run.trace_output = loaded.recipe.trace.output;
  });
  read_metrics(run, layout.metrics());
  if (path_exists(layout.confusion())) {
    with_file(run, layout.confusion(), [&](const std::string& content) {
      run.confusion = parse_confusion(content, layout.confusion().filename().string());
    });
  }
  each_line(run, layout.events(), [&](const json& line) {
    const auto step = step_of(line);
    if (!step) return false;
    Event event = {.kind = text(line, "kind"), .step = *step, .time = text(line, "time")};
    if (event.kind == "failed" || event.kind == "first_step" ||
        event.kind.starts_with("checkpoint"))
      event.fields = line;
    run.events.push_back(std::move(event));
    return true;
  });
  read_ranks(run, layout);
  read_samples(run);
  read_clocks(run, layout.clocks());
  read_traces(run);
  return run;
}

}  // namespace dstrain::report
