#include "engine/program/schedules/visit_times.h"

#include <algorithm>
#include <limits>

#include "engine/base/error.h"
#include "engine/base/index.h"

namespace dstrain {
namespace {

constexpr double kNotYet = std::numeric_limits<double>::infinity();

class VisitPlayer {
 public:
  VisitPlayer(const PipelineSchedule& schedule, const Stages& stages, const LineCost& cost);
  VisitTimes play();

 private:
  [[nodiscard]] double ready(int rank, const ChunkVisit& visit) const;
  [[nodiscard]] double arrival(int from, int to, double end) const {
    const bool moves = stages_.rank[to_index(from)] != stages_.rank[to_index(to)];
    return moves ? end + cost_.transfer : end;
  }
  void run(int rank, const ChunkVisit& visit, double start);
  [[nodiscard]] std::size_t at(const ChunkVisit& visit) const {
    return to_index(visit.micro_batch) * cost_.chunks.size() + to_index(visit.chunk);
  }

  const PipelineSchedule& schedule_;
  const Stages& stages_;
  const LineCost& cost_;
  std::vector<double> forward_, input_;  ///< [micro-batch, chunk]: ends
  std::vector<std::size_t> next_;        ///< by rank: place in its list
  std::vector<double> free_, live_;      ///< by rank
  VisitTimes times_;
};

VisitPlayer::VisitPlayer(const PipelineSchedule& schedule, const Stages& stages,
                         const LineCost& cost)
    : schedule_(schedule),
      stages_(stages),
      cost_(cost),
      next_(schedule.size()),
      free_(schedule.size()),
      live_(schedule.size()),
      times_{.start = std::vector<std::vector<double>>(schedule.size()),
             .end = std::vector<std::vector<double>>(schedule.size()),
             .held = std::vector<double>(schedule.size())} {
  int micro_batches = 0;
  for (const auto& visits : schedule) {
    for (const ChunkVisit& visit : visits)
      micro_batches = std::max(micro_batches, visit.micro_batch + 1);
  }
  forward_.resize(to_index(micro_batches) * cost.chunks.size(), kNotYet);
  input_ = forward_;
}

double VisitPlayer::ready(int rank, const ChunkVisit& visit) const {
  const int c = visit.chunk;
  double time = free_[to_index(rank)];
  switch (visit.pass) {
    case Pass::forward:
      if (c > 0) time = std::max(time, arrival(c - 1, c, forward_[at(visit) - 1]));
      break;
    case Pass::backward:
    case Pass::input:
      time = std::max(time, forward_[at(visit)]);
      if (c + 1 < stages_.chunks()) time = std::max(time, arrival(c + 1, c, input_[at(visit) + 1]));
      break;
    case Pass::weight:
      time = std::max(time, input_[at(visit)]);
      break;
  }
  return time;
}

void VisitPlayer::run(int rank, const ChunkVisit& visit, double start) {
  const ChunkCost& chunk = cost_.chunks[to_index(visit.chunk)];
  const std::size_t r = to_index(rank);
  double& free = free_[r];
  switch (visit.pass) {
    case Pass::forward:
      forward_[at(visit)] = free = start + chunk.forward;
      live_[r] += chunk.held;
      times_.held[r] = std::max(times_.held[r], live_[r]);
      break;
    case Pass::backward:
      input_[at(visit)] = free = start + chunk.input + chunk.weight;
      live_[r] -= chunk.held;
      break;
    case Pass::input:
      input_[at(visit)] = free = start + chunk.input;
      live_[r] -= chunk.held - chunk.later;
      break;
    case Pass::weight:
      free = start + chunk.weight;
      live_[r] -= chunk.later;
      break;
  }
  times_.start[r].push_back(start);
  times_.end[r].push_back(free);
  times_.makespan = std::max(times_.makespan, free);
}

VisitTimes VisitPlayer::play() {
  std::size_t left = 0;
  for (const auto& visits : schedule_) left += visits.size();
  for (bool moved = true; left > 0;) {
    DSTRAIN_CHECK(moved, "the ranks of a schedule wait for each other");
    moved = false;
    for (int r = 0; r < static_cast<int>(schedule_.size()); ++r) {
      const auto& visits = schedule_[to_index(r)];
      for (std::size_t& next = next_[to_index(r)]; next < visits.size(); ++next) {
        const double start = ready(r, visits[next]);
        if (start == kNotYet) break;
        run(r, visits[next], start);
        --left;
        moved = true;
      }
    }
  }
  return std::move(times_);
}

}  // namespace

double VisitTimes::lost(const LineCost& cost, int micro_batches) const {
  double work = 0;
  for (const ChunkCost& chunk : cost.chunks) work += chunk.all() * micro_batches;
  return 1 - work / (makespan * static_cast<double>(start.size()));
}

VisitTimes time_visits(const PipelineSchedule& schedule, const Stages& stages,
                       const LineCost& cost) {
  return VisitPlayer(schedule, stages, cost).play();
}

}  // namespace dstrain
