#include "engine/program/event_simulation.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/program/joint_actions.h"

namespace dstrain {
namespace {

/// After so many runs, each begins and ends as the one before it.
constexpr int kRuns = 3;
constexpr double kUnfinished = std::numeric_limits<double>::infinity();
constexpr auto kCompute = static_cast<std::size_t>(Lane::compute);

/// Runs of all programs of a line.
class Player {
 public:
  Player(std::span<const Program> line, const DemandOf& demand_of, double product_share);

  std::vector<SimulatedRun> play();

 private:
  struct LaneState {
    std::vector<int> actions;  ///< of one run, in order
    std::size_t next = 0;      ///< in it
    int run = 0;               ///< of the next one
    int action = -1;           ///< that runs; -1: none
    std::size_t blocked = 0;   ///< of its waits: the first that may not have ended
    Demand demand;             ///< of the one that runs
    double start_s = 0, end_s = 0, free_s = 0;
    double speed = 1;
    bool arrived = false;  ///< at the meeting of its next action
  };
  struct Rank {
    std::size_t index = 0;
    const Program* program = nullptr;
    std::array<LaneState, kNumLanes> lanes{};
    std::vector<int> meeting{};             ///< by action; -1: none
    std::vector<double> start_s{};          ///< of the last run
    std::vector<double> end_s{};            ///< of all runs
    std::array<double, kRuns> run_end_s{};  ///< of the compute lane
    SimulatedRun result{};

    [[nodiscard]] double ended(int run, int action) const {
      return end_s[to_index(run) * program->actions.size() + to_index(action)];
    }
  };
  /// Actions that start together.
  struct Meeting {
    int members = 0, arrived = 0, left = 0;
  };

  void add_rank(const Program& program);
  bool start_if_ready(Rank& rank, LaneState& lane);
  [[nodiscard]] bool waits_ended(const Rank& rank, LaneState& lane, const Action& action) const;
  [[nodiscard]] bool all_arrived(LaneState& lane, int meeting);
  void finish(Rank& rank, LaneState& lane);
  void count_waits(Rank& rank, const LaneState& lane, const Action& action);
  void share(Rank& rank);
  void start_all();
  [[nodiscard]] SimulatedRun report(Rank& rank) const;

