#include "engine/trace/critical_path.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <tuple>

namespace dstrain::trace {
namespace {

constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();
constexpr std::uint32_t kNoKind = std::numeric_limits<std::uint32_t>::max();

/// A run of some rank.
struct Node {
  int rank = 0;
  std::uint32_t kind = 0;
  std::int64_t start = 0;
  std::int64_t end = 0;
  std::int64_t launched = GpuEvent::kNoLaunch;
  std::vector<std::size_t> before = {};  ///< what it waits for
  std::size_t meeting = kNone;           ///< in Graph::meetings
};

/// A collective: all ranks come, then all go on.
struct Meeting {
  std::vector<std::size_t> members;
  std::size_t last = 0;  ///< the member that came last
};

struct Graph {
  std::vector<Node> nodes;
  std::vector<Meeting> meetings;
  std::vector<std::string> kinds;

  std::uint32_t kind(const std::string& name) {
    const auto found = std::ranges::find(kinds, name);
    if (found == kinds.end()) kinds.push_back(name);
    return static_cast<std::uint32_t>(std::ranges::find(kinds, name) - kinds.begin());
  }
  /// When all that `node` waits for has ended; its own start where it waits for nothing.
  [[nodiscard]] std::int64_t ready(const Node& node) const {
    std::int64_t ready = std::numeric_limits<std::int64_t>::min();
    for (const std::size_t other : node.before)
      ready = std::max(ready, std::min(nodes[other].end, node.start));
    return node.before.empty() ? node.start : ready;
  }
  /// When the work of `node` itself begins: with the last rank that comes.
  [[nodiscard]] std::int64_t work_start(const Node& node) const {
    if (node.meeting == kNone) return node.start;
    return std::clamp(nodes[meetings[node.meeting].last].start, node.start, node.end);
  }
};

Graph graph_of(const std::vector<RankProgram>& ranks) {
  Graph graph;
  // Communicator, operation and number; then the first and only run of each rank.
  std::map<std::tuple<std::string, std::string, std::int64_t>, std::vector<std::size_t>> met;
  for (const RankProgram& rank : ranks) {
    const ActionRuns runs(rank.events);
    const std::size_t first = graph.nodes.size();
    for (std::size_t i = 0; i < runs.runs().size(); ++i) {
      const ActionRun& run = runs.runs()[i];
      Node node{.rank = rank.events.rank,
                .kind = graph.kind(runs.action(run).kind),
                .start = run.start_ns,
                .end = run.end_ns,
                .launched = run.launch_end_ns};
      for (const std::size_t other : runs.predecessors(i)) node.before.push_back(first + other);
      graph.nodes.push_back(std::move(node));
    }
    for (const auto& [group, operation, collective] : rank.collectives) {
      const auto run = runs.find(collective.step, collective.action);
      if (run) met[{group, operation, collective.sequence}].push_back(first + *run);
    }
  }
  for (auto& [key, members] : met) {
    // An action of several collectives meets in its first one.
    std::erase_if(members, [&](std::size_t node) { return graph.nodes[node].meeting != kNone; });
    if (members.size() < 2) continue;
    Meeting meeting{.members = members, .last = members.front()};
    for (const std::size_t member : members) {
      graph.nodes[member].meeting = graph.meetings.size();
      if (graph.nodes[member].start > graph.nodes[meeting.last].start) meeting.last = member;
    }
    graph.meetings.push_back(std::move(meeting));
  }
  return graph;
}

/// Length of the longest path where actions of kind `faster` take no time, or the host none.
std::int64_t length_without(const Graph& graph, std::uint32_t faster, bool no_host) {
  struct Change {
    std::int64_t time = 0;
    bool begin = false;
    std::size_t node = 0;
  };
  std::vector<Change> changes;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    changes.push_back({graph.nodes[i].start, true, i});
    changes.push_back({graph.nodes[i].end, false, i});
  }
  // What ends at a time lets others begin at it; an action without length begins before it ends.
  std::ranges::sort(changes, [&](const Change& a, const Change& b) {
    const auto order = [&](const Change& c) {
      const Node& node = graph.nodes[c.node];
      return std::tuple(c.time, node.start == node.end ? 1 : c.begin ? 2 : 0, c.node, !c.begin);
    };
    return order(a) < order(b);
  });
  constexpr std::int64_t kOpen = std::numeric_limits<std::int64_t>::max();
  std::vector<std::int64_t> begin(graph.nodes.size(), kOpen), end(graph.nodes.size(), kOpen);
  std::int64_t first = kOpen, last = std::numeric_limits<std::int64_t>::min();
  for (const Change& change : changes) {
    const Node& node = graph.nodes[change.node];
    if (change.begin) {
      const std::int64_t ready = graph.ready(node);
      std::int64_t lag = node.start - ready;
      if (no_host && node.launched != GpuEvent::kNoLaunch)
        lag -= std::clamp<std::int64_t>(node.launched - ready, 0, lag);
      std::int64_t from =
          node.before.empty() ? node.start : std::numeric_limits<std::int64_t>::min();
      for (const std::size_t other : node.before) {
        // One that had not ended is held to have ended then.
        const std::int64_t over = std::max<std::int64_t>(0, graph.nodes[other].end - node.start);
        const std::int64_t its_end =
            end[other] != kOpen
                ? end[other]
                : begin[other] + (graph.nodes[other].end - over - graph.nodes[other].start);
        if (begin[other] != kOpen) from = std::max(from, its_end);
      }
      if (from == std::numeric_limits<std::int64_t>::min()) from = ready;
      begin[change.node] = from + lag;
      first = std::min(first, begin[change.node]);
      continue;
    }
    std::int64_t from = begin[change.node];
    if (node.meeting != kNone) {
      for (const std::size_t member : graph.meetings[node.meeting].members) {
        if (begin[member] != kOpen && graph.nodes[member].start <= node.end)
          from = std::max(from, begin[member]);
      }
    }
    const std::int64_t work = node.kind == faster ? 0 : node.end - graph.work_start(node);
    end[change.node] = from + work;
    last = std::max(last, end[change.node]);
  }
  return last - first;
}

}  // namespace

