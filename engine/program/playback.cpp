#include "engine/program/playback.h"

#include <algorithm>
#include <array>
#include <limits>

#include "engine/base/error.h"
#include "engine/base/index.h"

namespace dstrain {
namespace {

/// After so many runs, each begins and ends as the one before it.
constexpr int kRuns = 3;
constexpr double kUnfinished = std::numeric_limits<double>::infinity();
constexpr auto kCompute = static_cast<std::size_t>(Lane::compute);

class Player {
 public:
  Player(const Program& program, const std::function<Demand(const Action&)>& demand_of,
         double product_share);

  Playback play();

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
  };

  bool start_if_ready(LaneState& lane);
  [[nodiscard]] bool waits_ended(LaneState& lane, const Action& action) const;
  void finish(LaneState& lane);
  void share();
  [[nodiscard]] double ended(int run, int action) const {
    return end_s_[to_index(run) * program_.actions.size() + to_index(action)];
  }

  const Program& program_;
  const std::function<Demand(const Action&)>& demand_of_;
  double product_share_;
  std::array<LaneState, kNumLanes> lanes_;
  std::vector<double> start_s_;            ///< of the last run
  std::vector<double> end_s_;              ///< of all runs
  std::array<double, kRuns> run_end_s_{};  ///< of the compute lane
  double now_ = 0;
  Playback result_;
};

Player::Player(const Program& program, const std::function<Demand(const Action&)>& demand_of,
               double product_share)
    : program_(program),
      demand_of_(demand_of),
      product_share_(product_share),
      start_s_(program.actions.size()),
      end_s_(program.actions.size() * kRuns, kUnfinished) {
  for (std::size_t i = 0; i < program.actions.size(); ++i) {
    const Action& action = program.actions[i];
    for (const int other : action.after) {
      DSTRAIN_CHECK(other >= 0 && to_index(other) < i,
                    "an action waits for one that is listed after it");
    }
    lanes_.at(static_cast<std::size_t>(action.lane)).actions.push_back(static_cast<int>(i));
  }
  for (LaneState& lane : lanes_) {
    if (lane.actions.empty()) lane.run = kRuns;
  }
}

bool Player::waits_ended(LaneState& lane, const Action& action) const {
  const std::size_t own = action.after.size();
  const std::size_t all = own + (lane.run > 0 ? action.after_previous.size() : 0);
  for (; lane.blocked < all; ++lane.blocked) {
    const bool same_run = lane.blocked < own;
    const int other =
        same_run ? action.after[lane.blocked] : action.after_previous[lane.blocked - own];
    if (ended(same_run ? lane.run : lane.run - 1, other) > now_) return false;
  }
  return true;
}

bool Player::start_if_ready(LaneState& lane) {
  if (lane.action >= 0 || lane.run == kRuns) return false;
  const int index = lane.actions[lane.next];
  const Action& action = program_.actions[to_index(index)];
  if (!waits_ended(lane, action)) return false;
  lane.blocked = 0;
  lane.action = index;
  lane.demand = demand_of_(action);
  lane.start_s = now_;
  lane.end_s = now_ + lane.demand.total_s();
  lane.speed = 1;
  return true;
}

void Player::finish(LaneState& lane) {
  const Action& action = program_.actions[to_index(lane.action)];
  end_s_[to_index(lane.run) * program_.actions.size() + to_index(lane.action)] = lane.end_s;
  if (lane.run == kRuns - 1) {
    start_s_[to_index(lane.action)] = lane.start_s;
    if (action.lane == Lane::compute) {
      double ready = lane.free_s;  // but for communication
      const auto wait = [&](int other, int run) {
        const Lane of = program_.actions[to_index(other)].lane;
        if (of != Lane::gather && of != Lane::reduce) ready = std::max(ready, ended(run, other));
      };
      for (const int other : action.after) wait(other, lane.run);
      for (const int other : action.after_previous) wait(other, lane.run - 1);
      const double total = lane.demand.total_s();
      const double comm = total > 0 ? lane.demand.comm_s / total : 0;
      const double took = lane.end_s - lane.start_s;
      result_.compute_s += (1 - comm) * took;
      result_.exposed_comm_s += lane.start_s - ready + comm * took;
    }
  }
  lane.free_s = lane.end_s;
  lane.action = -1;
  if (++lane.next < lane.actions.size()) return;
  run_end_s_.at(to_index(lane.run)) =
      action.lane == Lane::compute ? lane.end_s : run_end_s_.at(to_index(lane.run));
  lane.next = 0;
  ++lane.run;
}

/// Speeds of what runs now, and when each would end.
void Player::share() {
  std::array<const Demand*, kNumLanes> running{};
  std::array<LaneState*, kNumLanes> of{};
  std::size_t count = 0;
  for (LaneState& lane : lanes_) {
    if (lane.action < 0 || lane.demand.total_s() <= 0) continue;
    of.at(count) = &lane;
    running.at(count++) = &lane.demand;
  }
  std::array<double, kNumLanes> speeds{};
  share_media(std::span(running).first(count), product_share_, speeds);
  for (std::size_t i = 0; i < count; ++i) {
    LaneState& lane = *of.at(i);
    if (speeds.at(i) == lane.speed) continue;  // its end stays exact
    lane.end_s = now_ + (lane.end_s - now_) * lane.speed / speeds.at(i);
    lane.speed = speeds.at(i);
  }
}

Playback Player::play() {
  for (;;) {
    bool changed = true;
    while (changed) {  // an action that takes no time may let others start
      changed = false;
      for (LaneState& lane : lanes_) {
        while (start_if_ready(lane)) {
          if (lane.end_s > now_) break;
          finish(lane);
          changed = true;
        }
      }
    }
    share();
    double next = kUnfinished;
    for (const LaneState& lane : lanes_) {
      if (lane.action >= 0) next = std::min(next, lane.end_s);
    }
    if (next == kUnfinished) break;
    now_ = next;
    for (LaneState& lane : lanes_) {
      if (lane.action >= 0 && lane.end_s <= now_) finish(lane);
    }
  }
  DSTRAIN_CHECK(std::ranges::all_of(lanes_, [](const LaneState& l) { return l.run == kRuns; }),
                "actions wait for each other");
  const double began = run_end_s_.at(kRuns - 2);
  result_.step_s = run_end_s_.at(kRuns - 1) - began;
  result_.start_s = std::move(start_s_);
  result_.end_s.assign(end_s_.end() - static_cast<std::ptrdiff_t>(program_.actions.size()),
                       end_s_.end());
  for (double& time : result_.start_s) time -= began;
  for (double& time : result_.end_s) time -= began;
  return std::move(result_);
}

}  // namespace

Playback play_runs(const Program& program, const std::function<Demand(const Action&)>& demand_of,
                   double product_share) {
  return Player(program, demand_of, product_share).play();
}

}  // namespace dstrain
