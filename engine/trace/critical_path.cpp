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

/// A run of some rank, or the work of its host until the launch of one.
struct Node {
  int rank = 0;
  std::uint32_t kind = 0;
  std::int64_t start = 0;
  std::int64_t end = 0;
  std::int64_t host = 0;  ///< of the time from start to end
  bool on_host = false;
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

/// A host launches one run after the other. Before a step's first one it waits for the end of the
/// step before the last, so that it never is more than one step ahead.
void add_host(const ActionRuns& runs, int rank, std::size_t first, Graph& graph) {
  std::vector<std::size_t> launched;
  std::map<std::int32_t, std::size_t> last_of;  // compute lane, by step
  for (std::size_t i = 0; i < runs.runs().size(); ++i) {
    const ActionRun& run = runs.runs()[i];
    if (run.launch_end_ns != GpuEvent::kNoLaunch) launched.push_back(i);
    if (runs.action(run).lane != "compute") continue;
    const auto [last, added] = last_of.try_emplace(run.step, i);
    if (!added && run.end_ns > runs.runs()[last->second].end_ns) last->second = i;
  }
  std::ranges::stable_sort(launched, {},
                           [&](std::size_t i) { return runs.runs()[i].launch_end_ns; });
  const std::uint32_t kind = graph.kind(CriticalPath::kHost);
  std::size_t before = kNone;
  std::int32_t step = -1;
  for (const std::size_t i : launched) {
    const ActionRun& run = runs.runs()[i];
    Node node{.rank = rank,
              .kind = kind,
              .start = run.launch_end_ns,
              .end = run.launch_end_ns,
              .on_host = true};
    if (before != kNone) {
      node.start = graph.nodes[before].end;
      node.before.push_back(before);
    }
    const auto awaited = last_of.find(run.step - 2);
    if (before != kNone && run.step > step && awaited != last_of.end()) {
      node.before.push_back(first + awaited->second);
      node.start = std::clamp(runs.runs()[awaited->second].end_ns, node.start, node.end);
    }
    step = std::max(step, run.step);
    before = graph.nodes.size();
    graph.nodes[first + i].before.push_back(before);
    graph.nodes.push_back(std::move(node));
  }
}

Graph graph_of(const std::vector<RankEvents>& ranks, const std::vector<Collective>& collectives,
               const Names& names) {
  Graph graph;
  // Communicator, operation and number; then the first and only run of each rank.
  std::map<std::tuple<std::string, std::string, std::int64_t>, std::vector<std::size_t>> met;
  for (const RankEvents& rank : ranks) {
    const ActionRuns runs(rank);
    const std::size_t first = graph.nodes.size();
    for (std::size_t i = 0; i < runs.runs().size(); ++i) {
      const ActionRun& run = runs.runs()[i];
      Node node{.rank = rank.rank,
                .kind = graph.kind(runs.action(run).kind),
                .start = run.start_ns,
                .end = run.end_ns,
                .host = run.host_gap_ns};
      for (const std::size_t other : runs.predecessors(i)) node.before.push_back(first + other);
      graph.nodes.push_back(std::move(node));
    }
    add_host(runs, rank.rank, first, graph);
    for (const Collective& one : collectives) {
      if (one.rank != rank.rank) continue;
      const auto run = runs.find(one.step, one.action);
      if (run) met[{names[one.group], names[one.operation], one.sequence}].push_back(first + *run);
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

/// From the first start on a device to the last end, where actions of kind `faster` take no time.
std::int64_t length_without(const Graph& graph, std::uint32_t faster) {
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
  const bool host = faster != kNoKind && graph.kinds[faster] == CriticalPath::kHost;
  std::int64_t first = kOpen, last = std::numeric_limits<std::int64_t>::min();
  for (const Change& change : changes) {
    const Node& node = graph.nodes[change.node];
    if (change.begin) {
      const std::int64_t ready = graph.ready(node);
      const std::int64_t lag = node.start - ready;
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
      if (!node.on_host) first = std::min(first, begin[change.node]);
      continue;
    }
    std::int64_t from = begin[change.node];
    if (node.meeting != kNone) {
      for (const std::size_t member : graph.meetings[node.meeting].members) {
        if (begin[member] != kOpen && graph.nodes[member].start <= node.end)
          from = std::max(from, begin[member]);
      }
    }
    std::int64_t work = node.end - graph.work_start(node);
    const std::int64_t on_host = std::min(node.host, work);
    if (node.kind == faster) work = node.on_host ? 0 : on_host;
    if (host) work -= on_host;
    end[change.node] = from + work;
    if (!node.on_host) last = std::max(last, end[change.node]);
  }
  return last - first;
}

}  // namespace

CriticalPath critical_path(const std::vector<RankEvents>& ranks,
                           const std::vector<Collective>& collectives, const Names& names) {
  CriticalPath path;
  const Graph graph = graph_of(ranks, collectives, names);
  if (graph.nodes.empty()) return path;
  std::map<std::pair<std::string, int>, std::int64_t> sums;
  std::size_t at = kNone;
  std::int64_t first = std::numeric_limits<std::int64_t>::max();
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    if (graph.nodes[i].on_host) continue;
    if (at == kNone || graph.nodes[i].end > graph.nodes[at].end) at = i;
    first = std::min(first, graph.nodes[i].start);
  }
  std::int64_t until = graph.nodes[at].end;
  path.length = until - first;
  const auto add = [&](const std::string& kind, int rank, std::int64_t from) {
    from = std::clamp(from, first, until);
    sums[{kind, rank}] += until - from;
    until = from;
  };
  // Back from the end: each turn goes to what the present action had to wait for. Clocks that are
  // wrong can make a circle; it ends where the path comes to an action again.
  std::vector<bool> seen(graph.nodes.size(), false);
  while (!seen[at] && until > first) {
    seen[at] = true;
    const Node& node = graph.nodes[at];
    const std::int64_t work_start = graph.work_start(node);
    add(CriticalPath::kHost, node.rank, std::min(until, std::max(work_start, until - node.host)));
    add(graph.kinds[node.kind], node.rank, work_start);
    if (node.meeting != kNone && graph.meetings[node.meeting].last != at && until > node.start) {
      at = graph.meetings[node.meeting].last;
      continue;
    }
    std::size_t next = kNone;
    for (const std::size_t other : node.before) {
      if (graph.nodes[other].start > until || seen[other]) continue;
      // The one that began first, of those that ended last.
      const auto key = [&](std::size_t i) {
        return std::pair(std::min(graph.nodes[i].end, until), -graph.nodes[i].start);
      };
      if (next == kNone || key(other) > key(next)) next = other;
    }
    if (next == kNone) break;
    add(CriticalPath::kRest, node.rank, graph.nodes[next].end);
    at = next;
  }
  add(CriticalPath::kRest, graph.nodes[at].rank, first);
  for (const auto& [key, ns] : sums)
    if (ns > 0) path.rows.push_back({.kind = key.first, .rank = key.second, .ns = ns});
  std::ranges::stable_sort(path.rows, std::greater(), &CriticalPath::Row::ns);
  const std::int64_t present = length_without(graph, kNoKind);
  for (std::uint32_t kind = 0; kind < graph.kinds.size(); ++kind) {
    const std::int64_t ns = present - length_without(graph, kind);
    if (ns > 0) path.gains.push_back({.kind = graph.kinds[kind], .rank = -1, .ns = ns});
  }
  std::ranges::stable_sort(path.gains, std::greater(), &CriticalPath::Row::ns);
  return path;
}

}  // namespace dstrain::trace
