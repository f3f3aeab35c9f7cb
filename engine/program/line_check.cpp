#include "engine/program/line_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "engine/base/index.h"

namespace dstrain {
namespace {

constexpr int kNothing = -1;
/// What one run leaves to the next is in the second.
constexpr int kRunsOfLine = 2;

/// The actions of all ranks as nodes of one graph. Nodes of actions that end together, as a send
/// and its receive do, are one.
class LineChecker {
 public:
  LineChecker(const std::vector<Program>& line, const ModelCost& cost,
              std::vector<std::string>& problems);
  void run();

 private:
  [[nodiscard]] int ranks() const { return static_cast<int>(line_.size()); }
  [[nodiscard]] const std::vector<Action>& actions(int rank) const {
    return line_[to_index(rank)].actions;
  }
  [[nodiscard]] int count(int rank) const { return static_cast<int>(actions(rank).size()); }
  [[nodiscard]] int node(int rank, int run, int i) const {
    return first_node_[to_index(rank)] + run * count(rank) + i;
  }
  [[nodiscard]] std::string name(int rank, int i) const {
    return fmt::format("#{} {} of coordinate {}", i, describe(actions(rank)[to_index(i)], cost_),
                       rank);
  }
  [[nodiscard]] auto role(int rank, int buffer) const {
    return line_[to_index(rank)].buffers[to_index(buffer)].role;
  }
  [[nodiscard]] std::vector<int> indices(int rank, Lane lane) const;
  /// The node that stands for `n` and those that end with it.
  int root(int n);
  void end_together(int rank_a, int a, int rank_b, int b);
  bool pair_transfers(int rank, Lane send, Lane receive, int other);
  bool pair_collectives(CommAxis axis, const std::vector<int>& coordinates);
  void find_cycle();

