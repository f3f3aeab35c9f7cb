#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/base/printable.h"
#include "engine/report/document_writer.h"
#include "engine/report/kernel_name.h"
#include "engine/report/svg.h"
#include "engine/report/traced_steps.h"
#include "engine/report/words.h"

namespace dstrain::report {
namespace {

constexpr std::size_t kRanksShown = 16;
constexpr std::size_t kRowsShown = 10;
constexpr std::size_t kLanesShown = 8;  ///< ranks side by side
constexpr std::size_t kNotesShown = 5;
constexpr std::size_t kNameBytes = 100;
constexpr std::size_t kKernelCharacters = 90;
constexpr std::size_t kWholeNameBytes = 600;

double seconds(std::int64_t ns) { return static_cast<double>(ns) * 1e-9; }

double share_of(std::int64_t part, std::int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : kUnknown;
}

/// Cells of one run's traces.
struct TracedCells {
  std::size_t run;

  [[nodiscard]] Cell number(const std::string& figure, double value, std::string words) const {
    return number_cell(run, "traced." + figure, value, std::move(words));
  }
  [[nodiscard]] Cell time(const std::string& figure, std::int64_t ns) const {
    return number(figure, static_cast<double>(ns), time_words(seconds(ns)));
  }
  /// "12.3 ms (82 %)".
  [[nodiscard]] Cell part(const std::string& figure, std::int64_t ns, std::int64_t whole) const {
    return number(
        figure, static_cast<double>(ns),
        fmt::format("{} ({})", time_words(seconds(ns)), share_words(share_of(ns, whole))));
  }
  [[nodiscard]] Cell bytes(const std::string& figure, std::int64_t bytes) const {
    if (bytes < 0) return {"-"};
    const auto value = static_cast<double>(bytes);
    return number(figure, value, bytes_words(value));
  }
  [[nodiscard]] Cell count(const std::string& figure, std::int64_t count) const {
    const auto value = static_cast<double>(count);
    return number(figure, value, rate_words(value).substr(0, rate_words(value).find('.')));
  }
};

/// Rows by the largest `key` first, at most kRowsShown.
template <class Row, class Key>
std::vector<std::size_t> largest(const std::vector<Row>& rows, const Key& key) {
  std::vector<std::size_t> order(rows.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(
      order, [&](std::size_t a, std::size_t b) { return key(rows[a]) > key(rows[b]); });
  if (order.size() > kRowsShown) order.resize(kRowsShown);
  return order;
}

Table device_time(const TracedCells& cells, const trace::Analysis& analysis) {
  const bool launches = std::ranges::any_of(
      analysis.ranks, [](const trace::RankFigures& rank) { return rank.launches.has_value(); });
  Table table = {.header = {"rank", "window", "busy", "compute", "exposed comm.", "overlap"},
                 .rows = {}};
  if (launches) table.header.emplace_back("queue empty");
  for (std::size_t k = 0; k < std::min(kRanksShown, analysis.ranks.size()); ++k) {
    const trace::RankFigures& rank = analysis.ranks[k];
    const trace::Breakdown& b = rank.all;
    const std::string place = fmt::format("ranks.{}.breakdown.", k);
    const double busy = share_of(b.busy, b.window);
    const double overlap = share_of(b.overlap, b.communication);
    table.rows.push_back(
        {{fmt::to_string(rank.rank)},
         cells.time(place + "window_ns", b.window),
         busy >= 0 ? cells.number(place + "gpu_utilisation", busy, share_words(busy)) : Cell{"-"},
         cells.part(place + "compute_ns", b.compute, b.window),
         cells.part(place + "exposed_communication_ns", b.exposed_communication(), b.window),
         std::isfinite(overlap) ? cells.number(place + "overlap", overlap, share_words(overlap))
                                : Cell{"-"}});
    if (!launches) continue;
    table.rows.back().push_back(rank.launches
                                    ? cells.part(fmt::format("ranks.{}.launches.queue_empty_ns", k),
                                                 rank.launches->host_bound, b.window)
                                    : Cell{"-"});
  }
  return table;
}

std::string device_chart(const trace::Analysis& analysis) {
  StackedBars chart = {
      .title = "Time of the devices in traced steps",
      .description = "From the first start to the last end of each rank, in milliseconds",
      .unit = "ms",
      .parts = {"compute", "exposed communication", "copies alone", "idle"},
      .rows = {}};
  for (std::size_t k = 0; k < std::min(kRanksShown, analysis.ranks.size()); ++k) {
    const trace::Breakdown& b = analysis.ranks[k].all;
    const std::int64_t copies = b.busy - b.compute - b.exposed_communication();
    std::vector<double> values;
    for (const std::int64_t ns : {b.compute, b.exposed_communication(), copies, b.idle()})
      values.push_back(seconds(ns) * 1e3);
    chart.rows.emplace_back(fmt::format("rank {}", analysis.ranks[k].rank), std::move(values));
  }
  return draw_bars(chart);
}

/// On a CPU the events are actions.
bool shows_actions(const trace::Analysis& analysis) {
  return std::ranges::all_of(analysis.ranks,
                             [](const trace::RankFigures& rank) { return rank.cpu; });
}

std::string event_words(const std::string& name, bool action, std::size_t characters) {
  return without_middle(shown(action ? name : kernel_words(name), kWholeNameBytes), characters);
}

Table kernel_table(const TracedCells& cells, const trace::Analysis& analysis) {
  const bool actions = shows_actions(analysis);
  Table table = {.header = {actions ? "action" : "kernel", "type", "count", "time", "share",
                            "median", "5 %", "95 %"},
                 .rows = {},
                 .cut = 0};
  for (const std::size_t k : largest(analysis.kernels, [](const auto& row) { return row.sum; })) {
    const trace::KernelRow& row = analysis.kernels[k];
    const std::string place = fmt::format("kernels.{}.", k);
    const auto quantile = [&](const char* figure, double ns) {
      return cells.number(place + figure, ns, time_words(ns * 1e-9));
    };
    table.rows.push_back({{.text = event_words(row.name, actions, kKernelCharacters),
                           .whole = shown(row.name, kWholeNameBytes)},
                          {row.type},
                          cells.count(place + "count", row.count),
                          cells.time(place + "sum_ns", row.sum),
                          cells.number(place + "share", row.share, share_words(row.share)),
                          quantile("median_ns", row.median),
                          quantile("p5_ns", row.p5),
                          quantile("p95_ns", row.p95)});
  }
  return table;
}

/// How long each of the longest kernels took, time after time.
std::string duration_chart(const trace::Analysis& analysis, std::size_t rows) {
  const bool actions = shows_actions(analysis);
  DurationChart chart = {
      .title = actions ? "Durations of the longest actions" : "Durations of the longest kernels",
      .description = "How often each took how long, on a logarithmic axis; below: from 5 to 95 % "
                     "of them, the box from 25 to 75 %, the mark at the median",
      .rows = {}};
  for (const std::size_t k : largest(analysis.kernels, [](const auto& row) { return row.sum; })) {
    if (chart.rows.size() == rows) break;
    const trace::KernelRow& row = analysis.kernels[k];
    chart.rows.push_back({.name = event_words(row.name, actions, kNameBytes),
                          .from_s = seconds(row.histogram.from),
                          .to_s = seconds(row.histogram.to),
                          .counts = row.histogram.counts,
                          .quantiles_s = {row.p5 * 1e-9, row.p25 * 1e-9, row.median * 1e-9,
                                          row.p75 * 1e-9, row.p95 * 1e-9}});
  }
  return draw_durations(chart);
}

/// Rates of the copies between host and device, and inside of it.
Table copy_table(const TracedCells& cells, const trace::Analysis& analysis) {
  Table table = {
      .header = {"copies", "rank", "count", "bytes", "time", "rate, median", "5 %", "95 %"},
      .rows = {},
      .cut = 0};
  struct Place {
    std::size_t rank, row;
    std::int64_t ns;
  };
  std::vector<Place> places;
  for (std::size_t k = 0; k < analysis.ranks.size(); ++k) {
    for (std::size_t i = 0; i < analysis.ranks[k].copies.size(); ++i)
      places.push_back({k, i, analysis.ranks[k].copies[i].ns});
  }
  for (const std::size_t at : largest(places, [](const Place& place) { return place.ns; })) {
    const trace::RankFigures& rank = analysis.ranks[places[at].rank];
    const trace::CopyRate& row = rank.copies[places[at].row];
    const std::string place =
        fmt::format("ranks.{}.copies.{}.", places[at].rank, places[at].row);
    const auto rate = [&](const char* figure, double value) {
      return cells.number(place + figure, value, byte_rate_words(value));
    };
    table.rows.push_back({{shown(row.name, kNameBytes)},
                          {fmt::to_string(rank.rank)},
                          cells.count(place + "count", row.count),
                          cells.bytes(place + "bytes", row.bytes),
                          cells.time(place + "ns", row.ns),
                          rate("median_bytes_per_s", row.median),
                          rate("p5_bytes_per_s", row.p5),
                          rate("p95_bytes_per_s", row.p95)});
  }
  return table;
}

/// Kinds of actions on the compute lane, a column each for the first ranks.
Table lane_table(const TracedCells& cells, const trace::Analysis& analysis) {
  Table table = {.header = {"compute lane"}, .rows = {}};
  std::vector<std::string> kinds;
  const std::size_t ranks = std::min(kLanesShown, analysis.ranks.size());
  for (std::size_t k = 0; k < ranks; ++k) {
    for (const trace::KindTime& row : analysis.ranks[k].kinds) {
      if (row.lane == "compute" && std::ranges::find(kinds, row.kind) == kinds.end())
        kinds.push_back(row.kind);
    }
    table.header.push_back(fmt::format("rank {}", analysis.ranks[k].rank));
  }
  for (const std::string& kind : kinds) {
    std::vector<Cell>& line = table.rows.emplace_back();
    line.push_back({kind});
    for (std::size_t k = 0; k < ranks; ++k) {
      const trace::RankFigures& rank = analysis.ranks[k];
      line.push_back({"-"});
      for (std::size_t i = 0; i < rank.kinds.size(); ++i) {
        if (rank.kinds[i].lane != "compute" || rank.kinds[i].kind != kind) continue;
        line.back() = cells.part(fmt::format("ranks.{}.actions.{}.ns", k, i), rank.kinds[i].ns,
                                 rank.all.window);
      }
    }
  }
  return table;
}

Table traced_collectives(const TracedCells& cells, const trace::Collectives& collectives) {
  Table table = {.header = {"collective", "group", "bytes", "count", "transfer", "bus rate"},
                 .rows = {},
                 .cut = 1};
  for (const std::size_t k :
       largest(collectives.rows, [](const auto& row) { return row.median * row.count; })) {
    const trace::CollectiveRow& row = collectives.rows[k];
    const std::string place = fmt::format("collectives.rows.{}.", k);
    table.rows.push_back(
        {{row.operation},
         {shown(row.group, kNameBytes)},
         cells.bytes(place + "bytes", row.bytes),
         cells.count(place + "count", row.count),
         cells.number(place + "transfer_median_ns", static_cast<double>(row.median),
                      time_words(seconds(row.median)) + (row.partial > 0 ? " *" : "")),
         row.bus_rate ? cells.number(place + "bus_bytes_per_s", *row.bus_rate,
                                     byte_rate_words(*row.bus_rate))
                      : Cell{"-"}});
  }
  return table;
}

Table straggler_table(const TracedCells& cells, const trace::Collectives& collectives) {
  Table table = {
      .header = {"straggler", "group", "last in", "others waited", "cause"}, .rows = {}, .cut = 1};
  for (const std::size_t k :
       largest(collectives.stragglers, [](const auto& row) { return row.blame; })) {
    const trace::Straggler& row = collectives.stragglers[k];
    const std::string place = fmt::format("collectives.stragglers.{}.", k);
    table.rows.push_back({{fmt::format("rank {}", row.rank)},
                          {shown(row.group, kNameBytes)},
                          cells.number(place + "instances", static_cast<double>(row.instances),
                                       fmt::format("{} of {}", row.instances, row.of)),
                          cells.number(place + "blame_ns", static_cast<double>(row.blame),
                                       fmt::format("{} ({})", time_words(seconds(row.blame)),
                                                   share_words(row.share))),
                          {row.cause.empty() ? "not known" : row.cause}});
  }
  return table;
}

Table path_table(const TracedCells& cells, const trace::CriticalPath& path) {
  Table table = {.header = {"critical path", "time", "shorter by, if done in no time"}, .rows = {}};
  const std::vector<PathKind> kinds = path_by_kind(path);
  for (std::size_t k = 0; k < std::min(kRowsShown, kinds.size()); ++k) {
    const std::string place = fmt::format("path_kinds.{}.", k);
    table.rows.push_back({{kinds[k].kind},
                          cells.part(place + "ns", kinds[k].on_path, path.length),
                          kinds[k].gain < 0
                              ? Cell{"-"}
                              : cells.part(place + "gain_ns", kinds[k].gain, path.length)});
  }
  return table;
}

Table memory_table(const TracedCells& cells, const trace::Analysis& analysis) {
  Table table = {.header = {"step", "rank", "allocated", "reserved", "planned", "cudaMalloc"},
                 .rows = {}};
  const std::vector<StepMemory> steps = memory_by_step(analysis);
  for (std::size_t k = 0; k < std::min(kRowsShown, steps.size()); ++k) {
    const StepMemory& step = steps[k];
    const std::string place = fmt::format("memory_steps.{}.", k);
    table.rows.push_back({{fmt::to_string(step.step)},
                          {fmt::to_string(step.rank)},
                          cells.bytes(place + "allocated_bytes", step.allocated),
                          cells.bytes(place + "reserved_bytes", step.reserved),
                          cells.bytes(place + "planned_bytes", step.planned),
                          cells.count(place + "cuda_malloc_calls", step.driver_calls)});
  }
  return table;
}

void write_run(Writer& w, Section& section, std::size_t run) {
  const RunFigures& figures = w.report.runs[run];
  const TracedSteps& traced = *figures.data.traced;
  const trace::Analysis& analysis = traced.analysis;
  const TracedCells cells = {.run = run};
  std::string what = traced.first_step == 0 ? "Steps that the traces do not number"
                     : traced.first_step == traced.last_step
                         ? fmt::format("Step {}", traced.first_step)
                         : fmt::format("Steps {} to {}", traced.first_step, traced.last_step);
  what += fmt::format(", {} of {} ranks", analysis.ranks.size(),
                      std::max(figures.ranks, static_cast<int>(analysis.ranks.size())));
  if (analysis.ranks.size() > kRanksShown)
    what += fmt::format(", of which the first {} are shown", kRanksShown);
  section.blocks.push_back(Paragraph{
      what +
      ". The profiler makes them slower than others. Shares are of the window, from the first "
      "start to the last end; exposed: communication while nothing is computed; overlap: of the "
      "communication. More: dstrain trace analyze."});
  section.blocks.push_back(device_time(cells, analysis));
  if (w.pictures) w.picture(section, device_chart(analysis));
  const auto add = [&section](Table table) {
    if (!table.rows.empty()) section.blocks.push_back(std::move(table));
  };
  add(lane_table(cells, analysis));
  add(kernel_table(cells, analysis));
  // A page of many runs stays small.
  const std::size_t rows = std::max<std::size_t>(3, kRowsShown / w.report.runs.size());
  if (w.pictures) w.picture(section, duration_chart(analysis, rows));
  add(copy_table(cells, analysis));
  if (analysis.collectives) {
    add(traced_collectives(cells, *analysis.collectives));
    const bool partial =
        std::ranges::any_of(analysis.collectives->rows,
                            [](const trace::CollectiveRow& row) { return row.partial > 0; });
    section.blocks.push_back(Paragraph{
        std::string("Transfer: median; of a collective the least duration of all ranks.") +
        (partial ? " *: some ranks of the group are not in the traces, so waits are in it." : "")});
    add(straggler_table(cells, *analysis.collectives));
  }
  if (analysis.path) {
    add(path_table(cells, *analysis.path));
    section.blocks.push_back(Paragraph{
        "The critical path is the longest chain of actions of all ranks that waited for each "
        "other. (host): the host until a launch; (other): what waited for nothing known."});
  }
  add(memory_table(cells, analysis));
  List notes;
  for (const std::string& note : analysis.notes) {
    if (notes.items.size() == kNotesShown) {
      notes.items.push_back(fmt::format("and {} more", analysis.notes.size() - kNotesShown));
      break;
    }
    notes.items.push_back(shown(note, 300));
  }
  if (!notes.items.empty()) section.blocks.push_back(std::move(notes));
}

}  // namespace

void write_traced_steps(Writer& w) {
  for (std::size_t i = 0; i < w.report.runs.size(); ++i) {
    const RunFigures& run = w.report.runs[i];
    if (!run.data.traced) continue;
    write_run(
        w,
        w.section(w.report.runs.size() == 1 ? "Traced steps" : "Traced steps: " + run.label, i > 0),
        i);
  }
}

}  // namespace dstrain::report
