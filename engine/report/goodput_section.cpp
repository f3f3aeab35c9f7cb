#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "engine/base/printable.h"
#include "engine/base/words.h"
#include "engine/report/document_writer.h"
#include "engine/report/words.h"

namespace dstrain::report {
namespace {

constexpr std::size_t kStopsShown = 30;
constexpr std::size_t kNameBytes = 40;

Table time_table(std::size_t run, const Goodput& goodput) {
  Table table = {.header = {"wall time", "took", "share"}, .rows = {}};
  for (std::size_t k = 0; k < goodput.rows.size(); ++k) {
    const GoodputRow& row = goodput.rows[k];
    const double share = row.seconds / goodput.wall_s;
    table.rows.push_back(
        {{row.what},
         number_cell(run, fmt::format("goodput.rows.{}.seconds", k), row.seconds,
                     time_words(row.seconds)),
         number_cell(run, fmt::format("goodput.rows.{}.share", k), share, share_words(share))});
  }
  return table;
}

/// Stops by class, the most frequent first.
Table class_table(const std::vector<Stop>& stops) {
  struct Class {
    int count = 0;
    std::int64_t lost = 0;
    double down_s = 0;
    std::map<std::string, int> hosts;
  };
  std::map<std::string, Class> classes;
  for (const Stop& stop : stops) {
    Class& of = classes[stop.kind.empty() ? "not known" : stop.kind];
    ++of.count;
    of.lost += stop.lost_steps;
    if (std::isfinite(stop.down_s)) of.down_s += stop.down_s;
    if (!stop.host.empty()) ++of.hosts[stop.host];
  }
  std::vector<std::pair<std::string, Class>> order(classes.begin(), classes.end());
  std::ranges::stable_sort(order, std::ranges::greater{},
                           [](const auto& entry) { return entry.second.count; });
  Table table = {.header = {"stops by class", "count", "steps lost", "down", "hosts"}, .rows = {}};
  for (const auto& [kind, of] : order) {
    std::vector<std::string> names;
    for (const auto& [host, count] : of.hosts)
      names.push_back(count > 1 ? fmt::format("{} ({})", shown(host, kNameBytes), count)
                                : shown(host, kNameBytes));
    constexpr std::size_t kHostsNamed = 6;
    const std::size_t others = names.size() - std::min(names.size(), kHostsNamed);
    names.resize(names.size() - others);
    table.rows.push_back(
        {{shown(kind, kNameBytes)},
         {fmt::to_string(of.count)},
         {fmt::to_string(of.lost)},
         {time_words(of.down_s)},
         {names.empty() ? "-"
                        : fmt::format("{}{}", fmt::join(names, ", "),
                                      others > 0 ? fmt::format(", {} more", others) : "")}});
  }
  return table;
}

Table stop_table(std::size_t run, const std::vector<Stop>& stops) {
  Table table = {.header = {"stop", "class", "host", "rank", "after step", "steps lost", "down"},
                 .rows = {}};
  const std::size_t first = stops.size() - std::min(stops.size(), kStopsShown);
  for (std::size_t k = first; k < stops.size(); ++k) {
    const Stop& stop = stops[k];
    const auto cell = [&](const char* name, double value, std::string words) {
      return number_cell(run, fmt::format("goodput.stops.{}.{}", k, name), value, std::move(words));
    };
    table.rows.push_back(
        {{shown(stop.time, kNameBytes)},
         {shown(stop.kind, kNameBytes)},
         {stop.host.empty() ? "-" : shown(stop.host, kNameBytes)},
         {stop.rank < 0 ? "-" : fmt::to_string(stop.rank)},
         cell("step", static_cast<double>(stop.step), fmt::to_string(stop.step)),
         cell("lost_steps", static_cast<double>(stop.lost_steps), fmt::to_string(stop.lost_steps)),
         cell("down_s", stop.down_s, time_words(stop.down_s))});
  }
  return table;
}

std::string sentence_of(const Goodput& goodput) {
  std::string text = fmt::format(
      "Goodput {}: of {} of wall time, {} were steps that counted; {} start{}, {} stop{}.",
      share_words(goodput.share), time_words(goodput.wall_s),
      time_words(goodput.rows.front().seconds), goodput.starts, plural(goodput.starts),
      goodput.stops.size(), plural(goodput.stops.size()));
  if (std::isfinite(goodput.between_s))
    text += fmt::format(" Between two stops: {} of running, 90 % from {} to {}.",
                        time_words(goodput.between_s), time_words(goodput.between_low_s),
                        time_words(goodput.between_high_s));
  if (!goodput.twice.empty()) {
    std::vector<std::string> names;
    for (const std::string& host : goodput.twice) names.push_back(shown(host, kNameBytes));
    text += fmt::format(" Stopped the job twice or more: {}.", fmt::join(names, ", "));
  }
  if (goodput.compared > 0)
    text += fmt::format(
        " Ranks compared the weights or states that several hold {} time{}, and {}.",
        goodput.compared, plural(goodput.compared),
        goodput.differed == 0
            ? "found no difference"
            : fmt::format("differed {} time{}", goodput.differed, plural(goodput.differed)));
  return text;
}

}  // namespace

void write_goodput(Writer& w) {
  for (std::size_t i = 0; i < w.report.runs.size(); ++i) {
    const RunFigures& run = w.report.runs[i];
    if (!run.goodput) continue;
    const Goodput& goodput = *run.goodput;
    Section& section =
        w.section(w.report.runs.size() == 1 ? "Goodput" : "Goodput: " + run.label, i > 0);
    section.blocks.push_back(Paragraph{sentence_of(goodput)});
    Bars bars = {.unit = "of the wall time", .rows = {}};
    for (const GoodputRow& row : goodput.rows)
      bars.rows.emplace_back(row.what, row.seconds / goodput.wall_s);
    section.blocks.push_back(std::move(bars));
    section.blocks.push_back(time_table(i, goodput));
    section.blocks.push_back(Paragraph{
        "By events.jsonl, to the second. Starts: from the launch to the first step; saves: "
        "that training waited for; down: from an end to the next launch."});
    if (goodput.stops.empty()) continue;
    section.blocks.push_back(class_table(goodput.stops));
    section.blocks.push_back(stop_table(i, goodput.stops));
    std::string what =
        "Steps lost were done again; down, of a stop: to the end of the next first step.";
    if (goodput.stops.size() > kStopsShown)
      what += fmt::format(" The last {} of {} stops; --json has all.", kStopsShown,
                          goodput.stops.size());
    section.blocks.push_back(Paragraph{std::move(what)});
  }
}

}  // namespace dstrain::report
