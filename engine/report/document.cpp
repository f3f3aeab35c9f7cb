#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>

#include "engine/base/median.h"
#include "engine/base/printable.h"
#include "engine/report/document_writer.h"
#include "engine/report/svg.h"
#include "engine/report/words.h"

namespace dstrain::report {
namespace {

void write_lead(Writer& w) {
  const RunFigures& first = w.report.runs.front();
  w.document.title = w.report.runs.size() == 1 ? fmt::format("Report of {}", first.label)
                                               : fmt::format("Report of {} and {} more",
                                                             first.label, w.report.runs.size() - 1);
  w.document.lead = first.sentence;
  if (w.report.variants.size() > 1) {
    const Variant& variant = w.report.variants[1];
    w.document.lead = std::isfinite(variant.speed.value)
                          ? fmt::format("{}: {} beside the baseline, {}.", variant.name,
                                        ratio_words(variant.speed), variant.verdict)
                          : fmt::format("{}: {}.", variant.name, variant.verdict);
    if (w.report.variants.size() > 2)
      w.document.lead += fmt::format(" {} variants in all.", w.report.variants.size());
  }
}

void write_comparison(Writer& w) {
  if (w.report.variants.empty()) return;
  Section& section = w.section("Comparison");
  if (!w.report.warnings.empty()) section.blocks.push_back(List{w.report.warnings});
  Table table = {.header = {"variant", "runs", "samples/s", "beside baseline",
                            "loss at equal samples", "verdict"},
                 .rows = {}};
  for (std::size_t v = 0; v < w.report.variants.size(); ++v) {
    const Variant& variant = w.report.variants[v];
    const std::string loss = variant.parity.known
                                 ? fmt::format("{} / {}", number_words(variant.parity.variant),
                                               number_words(variant.parity.base))
                                 : "-";
    table.rows.push_back({{variant.name},
                          {fmt::to_string(variant.runs.size())},
                          {rate_words(variant.samples_per_s),
                           fmt::format("variants.{}.samples_per_s", v), variant.samples_per_s},
                          {v == 0 ? "1" : ratio_words(variant.speed),
                           fmt::format("variants.{}.speed", v), variant.speed.value},
                          {loss},
                          {variant.verdict}});
  }
  section.blocks.push_back(std::move(table));
  section.blocks.push_back(
      Paragraph{"Intervals of 95 %: Student's t on the logs of paired ratios. Faster: the interval "
                "excludes 1, "
                "the gain exceeds 1 % and the loss is that of the baseline. Runs of another model, "
                "or of other samples, are not compared."});
}

void write_runs(Writer& w) {
  Section& section = w.section(w.report.runs.size() == 1 ? "The run" : "The runs");
  Table table = {.header = {""}, .rows = {}};
  for (const RunFigures& run : w.report.runs) table.header.push_back(run.label);
  const auto row = [&](std::string_view name, const auto& cell) {
    std::vector<Cell> cells = {{std::string(name)}};
    bool known = false;
    for (std::size_t i = 0; i < w.report.runs.size(); ++i) {
      cells.push_back(cell(i, w.report.runs[i]));
      known = known || (cells.back().text != "-" && !cells.back().text.empty());
    }
    if (known) table.rows.push_back(std::move(cells));
  };
  using Run = const RunFigures&;
  row("model", [](std::size_t, Run r) { return Cell{text(r.data.plan, "model")}; });
  row("ranks", [](std::size_t i, Run r) {
    return number_cell(i, "ranks", r.ranks, r.ranks == 0 ? "-" : fmt::to_string(r.ranks));
  });
  row("device", [](std::size_t, Run r) { return Cell{r.device}; });
  row("steps (steady)", [](std::size_t i, Run r) {
    return number_cell(i, "last_step", static_cast<double>(r.last_step),
                       fmt::format("{} ({})", r.last_step, r.num_steady));
  });
  for (std::size_t i = 0; i < kFigureCount; ++i) {
    const Figure& figure = kFigures[i];
    if (figure.title.empty()) continue;
    row(figure.title, [&](std::size_t run, Run r) {
      const Estimate& value = r.figures.at(i);
      return number_cell(run, fmt::format("{}{}", figure.key, figure.interval ? ".value" : ""),
                         value.value, figure_words(figure, value));
    });
  }
  section.blocks.push_back(std::move(table));
  section.blocks.push_back(
      Paragraph{"Medians of steady steps: without warm-up, traced, evaluation and checkpoint steps "
                "and the step after each; in brackets 95 % by moving-block bootstrap."});
}

/// A limit of all runs together, so that a page of many stays small.
constexpr std::size_t kTimelineActions = 4000;

/// At most `count` actions, the longest, in their order.
Timeline longest_actions(const Timeline& timeline, std::size_t count) {
  if (timeline.events.size() <= count) return timeline;
  std::vector<std::int64_t> lengths;
  for (const LaneEvent& event : timeline.events) lengths.push_back(event.duration_ns);
  std::ranges::sort(lengths, std::greater());
  Timeline kept = {.step = timeline.step, .events = {}};
  for (const LaneEvent& event : timeline.events) {
    if (event.duration_ns >= lengths[count] && kept.events.size() < count)
      kept.events.push_back(event);
  }
  return kept;
}

void write_losses(Writer& w) {
  for (std::size_t i = 0; i < w.report.runs.size(); ++i) {
    const RunFigures& run = w.report.runs[i];
    if (run.mean_split.step_s <= 0 && run.advice.empty()) continue;
    Section& section = w.section(
        w.report.runs.size() == 1 ? "Where the time goes" : "Where the time goes: " + run.label,
        i > 0);
    if (!run.lost.empty()) {
      Table table = {.header = {"largest losses", "a step, mean", "share"}, .rows = {}};
      for (std::size_t k = 0; k < run.lost.size(); ++k) {
        const LostTime& lost = run.lost[k];
        table.rows.push_back(
            {{lost.what},
             number_cell(i, fmt::format("lost.{}.seconds", k), lost.seconds,
                         time_words(lost.seconds)),
             number_cell(i, fmt::format("lost.{}.share", k), lost.share, share_words(lost.share))});
      }
      section.blocks.push_back(std::move(table));
    }
    if (!run.advice.empty()) {
      List list;
      for (const Advice& advice : run.advice) {
        std::string item =
            fmt::format("{}: {}. Change: {}", advice.id, advice.finding, advice.change);
        for (const std::string& change : advice.overrides)
          item += fmt::format(" (--set {})", change);
        if (!advice.overrides.empty())
          item += !std::isfinite(advice.predicted_change) ? "; not predicted"
                  : advice.predicted_change > -0.005
                      ? "; the plan predicts no gain of it"
                      : fmt::format("; predicted: a step {} shorter",
                                    share_words(-advice.predicted_change));
        list.items.push_back(item + ".");
      }
      section.blocks.push_back(std::move(list));
    } else {
      section.blocks.push_back(Paragraph{"No advice: no rule fired."});
    }
    if (run.mean_split.step_s > 0) {
      Bars bars = {.unit = "of a step, mean", .rows = {}};
      StackedBars chart = {.title = "Split of a step",
                           .description = "Mean of the steady steps of each rank, in milliseconds",
                           .unit = "ms",
                           .parts = {},
                           .rows = {}};
      Table table = {.header = {"rank", "step, mean"}, .rows = {}};
      for (std::size_t part = 0; part < kParts; ++part) {
        bars.rows.emplace_back(part_name(part), run.mean_split.parts[part] / run.mean_split.step_s);
        chart.parts.emplace_back(part_name(part));
        table.header.emplace_back(part_name(part));
      }
      for (std::size_t k = 0; k < run.split.size(); ++k) {
        const RankSplit& rank = run.split[k];
        std::vector<Cell> cells = {{fmt::to_string(rank.rank)},
                                   number_cell(i, fmt::format("split.{}.step_s", k), rank.step_s,
                                               time_words(rank.step_s))};
        std::vector<double> values;
        for (std::size_t part = 0; part < kParts; ++part) {
          cells.push_back(number_cell(i, fmt::format("split.{}.parts.{}", k, part),
                                      rank.parts[part], time_words(rank.parts[part])));
          values.push_back(rank.parts[part] * 1e3);
        }
        table.rows.push_back(std::move(cells));
        chart.rows.emplace_back(fmt::format("rank {}", rank.rank), std::move(values));
      }
      if (w.pictures)
        w.picture(section, draw_bars(chart));
      else
        section.blocks.push_back(std::move(bars));
      if (w.pictures) section.blocks.push_back(std::move(table));
      section.blocks.push_back(
          Paragraph{"Means of the steady steps that were timed, of each rank; a mean is above the "
                    "median where few steps take long."});
    }
    if (!run.data.timeline.events.empty() && w.pictures) {
      section.blocks.push_back(Paragraph{
          fmt::format("Step {} by rank and lane, of the trace.", run.data.timeline.step)});
      w.picture(section, draw_timeline(longest_actions(run.data.timeline,
                                                       kTimelineActions / w.report.runs.size())));
    }
  }
}

std::vector<Line> lines_of(const Report& report, double StepRow::*field) {
  std::vector<Line> lines;
  for (const RunFigures& run : report.runs) {
    Line line = {.name = report.runs.size() == 1 ? "training" : run.label, .points = {}};
    for (const StepRow& row : run.data.steps)
      line.points.push_back({static_cast<double>(row.step), row.*field});
    lines.push_back(std::move(line));
  }
  return lines;
}

void write_curves(Writer& w) {
  if (!w.pictures) return;
  Section& section = w.section("Curves");
  LineChart loss = {.title = "Loss",
                    .description = "Training loss by step; dots: evaluations",
                    .x_label = "step",
                    .y_label = "loss",
                    .lines = lines_of(w.report, &StepRow::loss)};
  for (const RunFigures& run : w.report.runs) {
    Line line = {.name = w.report.runs.size() == 1 ? "evaluation" : run.label + ", evaluation",
                 .points = {},
                 .dots = true};
    for (const EvaluationRow& row : run.data.evaluations)
      line.points.push_back({static_cast<double>(row.step), row.loss});
    if (!line.points.empty()) loss.lines.push_back(std::move(line));
  }
  w.line_chart(section, std::move(loss), 1);
  w.line_chart(section,
               {.title = "Rate",
                .description = "Samples per second by step",
                .x_label = "step",
                .y_label = "samples/s",
                .from_zero = true,
                .lines = lines_of(w.report, &StepRow::samples_per_s)},
               1);
  LineChart memory = {.title = "Memory",
                      .description =
                          "Peak of the allocated device memory by step, what the "
                          "allocator held, and the plan",
                      .x_label = "step",
                      .y_label = "GiB",
                      .from_zero = true,
                      .lines = {}};
  for (const RunFigures& run : w.report.runs) {
    if (!std::isfinite(run.figures.value("memory_peak"))) continue;
    Line line = {.name = run.label, .points = {}};
    for (const StepRow& row : run.data.steps) {
      if (row.memory_bytes > 0)
        line.points.push_back({static_cast<double>(row.step), row.memory_bytes / (1 << 30)});
    }
    Line reserved = {.name = run.label + ", reserved", .points = {}};
    for (const StepRow& row : run.data.steps) {
      if (row.reserved_bytes > 0)
        reserved.points.push_back({static_cast<double>(row.step), row.reserved_bytes / (1 << 30)});
    }
    memory.lines.push_back(std::move(line));
    if (!reserved.points.empty()) memory.lines.push_back(std::move(reserved));
    const double planned = run.figures.value("memory_planned") / (1 << 30);
    if (std::isfinite(planned) && !run.data.steps.empty())
      memory.lines.push_back(
          {.name = run.label + ", planned",
           .points = {{static_cast<double>(run.data.steps.front().step), planned},
                      {static_cast<double>(run.last_step), planned}}});
  }
  w.line_chart(section, std::move(memory), 1);
}

/// Time of steps by rank; neighbouring steps share a column where there are many.
HeatMap step_times(const RunFigures& run) {
  constexpr std::size_t kColumns = 60;
  HeatMap map = {
      .title = "Steps by rank",
      .description =
          "Time that ranks computed, without waits for others: a dark row is a slow rank",
      .unit = "ms",
      .rows = {},
      .columns = {},
      .values = {}};
  std::set<std::int64_t> steps;
  for (const RankTimings& rank : run.data.ranks) {
    for (const TimingRow& row : rank.rows) steps.insert(row.step);
  }
  const std::vector<std::int64_t> all(steps.begin(), steps.end());
  const std::size_t columns = std::min(kColumns, all.size());
  for (std::size_t c = 0; c < columns; ++c)
    map.columns.push_back(fmt::format("step {}", all[c * all.size() / columns]));
  for (const RankTimings& rank : run.data.ranks) {
    std::vector<std::vector<double>> values(columns);
    for (const TimingRow& row : rank.rows) {
      const auto index = static_cast<std::size_t>(
          std::lower_bound(all.begin(), all.end(), row.step) - all.begin());
      if (!row.traced)
        values[std::min(columns - 1, (index * columns) / all.size())].push_back(
            std::max(0.0, row.step_s - row.exposed_comm_s) * 1e3);
    }
    map.rows.push_back(fmt::format("rank {}", rank.rank));
    map.values.emplace_back();
    for (const auto& bucket : values)
      map.values.back().push_back(bucket.empty() ? kUnknown : median(bucket));
  }
  return map;
}

void write_devices(Writer& w) {
  for (std::size_t i = 0; i < w.report.runs.size(); ++i) {
    const RunFigures& run = w.report.runs[i];
    const std::string of = w.report.runs.size() == 1 ? "" : ": " + run.label;
    if (run.data.ranks.size() > 1 && run.data.ranks.size() <= 64 && w.pictures)
      w.picture(w.section("Ranks" + of, i > 0), draw_heat_map(step_times(run)));
    if (!run.collectives.empty()) {
      Table table = {.header = {"collective", "calls a step", "bytes a step"}, .rows = {}};
      for (std::size_t k = 0; k < run.collectives.size(); ++k) {
        const CollectiveRow& row = run.collectives[k];
        table.rows.push_back({{row.name},
                              number_cell(i, fmt::format("collectives.{}.calls", k), row.calls,
                                          fmt::format("{:.1f}", row.calls)),
                              number_cell(i, fmt::format("collectives.{}.bytes", k), row.bytes,
                                          bytes_words(row.bytes))});
      }
      w.section("Collectives" + of, i > 0).blocks.push_back(std::move(table));
    }
    if (run.gpus.empty()) continue;
    Section& section = w.section("Devices" + of, i > 0);
    Table table = {
        .header = {"GPU", "name", "memory peak", "utilisation", "hottest", "power", "throttled"},
        .rows = {}};
    for (std::size_t k = 0; k < run.gpus.size(); ++k) {
      const GpuSummary& gpu = run.gpus[k];
      const auto cell = [&](const char* name, double value, std::string words) {
        return number_cell(i, fmt::format("gpus.{}.{}", k, name), value,
                           std::isfinite(value) ? std::move(words) : "-");
      };
      table.rows.push_back(
          {{fmt::to_string(gpu.index)},
           {gpu.name},
           cell("peak_mib", gpu.peak_mib, fmt::format("{:.0f} MiB", gpu.peak_mib)),
           cell("mean_utilization", gpu.mean_utilization,
                fmt::format("{:.0f} %", gpu.mean_utilization)),
           cell("max_temperature", gpu.max_temperature,
                fmt::format("{:.0f} C", gpu.max_temperature)),
           cell("mean_power_w", gpu.mean_power_w, fmt::format("{:.0f} W", gpu.mean_power_w)),
           cell("throttled", gpu.throttled, share_words(gpu.throttled))});
    }
    section.blocks.push_back(std::move(table));
    LineChart use = {.title = "Utilisation",
                     .description = "Share of time in which some kernel ran, by sample",
                     .x_label = "sample",
                     .y_label = "%",
                     .from_zero = true,
                     .lines = {}};
    LineChart heat = {.title = "Temperature",
                      .description = "Temperature of the GPUs by sample",
                      .x_label = "sample",
                      .y_label = "C",
                      .lines = {}};
    for (const GpuSummary& gpu : run.gpus) {
      Line used = {.name = fmt::format("GPU {}", gpu.index), .points = {}};
      Line hot = used;
      for (const GpuSample& sample : run.data.gpus) {
        if (sample.index != gpu.index) continue;
        const auto x = static_cast<double>(used.points.size());
        used.points.push_back({x, sample.utilization});
        hot.points.push_back({x, sample.temperature});
      }
      use.lines.push_back(std::move(used));
      heat.lines.push_back(std::move(hot));
    }
    w.line_chart(section, std::move(use), w.report.runs.size());
    w.line_chart(section, std::move(heat), w.report.runs.size());
  }
}

void write_settings(Writer& w) {
  if (w.report.runs.size() > 1) {
    Section& section = w.section("Differing settings");
    if (w.report.differences.empty()) section.blocks.push_back(Paragraph{"None but run.output."});
    Table table = {.header = {"setting"}, .rows = {}};
    for (const RunFigures& run : w.report.runs) table.header.push_back(run.label);
    for (const SettingDifference& difference : w.report.differences) {
      std::vector<Cell> cells = {{difference.key}};
      for (const std::string& value : difference.values) cells.push_back({value});
      table.rows.push_back(std::move(cells));
    }
    if (!table.rows.empty()) section.blocks.push_back(std::move(table));
  }
  Section& section = w.section("Environment", true);
  Table table = {.header = {"run", "started", "system", "driver", "build"}, .rows = {}};
  for (const RunFigures& run : w.report.runs) {
    std::string build = text(run.data.environment, "build");
    build = build.substr(0, build.find('\n'));
    table.rows.push_back({{run.data.path.string()},
                          {run.data.events.empty() ? "-" : run.data.events.front().time},
                          {text(run.data.environment, "system")},
                          {text(run.data.environment, "gpu_driver")},
                          {build}});
  }
  section.blocks.push_back(std::move(table));
  Table clocks = {.header = {"clock of", "minus the controller's", "known to within"}, .rows = {}};
  for (std::size_t i = 0; i < w.report.runs.size(); ++i) {
    const RunFigures& run = w.report.runs[i];
    for (std::size_t k = 0; k < run.data.clocks.size(); ++k) {
      const ClockOffset& clock = run.data.clocks[k];
      clocks.rows.push_back(
          {{w.report.runs.size() == 1 ? clock.host : fmt::format("{}: {}", run.label, clock.host)},
           number_cell(i, fmt::format("clocks.{}.offset_ns", k), clock.offset_ns,
                       time_words(clock.offset_ns * 1e-9)),
           number_cell(i, fmt::format("clocks.{}.bound_ns", k), clock.bound_ns,
                       time_words(clock.bound_ns * 1e-9))});
    }
  }
  if (!clocks.rows.empty()) section.blocks.push_back(std::move(clocks));
}

void write_problems(Writer& w) {
  List list;
  for (const RunFigures& run : w.report.runs) {
    const std::string of = w.report.runs.size() == 1 ? "" : run.label + ": ";
    if (!run.data.failure.is_null())
      list.items.push_back(fmt::format(
          "{}the run failed: {}", of,
          shown(text(run.data.failure, "message").empty() ? run.data.failure.dump()
                                                          : text(run.data.failure, "message"),
                300)));
    for (const Problem& problem : run.data.problems)
      list.items.push_back(fmt::format("{}{}: {}", of, problem.file, problem.what));
    for (const std::string& file : run.data.missing)
      list.items.push_back(
          fmt::format("{}{}: not there; what it would tell is left out", of, file));
  }
  if (!list.items.empty())
    w.section("Files that are missing or broken").blocks.push_back(std::move(list));
}

}  // namespace

void Writer::line_chart(Section& section, LineChart chart, std::size_t charts) const {
  constexpr std::size_t kPoints = 4000;  // of all these charts, so that the page stays small
  if (!pictures) return;
  const auto points = [&] {
    std::size_t sum = 0;
    for (const Line& line : chart.lines) sum += std::min(line.points.size(), chart.max_points);
    return sum * charts;
  };
  while (points() > kPoints && chart.max_points > 20) chart.max_points = chart.max_points * 4 / 5;
  picture(section, draw_lines(chart));
}

Cell number_cell(std::size_t run, std::string_view figure, double value, std::string words) {
  return {
      .text = std::move(words), .figure = fmt::format("runs.{}.{}", run, figure), .value = value};
}

Document make_document(const Report& report, bool pictures) {
  Writer w = {.report = report, .pictures = pictures};
  write_lead(w);
  write_comparison(w);
  write_runs(w);
  write_goodput(w);
  write_losses(w);
  write_evaluations(w);
  write_traced_steps(w);
  write_curves(w);
  write_devices(w);
  write_hosts(w);
  write_settings(w);
  write_problems(w);
  return std::move(w.document);
}

}  // namespace dstrain::report
