#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string>

#include "engine/base/printable.h"
#include "engine/trace/analysis.h"
#include "engine/trace/tables.h"

namespace dstrain::trace {
namespace {

std::string number(std::int64_t value) { return fmt::format("{}", value); }
std::string rate(double bytes_per_second) { return fmt::format("{:.2f}", bytes_per_second / 1e9); }

void add_breakdown(Table& table, int rank, const std::string& step, const Breakdown& b) {
  const auto whole = static_cast<double>(b.window);
  const auto share = [&](std::int64_t ns) { return percent(static_cast<double>(ns), whole); };
  table.rows.push_back(
      {number(rank), step, number(b.events), microseconds(b.window), share(b.busy),
       share(b.compute), share(b.non_compute()), share(b.idle()), microseconds(b.communication),
       microseconds(b.exposed_communication()), share(b.exposed_communication()),
       percent(static_cast<double>(b.overlap), static_cast<double>(b.communication)),
       b.compute > 0 ? fmt::format("{:.3f}", static_cast<double>(b.communication) /
                                                 static_cast<double>(b.compute))
                     : "-"});
}

Table breakdown_table(const Analysis& analysis) {
  Table table{"breakdown",
              "Time of the device, from the first start to the last end",
              {"rank", "step", "events", "time us", "busy %", "compute %", "other %", "idle %",
               "comm us", "exposed us", "exposed %", "overlap %", "comm:comp"},
              {},
              2};
  for (const RankFigures& rank : analysis.ranks) {
    add_breakdown(table, rank.rank, "all", rank.all);
    for (const auto& [step, b] : rank.steps) add_breakdown(table, rank.rank, number(step), b);
  }
  return table;
}

Table types_table(const Analysis& analysis) {
  Table table{
      "types", "Types, alone and overlapped", {"rank", "running", "time us", "busy %"}, {}, 2};
  for (const RankFigures& rank : analysis.ranks)
    for (unsigned bits = 1; bits < 8; ++bits)
      if (const std::int64_t ns = rank.all.types[bits]; ns > 0)
        table.rows.push_back(
            {number(rank.rank), type_set_name(bits), microseconds(ns),
             percent(static_cast<double>(ns), static_cast<double>(rank.all.busy))});
  return table;
}

Table kernel_table(const Analysis& analysis) {
  Table table{"kernels",
              fmt::format("Largest by {}, all ranks", group_by_name(analysis.by)),
              {"type", group_by_name(analysis.by), "count", "sum us", "mean us", "min us", "max us",
               "dev us", "%"},
              {},
              2};
  const auto add = [&](const KernelRow& row, const std::string& name) {
    table.rows.push_back({row.type, name, number(row.count), microseconds(row.sum),
                          fmt::format("{:.3f}", row.mean / 1e3), microseconds(row.min),
                          microseconds(row.max), fmt::format("{:.3f}", row.deviation / 1e3),
                          fmt::format("{:.1f}", 100 * row.share)});
  };
  for (const KernelRow& row : analysis.kernels) add(row, row.name);
  for (const KernelRow& row : analysis.rest) add(row, "(all others)");
  return table;
}

/// Rank, name, time and its share of the rank's window.
std::vector<std::string> named_time(const RankFigures& rank, const std::string& name,
                                    std::int64_t ns) {
  return {number(rank.rank), name, microseconds(ns),
          percent(static_cast<double>(ns), static_cast<double>(rank.all.window))};
}

Table exposed_table(const Analysis& analysis, std::size_t top) {
  Table table{"exposed",
              "Communication that no compute hides",
              {"rank", "by", "time us", "% of time"},
              {},
              2};
  for (const RankFigures& rank : analysis.ranks) {
    const auto add = [&](const std::string& name, std::int64_t ns) {
      table.rows.push_back(named_time(rank, name, ns));
    };
    const std::size_t shown = std::min(top, rank.exposed.size());
    for (std::size_t i = 0; i < shown; ++i) add(rank.exposed[i].name, rank.exposed[i].ns);
    std::int64_t rest = 0;
    for (std::size_t i = shown; i < rank.exposed.size(); ++i) rest += rank.exposed[i].ns;
    if (rest > 0) add("(all others)", rest);
  }
  return table;
}

Table kind_table(const Analysis& analysis) {
  Table table{"actions",
              "Actions by lane and kind, from their first to their last event",
              {"rank", "lane", "kind", "count", "time us", "% of time", "collectives us"},
              {},
              3};
  for (const RankFigures& rank : analysis.ranks)
    for (const KindTime& row : rank.kinds)
      table.rows.push_back(
          {number(rank.rank), row.lane, row.kind, number(row.count), microseconds(row.ns),
           percent(static_cast<double>(row.ns), static_cast<double>(rank.all.window)),
           microseconds(row.collectives)});
  return table;
}

Table collective_table(const Collectives& collectives) {
  Table table{"collectives",
              "Collectives: transfer is the least duration of all ranks",
              {"operation", "group", "ranks", "bytes", "count", "partial", "median us", "5 % us",
               "95 % us", "GB/s", "bus GB/s"},
              {},
              2};
  for (const CollectiveRow& row : collectives.rows)
    table.rows.push_back({row.operation, row.group, number(row.group_size), number(row.bytes),
                          number(row.count), number(row.partial), microseconds(row.median),
                          microseconds(row.p5), microseconds(row.p95),
                          row.algorithm_rate ? rate(*row.algorithm_rate) : "-",
                          row.bus_rate ? rate(*row.bus_rate) : "-"});
  return table;
}

Table wait_table(const Collectives& collectives) {
  Table table{
      "waits", "Waits in collectives for the last rank", {"rank", "wait us", "transfer us"}, {}, 1};
  for (const RankWait& row : collectives.waits)
    table.rows.push_back({number(row.rank), microseconds(row.wait), microseconds(row.transfer)});
  return table;
}

Table straggler_table(const Collectives& collectives) {
  Table table{"stragglers",
              "Ranks that made the others wait",
              {"rank", "group", "last in", "of", "others waited us", "% of time", "cause"},
              {},
              2};
  for (const Straggler& row : collectives.stragglers)
    table.rows.push_back({number(row.rank), row.group, number(row.instances), number(row.of),
                          microseconds(row.blame), fmt::format("{:.1f}", 100 * row.share),
                          row.cause.empty() ? "-" : row.cause});
  return table;
}

Table launch_table(const Analysis& analysis) {
  Table table{"launches",
              "Launches: from the end of the call to the start",
              {"rank", "count", "unknown", "negative", "call longer", "mean us", "median us",
               "95 % us", "max us", "queue empty %", "gaps: host us", "dependency us", "other us"},
              {},
              1};
  for (const RankFigures& rank : analysis.ranks) {
    if (!rank.launches) continue;
    const Launches& l = *rank.launches;
    table.rows.push_back(
        {number(rank.rank), number(l.count), number(l.without), number(l.negative),
         number(l.longer_than_kernel), fmt::format("{:.3f}", l.mean / 1e3), microseconds(l.median),
         microseconds(l.p95), microseconds(l.max),
         percent(static_cast<double>(l.host_bound), static_cast<double>(rank.all.window)),
         microseconds(l.gap_host), microseconds(l.gap_dependency), microseconds(l.gap_rest)});
  }
  return table;
}

Table dependency_table(const Analysis& analysis, std::size_t top) {
  Table table{"dependencies",
              "Gaps: launched, and waiting for an action of another lane",
              {"rank", "waits for", "time us", "% of time"},
              {},
              2};
  for (const RankFigures& rank : analysis.ranks) {
    if (!rank.launches) continue;
    const auto& list = rank.launches->dependencies;
    for (std::size_t i = 0; i < std::min(top, list.size()); ++i)
      table.rows.push_back(named_time(rank, list[i].name, list[i].ns));
  }
  return table;
}

Table memory_table(const Analysis& analysis) {
  Table table{"memory",
              "Memory of the device as the allocator says",
              {"rank", "step", "allocated MiB", "reserved MiB", "planned MiB", "peak in",
               "allocations", "cudaMalloc"},
              {},
              2};
  const auto mebibytes = [](std::int64_t bytes) {
    return bytes < 0 ? "-" : fmt::format("{:.1f}", static_cast<double>(bytes) / (1 << 20));
  };
  for (const RankFigures& rank : analysis.ranks) {
    if (!rank.memory) continue;
    const MemoryUse& use = *rank.memory;
    table.rows.push_back({number(rank.rank), "all", mebibytes(use.peak_allocated),
                          mebibytes(use.peak_reserved), mebibytes(use.planned),
                          use.peak_action.empty() ? "-" : use.peak_action, "", ""});
    for (const MemoryUse::Step& step : use.steps) {
      table.rows.push_back({number(rank.rank), number(step.step), mebibytes(step.peak_allocated),
                            mebibytes(step.peak_reserved), "", "",
                            step.allocations < 0 ? "-" : number(step.allocations),
                            number(step.driver_calls)});
    }
  }
  return table;
}

Table path_table(const CriticalPath& path) {
  Table table{"critical_path",
              fmt::format("Critical path of all ranks, {} us", microseconds(path.length)),
              {"kind", "rank", "time us", "%"},
              {},
              1};
  for (const CriticalPath::Row& row : path.rows) {
    table.rows.push_back({row.kind, number(row.rank), microseconds(row.ns),
                          percent(static_cast<double>(row.ns), static_cast<double>(path.length))});
  }
  return table;
}

Table gain_table(const CriticalPath& path) {
  Table table{"what_if",
              "Shorter by, were a kind of actions done in no time",
              {"kind", "time us", "%"},
              {},
              1};
  for (const CriticalPath::Row& row : path.gains) {
    table.rows.push_back({row.kind, microseconds(row.ns),
                          percent(static_cast<double>(row.ns), static_cast<double>(path.length))});
  }
  return table;
}

Table queue_table(const Analysis& analysis) {
  Table table{"queues", "Queue: launched, not started", {"rank", "stream", "mean", "max"}, {}, 2};
  for (const RankFigures& rank : analysis.ranks)
    if (rank.launches)
      for (const Launches::Queue& queue : rank.launches->queues)
        table.rows.push_back({number(rank.rank), number(queue.stream),
                              fmt::format("{:.2f}", queue.mean), number(queue.max)});
  return table;
}

Table copy_table(const Analysis& analysis) {
  Table table{"copies",
              "Copies",
              {"rank", "kind", "count", "bytes", "time us", "5 % GB/s", "median GB/s", "95 % GB/s"},
              {},
              2};
  for (const RankFigures& rank : analysis.ranks)
    for (const CopyRate& row : rank.copies)
      table.rows.push_back({number(rank.rank), row.name, number(row.count), number(row.bytes),
                            microseconds(row.ns), rate(row.p5), rate(row.median), rate(row.p95)});
  return table;
}

/// Only figures that the traces hold something of; long ones with `top` rows a rank.
std::vector<Table> tables(const Analysis& analysis, std::size_t top) {
  std::vector<Table> all = {breakdown_table(analysis), types_table(analysis),
                            kernel_table(analysis), exposed_table(analysis, top),
                            kind_table(analysis)};
  if (analysis.collectives) {
    all.push_back(collective_table(*analysis.collectives));
    all.push_back(wait_table(*analysis.collectives));
    all.push_back(straggler_table(*analysis.collectives));
  }
  all.push_back(launch_table(analysis));
  all.push_back(dependency_table(analysis, top));
  all.push_back(queue_table(analysis));
  all.push_back(memory_table(analysis));
  if (analysis.path) {
    all.push_back(path_table(*analysis.path));
    all.push_back(gain_table(*analysis.path));
  }
  all.push_back(copy_table(analysis));
  std::erase_if(all, [](const Table& table) { return table.rows.empty(); });
  return all;
}

}  // namespace

const char* group_by_name(GroupBy by) {
  switch (by) {
    case GroupBy::kernel:
      return "kernel";
    case GroupBy::action:
      return "action";
    case GroupBy::phase:
      return "phase";
    case GroupBy::block:
      return "block";
  }
  return "";
}

std::string to_text(const Analysis& analysis) {
  std::string text;
  for (const Table& table : tables(analysis, analysis.top))
    text += fmt::format("{}{}", text.empty() ? "" : "\n", text_of(table));
  for (const std::string& note : analysis.notes) text += fmt::format("\nnote: {}\n", note);
  return text;
}

std::map<std::string, std::string> to_csv(const Analysis& analysis) {
  std::map<std::string, std::string> files;
  for (const Table& table : tables(analysis, std::numeric_limits<std::size_t>::max()))
    files[table.name + ".csv"] = csv_of(table);
  return files;
}

}  // namespace dstrain::trace
