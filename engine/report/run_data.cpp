#include "engine/report/run_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <set>

#include "engine/base/file.h"
#include "engine/base/input_file.h"
#include "engine/base/json.h"
#include "engine/base/run_layout.h"
#include "engine/report/lane_events.h"
#include "recipes/schema/load.h"

namespace dstrain::report {
namespace {

/// Of the bits that nvidia-smi prints in hexadecimal: hardware slowdown, heat, power brake. The
/// others say that a GPU is idle, runs at clocks that were asked for, or is as busy as its power
/// limit allows.
bool is_throttled(const std::string& reasons) {
  constexpr unsigned long long kSlow = 0x08 | 0x20 | 0x40 | 0x80;
  return (std::strtoull(reasons.c_str(), nullptr, 16) & kSlow) != 0;
}

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::uint64_t kMaxFile = std::uint64_t{1} << 30;
constexpr int kMaxRanks = 4096;

/// Calls `read` with the text of a file; false when there is none. What goes wrong is a problem of
/// the run.
bool with_file(RunData& run, const fs::path& path,
               const std::function<void(const std::string&)>& read) {
  const std::string name = path.lexically_relative(run.path).string();
  try {
    if (!path_exists(path)) {
      run.missing.push_back(name);
      return false;
    }
    read(read_file(path, kMaxFile));
    return true;
  } catch (const Error& error) {
    run.problems.push_back({name, error.what()});
    return true;
  }
}

/// Calls `line` for each object; others are counted and told with the number of the first.
void each_line(RunData& run, const fs::path& path, const std::function<bool(const json&)>& line) {
  with_file(run, path, [&](const std::string& content) {
    int count = 0;
    int broken = 0;
    int first = 0;
    for (std::size_t begin = 0; begin < content.size();) {
      const std::size_t end = std::min(content.find('\n', begin), content.size());
      const std::string_view text = std::string_view(content).substr(begin, end - begin);
      begin = end + 1;
      ++count;
      const json value = json_or_null(text, {.bytes = 1 << 20, .values = 20'000});
      if (value.is_object() && line(value)) continue;
      if (broken++ == 0) first = count;
    }
    if (broken > 0) {
      run.problems.push_back(
          {path.lexically_relative(run.path).string(),
           fmt::format(
               "{} of {} lines left out: not what a run writes, or cut; the first is line {}",
               broken, count, first)});
    }
  });
}

std::optional<std::int64_t> step_of(const json& line) {
  const auto found = line.find("step");
  if (found == line.end() || !found->is_number_integer()) return std::nullopt;
  const auto step = found->get<std::int64_t>();
  if (step < 0) return std::nullopt;
  return step;
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

void read_metrics(RunData& run, const fs::path& path) {
  each_line(run, path, [&](const json& line) {
    const auto step = step_of(line);
    const std::string kind = text(line, "kind");
    if (!step) return false;
    if (kind == "step") {
      run.steps.push_back({.step = *step,
                           .epoch = number(line, "epoch"),
                           .loss = number(line, "loss"),
                           .lr = number(line, "lr"),
                           .grad_norm = number(line, "grad_norm"),
                           .samples_per_s = number(line, "samples_per_s"),
                           .tokens_per_s = number(line, "tokens_per_s"),
                           .mfu = number(line, "mfu"),
                           .step_s = number(line, "step_s"),
                           .memory_bytes = number(line, "memory_bytes"),
                           .skipped_steps = number(line, "skipped_steps")});
    } else if (kind == "evaluation") {
      run.evaluations.push_back({.step = *step,
                                 .loss = number(line, "loss"),
                                 .accuracy = number(line, "accuracy"),
                                 .samples = number(line, "samples"),
                                 .seconds = number(line, "seconds")});
    }
    return kind == "step" || kind == "evaluation";
  });
  keep_last_of_step(run.steps);
  keep_last_of_step(run.evaluations);
}

/// 0 where it is missing or not a finite number that a time or a size may be.
double amount(const json& object, const char* key) {
  const double value = number(object, key);
  return std::isfinite(value) && value > 0 ? value : 0;
}

bool read_timing(const json& line, RankTimings& rank) {
  const auto step = step_of(line);
  if (!step || amount(line, "step_s") == 0) return false;
  const json wait = line.value("wait_s", json::object());
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
                   .wait_copy_in_s = amount(wait, "copy_in"),
                   .exposed_comm_s = amount(line, "exposed_comm_s"),
                   .peak = amount(line, "peak"),
                   .host_rss = amount(line, "host_rss"),
                   .traced = line.contains("traced") && line["traced"] == true};
  const auto calls = line.find("calls");
  if (calls != line.end() && calls->is_object()) {
    for (const auto& [name, value] : calls->items()) {
      if (!value.is_array() || value.size() != 2 || !value[0].is_number() || !value[1].is_number())
        return false;
      row.calls[name] = {value[0].get<double>(), value[1].get<double>()};
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

std::vector<std::string> csv_cells(std::string_view line) {
  std::vector<std::string> cells;
  while (true) {
    const std::size_t end = line.find(',');
    std::string_view cell = line.substr(0, end);
    while (!cell.empty() && (cell.front() == ' ' || cell.front() == '\r')) cell.remove_prefix(1);
    while (!cell.empty() && (cell.back() == ' ' || cell.back() == '\r')) cell.remove_suffix(1);
    cells.emplace_back(cell);
    if (end == std::string_view::npos) return cells;
    line.remove_prefix(end + 1);
  }
}

/// The number that a cell begins with, "41 %" included; kUnknown for others, as "[N/A]".
double cell_number(const std::string& cell) {
  double value = 0;
  const auto parsed = std::from_chars(cell.data(), cell.data() + cell.size(), value);
  return parsed.ec == std::errc() && std::isfinite(value) ? value : kUnknown;
}

/// Columns are found by their names in the first line.
void read_samples(RunData& run, const fs::path& path) {
  with_file(run, path, [&](const std::string& content) {
    std::map<std::string, std::size_t> columns;
    int broken = 0;
    for (std::size_t begin = 0; begin < content.size();) {
      const std::size_t end = std::min(content.find('\n', begin), content.size());
      const std::vector<std::string> cells =
          csv_cells(std::string_view(content).substr(begin, end - begin));
      begin = end + 1;
      if (columns.empty()) {
        for (std::size_t i = 0; i < cells.size(); ++i)
          columns[cells[i].substr(0, cells[i].find(" ["))] = i;
        continue;
      }
      const auto cell = [&](const char* name) {
        const auto found = columns.find(name);
        return found == columns.end() || found->second >= cells.size() ? std::string()
                                                                       : cells[found->second];
      };
      const double index = cell_number(cell("index"));
      if (!(index >= 0 && index < kMaxRanks) || cells.size() < columns.size()) {
        ++broken;
        continue;
      }
      std::string reasons;
      for (const auto& [name, column] : columns) {
        if (name.starts_with("clocks_event_reasons") || name.starts_with("clocks_throttle_reasons"))
          reasons = cells[column];
      }
      run.gpus.push_back({.time = cell("timestamp"),
                          .index = static_cast<int>(index),
                          .name = cell("name"),
                          .memory_mib = cell_number(cell("memory.used")),
                          .total_mib = cell_number(cell("memory.total")),
                          .utilization = cell_number(cell("utilization.gpu")),
                          .temperature = cell_number(cell("temperature.gpu")),
                          .power_w = cell_number(cell("power.draw")),
                          .throttled = is_throttled(reasons)});
    }
    if (broken > 0) {
      run.problems.push_back(
          {path.filename().string(),
           fmt::format("{} lines left out: cut, or no sample of a GPU", broken)});
    }
  });
}

/// psrecord's columns: elapsed seconds, CPU %, real and virtual memory in MiB.
void read_cpu(RunData& run, const fs::path& path) {
  with_file(run, path, [&](const std::string& content) {
    int broken = 0;
    for (std::size_t begin = 0; begin < content.size();) {
      const std::size_t end = std::min(content.find('\n', begin), content.size());
      std::string_view line = std::string_view(content).substr(begin, end - begin);
      begin = end + 1;
      if (line.starts_with('#')) continue;
      std::vector<double> numbers;
      while (!line.empty()) {
        line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
        if (line.empty()) break;
        const std::string_view word = line.substr(0, line.find(' '));
        numbers.push_back(cell_number(std::string(word)));
        line.remove_prefix(word.size());
      }
      if (numbers.size() == 4 && std::ranges::all_of(numbers, [](double n) { return n >= 0; })) {
        run.cpu.push_back(
            {.elapsed_s = numbers[0], .share = numbers[1], .resident_mib = numbers[2]});
      } else {
        ++broken;
      }
    }
    if (broken > 0) {
      run.problems.push_back(
          {path.filename().string(),
           fmt::format("{} lines left out: cut, or not four numbers", broken)});
    }
  });
}

}  // namespace

double number(const json& object, const char* key) {
  if (!object.is_object()) return kUnknown;
  const auto found = object.find(key);
  if (found == object.end()) return kUnknown;
  if (found->is_number()) return found->get<double>();
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
    for (const Origin& origin : load_recipe(layout.recipe()).origins)
      run.settings.emplace_back(origin.path, origin.value);
  });
  read_metrics(run, layout.metrics());
  each_line(run, layout.events(), [&](const json& line) {
    const auto step = step_of(line);
    if (step) run.events.push_back({text(line, "kind"), *step, text(line, "time")});
    return step.has_value();
  });
  read_ranks(run, layout);
  const fs::path gpu = layout.root() / "gpu.csv";
  read_samples(run, path_exists(gpu) ? gpu : layout.root() / "memory.csv");
  read_cpu(run, layout.root() / "cpu.txt");
  read_timeline(run);
  return run;
}

}  // namespace dstrain::report
