#include <algorithm>
#include <limits>
#include <optional>

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/program/schedules/schedule.h"

namespace dstrain {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::infinity();

class ListScheduler {
 public:
  ListScheduler(const Stages& stages, int micro_batches, const LineCost& cost);
  PipelineSchedule run();

 private:
  struct Candidate {
    double start = 0;
    ChunkVisit visit;
  };
  [[nodiscard]] std::optional<Candidate> pick(int rank) const;
  /// When what a visit of chunk `to` reads from one of chunk `from`, which ends at `end`, is there.
  [[nodiscard]] double arrival(int from, int to, double end) const {
    const bool moves = stages_.rank[to_index(from)] != stages_.rank[to_index(to)];
    return moves ? end + cost_.transfer : end;
  }
  [[nodiscard]] double ended(const std::vector<std::vector<double>>& ends, int chunk,
                             int micro_batch) const {
    const auto& list = ends[to_index(chunk)];
    return to_index(micro_batch) < list.size() ? list[to_index(micro_batch)] : kUnknown;
  }
  void list(int rank, const Candidate& next);

  const Stages& stages_;
  const int micro_batches_;
  const LineCost& cost_;
  PipelineSchedule schedule_;
  std::vector<std::vector<int>> chunks_;     ///< by rank
  std::vector<double> reserve_;              ///< by chunk: memory of the rank's later ones
  std::vector<double> limit_, live_, free_;  ///< by rank
  std::vector<std::vector<double>> forward_end_, input_end_;  ///< by chunk and micro-batch
  std::vector<int> weights_;                                  ///< by chunk: listed
};

ListScheduler::ListScheduler(const Stages& stages, int micro_batches, const LineCost& cost)
    : stages_(stages),
      micro_batches_(micro_batches),
      cost_(cost),
      schedule_(to_index(stages.ranks())),
      chunks_(schedule_.size()),
      reserve_(cost.chunks.size()),
      limit_(schedule_.size()),
      live_(schedule_.size()),
      free_(schedule_.size()),
      forward_end_(cost.chunks.size()),
      input_end_(cost.chunks.size()),
      weights_(cost.chunks.size()) {
  DSTRAIN_CHECK(to_index(stages.chunks()) == cost.chunks.size(), "costs of other chunks");
  for (int c = stages.chunks() - 1; c >= 0; --c) {
    const std::size_t rank = to_index(stages.rank[to_index(c)]);
    chunks_[rank].push_back(c);
    reserve_[to_index(c)] = limit_[rank];
    limit_[rank] += cost.chunks[to_index(c)].held;  // what one micro-batch needs
  }
  for (std::size_t r = 0; r < limit_.size(); ++r)
    limit_[r] = cost.limits.empty() ? kUnknown : std::max(limit_[r], cost.limits.at(r));
}

/// What the rank lists next, if it can say so yet.
std::optional<ListScheduler::Candidate> ListScheduler::pick(int rank) const {
  const double free = free_[to_index(rank)];
  std::optional<Candidate> best;
  const auto offer = [&](const Candidate& other) {
    const auto before = [](const Candidate& a, const Candidate& b) {
      if (a.start != b.start) return a.start < b.start;
      if (a.visit.pass != b.visit.pass) return a.visit.pass != Pass::forward;
      if (a.visit.micro_batch != b.visit.micro_batch)
        return a.visit.micro_batch < b.visit.micro_batch;
      return a.visit.chunk > b.visit.chunk;
    };
    if (other.start < kUnknown && (!best || before(other, *best))) best = other;
  };
  std::optional<ChunkVisit> weight;
  for (const int c : chunks_[to_index(rank)]) {
    const ChunkCost& chunk = cost_.chunks[to_index(c)];
    const int input = static_cast<int>(input_end_[to_index(c)].size()),
              forward = static_cast<int>(forward_end_[to_index(c)].size()),
              weights = weights_[to_index(c)];
    if (input < forward) {
      double ready = ended(forward_end_, c, input);
      if (c + 1 < stages_.chunks())
        ready = std::max(ready, arrival(c + 1, c, ended(input_end_, c + 1, input)));
      offer({std::max(free, ready), {chunk.weight > 0 ? Pass::input : Pass::backward, c, input}});
    }
    const double needed = live_[to_index(rank)] + chunk.held + reserve_[to_index(c)];
    constexpr double kRounding = 1 + 1e-9;
    if (forward < micro_batches_ && needed <= limit_[to_index(rank)] * kRounding) {
      const double ready = c == 0 ? 0 : arrival(c - 1, c, ended(forward_end_, c - 1, forward));
      offer({std::max(free, ready), {Pass::forward, c, forward}});
    }
    const bool waits = chunk.weight > 0 && weights < input;
    if (waits && (!weight || weights < weight->micro_batch)) weight = {Pass::weight, c, weights};
  }
  if (weight && (!best || best->start > free)) return Candidate{free, *weight};
  return best;
}

void ListScheduler::list(int rank, const Candidate& next) {
  const auto& [pass, c, micro_batch] = next.visit;
  const ChunkCost& chunk = cost_.chunks[to_index(c)];
  schedule_[to_index(rank)].push_back(next.visit);
  double& free = free_[to_index(rank)];
  double& live = live_[to_index(rank)];
  switch (pass) {
    case Pass::forward:
      free = next.start + chunk.forward;
      live += chunk.held;
      forward_end_[to_index(c)].push_back(free);
      break;
    case Pass::backward:
    case Pass::input:
      free = next.start + chunk.input;
      live -= pass == Pass::input ? chunk.held - chunk.later : chunk.held;
      input_end_[to_index(c)].push_back(free);
      break;
    case Pass::weight:
      free = next.start + chunk.weight;
      live -= chunk.later;
      ++weights_[to_index(c)];
      break;
  }
}

PipelineSchedule ListScheduler::run() {
  for (;;) {
    std::optional<Candidate> first;
    int of = -1;
    for (int r = 0; r < stages_.ranks(); ++r) {
      const auto next = pick(r);
      if (!next || (first && next->start >= first->start)) continue;
      first = next;
      of = r;
    }
    if (!first) break;
    list(of, *first);
  }
  for (const auto& ends : input_end_)
    DSTRAIN_CHECK(ends.size() == to_index(micro_batches_), "a schedule that does not end");
  return std::move(schedule_);
}

}  // namespace

PipelineSchedule zero_bubble(const Stages& stages, int micro_batches, const LineCost& cost) {
  return ListScheduler(stages, micro_batches, cost).run();
}

}  // namespace dstrain