  const std::vector<Program>& line_;
  const ModelCost& cost_;
  std::vector<std::string>& problems_;
  std::vector<int> first_node_;  ///< by rank
  std::vector<int> parent_;      ///< by node
};

LineChecker::LineChecker(const std::vector<Program>& line, const ModelCost& cost,
                         std::vector<std::string>& problems)
    : line_(line), cost_(cost), problems_(problems) {
  int nodes = 0;
  for (const Program& program : line) {
    first_node_.push_back(nodes);
    nodes += kRunsOfLine * static_cast<int>(program.actions.size());
  }
  parent_.resize(to_index(nodes));
  std::iota(parent_.begin(), parent_.end(), 0);
}

std::vector<int> LineChecker::indices(int rank, Lane lane) const {
  std::vector<int> list;
  for (int i = 0; i < count(rank); ++i) {
    if (actions(rank)[to_index(i)].lane == lane) list.push_back(i);
  }
  return list;
}

int LineChecker::root(int n) {
  while (parent_[to_index(n)] != n) {
    parent_[to_index(n)] = parent_[to_index(parent_[to_index(n)])];
    n = parent_[to_index(n)];
  }
  return n;
}

void LineChecker::end_together(int rank_a, int a, int rank_b, int b) {
  for (int run = 0; run < kRunsOfLine; ++run)
    parent_[to_index(root(node(rank_a, run, a)))] = root(node(rank_b, run, b));
}

/// The k-th send of a lane is the k-th receive of the other rank.
bool LineChecker::pair_transfers(int rank, Lane send, Lane receive, int other) {
  const std::vector<int> sends = indices(rank, send), receives = indices(other, receive);
  if (sends.size() != receives.size()) {
    problems_.push_back(
        fmt::format("coordinate {} has {} sends on lane {}, coordinate {} has {} receives", rank,
                    sends.size(), lane_name(send), other, receives.size()));
    return false;
  }
  for (std::size_t k = 0; k < sends.size(); ++k) {
    const Action &a = actions(rank)[to_index(sends[k])], &b = actions(other)[to_index(receives[k])];
    const bool same = a.block == b.block && a.micro_batch == b.micro_batch &&
                      role(rank, a.reads.front()) == role(other, b.writes.front()) &&
                      a.comm.front().bytes == b.comm.front().bytes;
    if (!same) {
      problems_.push_back(
          fmt::format("{} meets {}", name(rank, sends[k]), name(other, receives[k])));
      return false;
    }
    end_together(rank, sends[k], other, receives[k]);
  }
  return true;
}

/// Collectives along the axis are the same ones in the same order on these coordinates.
bool LineChecker::pair_collectives(CommAxis axis, const std::vector<int>& coordinates) {
  const auto of_axis = [&](int rank) {
    std::vector<std::pair<int, Comm>> list;
    for (int i = 0; i < count(rank); ++i) {
      for (const Comm& comm : actions(rank)[to_index(i)].comm) {
        if (comm.axis == axis) list.emplace_back(i, comm);
      }
    }
    return list;
  };
  const int first = coordinates.front();
  const auto expected = of_axis(first);
  for (const int rank : coordinates) {
    if (rank == first) continue;
    const auto own = of_axis(rank);
    for (std::size_t k = 0; k < std::max(expected.size(), own.size()); ++k) {
      if (k >= expected.size() || k >= own.size() || expected[k].second != own[k].second ||
          actions(first)[to_index(expected[k].first)].group !=
              actions(rank)[to_index(own[k].first)].group) {
        problems_.push_back(
            fmt::format("collective {} over {} is not the same on coordinates {} and {}", k + 1,
                        comm_axis_name(axis), first, rank));
        return false;
      }
      end_together(first, expected[k].first, rank, own[k].first);
    }
  }
  return true;
}

/// Takes what waits for nothing that is left, until nothing is (Kahn 1962).
void LineChecker::find_cycle() {
  std::vector<std::vector<int>> next(parent_.size());
  std::vector<int> waits(parent_.size());
  const auto add_edge = [&](int from, int to) {
    next[to_index(root(from))].push_back(root(to));
    ++waits[to_index(root(to))];
  };
  for (int rank = 0; rank < ranks(); ++rank) {
    std::array<int, kNumLanes> last;
    last.fill(kNothing);
    for (int run = 0; run < kRunsOfLine; ++run) {
      for (int i = 0; i < count(rank); ++i) {
        const Action& action = actions(rank)[to_index(i)];
        const int own = node(rank, run, i);
        int& before = last[static_cast<std::size_t>(action.lane)];
        if (before != kNothing) add_edge(before, own);
        before = own;
        for (const int other : action.after) add_edge(node(rank, run, other), own);
        if (run == 0) continue;
        for (const int other : action.after_previous) add_edge(node(rank, run - 1, other), own);
      }
    }
  }
  std::vector<int> ready;
  for (int n = 0; n < static_cast<int>(parent_.size()); ++n) {
    if (root(n) == n && waits[to_index(n)] == 0) ready.push_back(n);
  }
  while (!ready.empty()) {
    const int n = ready.back();
    ready.pop_back();
    for (const int after : next[to_index(n)]) {
      if (--waits[to_index(after)] == 0) ready.push_back(after);
    }
  }
  std::string stuck;
  for (int rank = 0; rank < ranks(); ++rank) {
    for (int n = 0; n < kRunsOfLine * count(rank); ++n) {
      if (waits[to_index(root(first_node_[to_index(rank)] + n))] == 0) continue;
      stuck += fmt::format("{}{}", stuck.empty() ? "" : ", ", name(rank, n % count(rank)));
      break;
    }
  }
  if (!stuck.empty()) problems_.push_back("the ranks wait for each other: " + stuck);
}

void LineChecker::run() {
  bool paired = true;
  for (int rank = 0; rank < ranks(); ++rank) {
    const int below = (rank + 1) % ranks(), above = (rank + ranks() - 1) % ranks();
    paired = pair_transfers(rank, Lane::send_down, Lane::receive_down, below) && paired;
    paired = pair_transfers(rank, Lane::send_up, Lane::receive_up, above) && paired;
  }
  std::vector<int> all(to_index(ranks()));
  std::iota(all.begin(), all.end(), 0);
  if (pair_collectives(CommAxis::world, all) &&
      pair_collectives(CommAxis::ends, {0, ranks() - 1}) && paired)
    find_cycle();
}

}  // namespace

void check_line(const std::vector<Program>& line, const ModelCost& cost,
                std::vector<std::string>& problems) {
  LineChecker(line, cost, problems).run();
}

}  // namespace dstrain