CriticalPath critical_path(const std::vector<RankProgram>& ranks) {
  CriticalPath path;
  const Graph graph = graph_of(ranks);
  if (graph.nodes.empty()) return path;
  std::map<std::pair<std::string, int>, std::int64_t> sums;
  std::size_t at = 0;
  std::int64_t first = graph.nodes.front().start;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    if (graph.nodes[i].end > graph.nodes[at].end) at = i;
    first = std::min(first, graph.nodes[i].start);
  }
  std::int64_t until = graph.nodes[at].end;
  path.length = until - first;
  // What passed from `from` until the present action: not launched yet, then nothing known.
  const auto add_wait = [&](const Node& node, std::int64_t from) {
    const std::int64_t host = node.launched == GpuEvent::kNoLaunch
                                  ? 0
                                  : std::clamp<std::int64_t>(node.launched - from, 0, until - from);
    sums[{CriticalPath::kHost, node.rank}] += host;
    sums[{CriticalPath::kRest, node.rank}] += until - from - host;
    until = from;
  };
  // Back from the end: each turn goes to what the present action had to wait for. Clocks that are
  // wrong can make a circle; it ends where the path comes to an action again.
  std::vector<bool> seen(graph.nodes.size(), false);
  while (!seen[at]) {
    seen[at] = true;
    const Node& node = graph.nodes[at];
    const std::int64_t work = std::min(graph.work_start(node), until);
    sums[{graph.kinds[node.kind], node.rank}] += until - work;
    until = work;
    if (node.meeting != kNone && graph.meetings[node.meeting].last != at && work > node.start) {
      at = graph.meetings[node.meeting].last;
      continue;
    }
    if (node.before.empty()) break;
    std::size_t next = kNone;
    for (const std::size_t other : node.before) {
      if (graph.nodes[other].start >= until) continue;
      if (next == kNone ||
          std::min(graph.nodes[other].end, until) > std::min(graph.nodes[next].end, until))
        next = other;
    }
    if (next == kNone) break;
    add_wait(node, std::min(graph.nodes[next].end, until));
    at = next;
  }
  add_wait(graph.nodes[at], first);
  for (const auto& [key, ns] : sums)
    if (ns > 0) path.rows.push_back({.kind = key.first, .rank = key.second, .ns = ns});
  std::ranges::stable_sort(path.rows, std::greater(), &CriticalPath::Row::ns);
  const std::int64_t present = length_without(graph, kNoKind, false);
  const auto gain = [&](const std::string& kind, std::int64_t length) {
    const std::int64_t ns = present - length;
    if (ns > 0) path.gains.push_back({.kind = kind, .rank = -1, .ns = ns});
  };
  for (std::uint32_t kind = 0; kind < graph.kinds.size(); ++kind)
    gain(graph.kinds[kind], length_without(graph, kind, false));
  gain(CriticalPath::kHost, length_without(graph, kNoKind, true));
  std::ranges::stable_sort(path.gains, std::greater(), &CriticalPath::Row::ns);
  return path;
}

}  // namespace dstrain::trace