  const DemandOf& demand_of_;
  double product_share_;
  std::vector<Rank> ranks_;
  std::vector<Meeting> meetings_;
  bool met_ = false;  ///< others that were waiting may start
  double now_ = 0;
};

Player::Player(std::span<const Program> line, const DemandOf& demand_of, double product_share)
    : demand_of_(demand_of), product_share_(product_share) {
  for (const Program& program : line) add_rank(program);
  for (const std::vector<Member>& members : joint_actions(line)) {
    for (const Member& member : members)
      ranks_[to_index(member.rank)].meeting[to_index(member.action)] =
          static_cast<int>(meetings_.size());
    meetings_.push_back({.members = static_cast<int>(members.size())});
  }
}

void Player::add_rank(const Program& program) {
  const std::size_t count = program.actions.size();
  Rank rank{.index = ranks_.size(),
            .program = &program,
            .meeting = std::vector<int>(count, -1),
            .start_s = std::vector<double>(count),
            .end_s = std::vector<double>(count * kRuns, kUnfinished)};
  for (std::size_t i = 0; i < count; ++i) {
    const Action& action = program.actions[i];
    for (const int other : action.after) {
      DSTRAIN_CHECK(other >= 0 && to_index(other) < i,
                    "an action waits for one that is listed after it");
    }
    rank.lanes.at(static_cast<std::size_t>(action.lane)).actions.push_back(static_cast<int>(i));
  }
  for (LaneState& lane : rank.lanes) {
    if (lane.actions.empty()) lane.run = kRuns;
  }
  ranks_.push_back(std::move(rank));
}

bool Player::waits_ended(const Rank& rank, LaneState& lane, const Action& action) const {
  const std::size_t own = action.after.size();
  const std::size_t all = own + (lane.run > 0 ? action.after_previous.size() : 0);
  for (; lane.blocked < all; ++lane.blocked) {
    const bool same_run = lane.blocked < own;
    const int other =
        same_run ? action.after[lane.blocked] : action.after_previous[lane.blocked - own];
    if (rank.ended(same_run ? lane.run : lane.run - 1, other) > now_) return false;
  }
  return true;
}

/// The lane's next action is ready; whether those that start with it are, too.
bool Player::all_arrived(LaneState& lane, int meeting) {
  if (meeting < 0) return true;
  Meeting& own = meetings_[to_index(meeting)];
  if (!lane.arrived) {
    lane.arrived = true;
    met_ = ++own.arrived == own.members || met_;
  }
  if (own.arrived < own.members) return false;
  lane.arrived = false;
  if (++own.left == own.members) own.arrived = own.left = 0;
  return true;
}

bool Player::start_if_ready(Rank& rank, LaneState& lane) {
  if (lane.action >= 0 || lane.run == kRuns) return false;
  const int index = lane.actions[lane.next];
  const Action& action = rank.program->actions[to_index(index)];
  if (!waits_ended(rank, lane, action)) return false;
  if (!all_arrived(lane, rank.meeting[to_index(index)])) return false;
  lane.blocked = 0;
  lane.action = index;
  lane.demand = demand_of_(rank.index, action);
  lane.start_s = now_;
  lane.end_s = now_ + lane.demand.total_s();
  lane.speed = 1;
  return true;
}

/// Between the end of the action before and the start of this one, which has ended now.
void Player::count_waits(Rank& rank, const LaneState& lane, const Action& action) {
  double ready = lane.free_s;  // but for communication
  double of_others = 0;        // sends, receives
  double of_collectives = 0;
  const auto wait = [&](int other, int run) {
    const Action& awaited = rank.program->actions[to_index(other)];
    const bool collective = exchanges_groups(awaited.lane);
    double& until = collective ? of_collectives : transfers(awaited.kind) ? of_others : ready;
    until = std::max(until, rank.ended(run, other));
  };
  for (const int other : action.after) wait(other, lane.run);
  for (const int other : action.after_previous) wait(other, lane.run - 1);
  const double total = lane.demand.total_s();
  const double comm = total > 0 ? lane.demand.comm_s / total : 0;
  const double took = lane.end_s - lane.start_s;
  rank.result.compute_s += (1 - comm) * took;
  // Waits for other ranks are none where there is one.
  const double waited = lane.start_s - ready;
  const double exposed =
      ranks_.size() == 1 ? waited : std::max(0.0, of_collectives - std::max(ready, of_others));
  rank.result.exposed_comm_s += exposed + comm * took;
  rank.result.bubble_s += waited - exposed;
}

void Player::finish(Rank& rank, LaneState& lane) {
  const Action& action = rank.program->actions[to_index(lane.action)];
  rank.end_s[to_index(lane.run) * rank.program->actions.size() + to_index(lane.action)] =
      lane.end_s;
  if (lane.run == kRuns - 1) {
    rank.start_s[to_index(lane.action)] = lane.start_s;
    if (action.lane == Lane::compute) count_waits(rank, lane, action);
  }
  lane.free_s = lane.end_s;
  lane.action = -1;
  if (++lane.next < lane.actions.size()) return;
  if (action.lane == Lane::compute) rank.run_end_s.at(to_index(lane.run)) = lane.end_s;
  lane.next = 0;
  ++lane.run;
}

/// Speeds of what runs now, and when each would end.
void Player::share(Rank& rank) {
  std::array<const Demand*, kNumLanes> running{};
  std::array<LaneState*, kNumLanes> of{};
  std::size_t count = 0;
  for (LaneState& lane : rank.lanes) {
    if (lane.action < 0 || lane.demand.total_s() <= 0) continue;
    of.at(count) = &lane;
    running.at(count++) = &lane.demand;
  }
  std::array<double, kNumLanes> speeds{};
  share_resources(std::span(running).first(count), product_share_, speeds);
  for (std::size_t i = 0; i < count; ++i) {
    LaneState& lane = *of.at(i);
    if (speeds.at(i) == lane.speed) continue;  // its end stays exact
    lane.end_s = now_ + (lane.end_s - now_) * lane.speed / speeds.at(i);
    lane.speed = speeds.at(i);
  }
}

/// Whatever can start now.
void Player::start_all() {
  bool changed = true;
  while (changed) {  // an action that takes no time may let others start
    changed = false;
    for (Rank& rank : ranks_) {
      for (LaneState& lane : rank.lanes) {
        while (start_if_ready(rank, lane)) {
          if (lane.end_s > now_) break;
          finish(rank, lane);
          changed = true;
        }
      }
    }
    changed = std::exchange(met_, false) || changed;
  }
}

SimulatedRun Player::report(Rank& rank) const {
  const double began = rank.run_end_s.at(kRuns - 2);
  SimulatedRun result = std::move(rank.result);
  result.step_s = rank.run_end_s.at(kRuns - 1) - began;
  result.start_s = std::move(rank.start_s);
  result.end_s.assign(rank.end_s.end() - static_cast<std::ptrdiff_t>(rank.program->actions.size()),
                      rank.end_s.end());
  for (double& time : result.start_s) time -= began;
  for (double& time : result.end_s) time -= began;
  return result;
}

std::vector<SimulatedRun> Player::play() {
  for (;;) {
    start_all();
    for (Rank& rank : ranks_) share(rank);
    double next = kUnfinished;
    for (const Rank& rank : ranks_) {
      for (const LaneState& lane : rank.lanes) {
        if (lane.action >= 0) next = std::min(next, lane.end_s);
      }
    }
    if (next == kUnfinished) break;
    now_ = next;
    for (Rank& rank : ranks_) {
      for (LaneState& lane : rank.lanes) {
        if (lane.action >= 0 && lane.end_s <= now_) finish(rank, lane);
      }
    }
  }
  std::vector<SimulatedRun> results;
  for (Rank& rank : ranks_) {
    DSTRAIN_CHECK(
        std::ranges::all_of(rank.lanes, [](const LaneState& l) { return l.run == kRuns; }),
        "actions wait for each other");
    results.push_back(report(rank));
  }
  return results;
}

}  // namespace

std::vector<SimulatedRun> simulate_runs(std::span<const Program> line, const DemandOf& demand_of,
                                double product_share) {
  return Player(line, demand_of, product_share).play();
}

}  // namespace dstrain
