#include <array>
#include <deque>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/program/schedules/schedule.h"

namespace dstrain {
namespace {

/// The visits of one rank, which has a chunk of the way down and one of the way back.
class RankVisits {
 public:
  RankVisits(int down, int back) : chunk_{down, back} {}

  void forward(std::size_t side) {
    list_.push_back({Pass::forward, chunk_.at(side), forwards_.at(side)++});
  }
  void backward(std::size_t side) {
    list_.push_back({Pass::backward, chunk_.at(side), backwards_.at(side)++});
  }
  void input(std::size_t side) {
    const int micro_batch = backwards_.at(side)++;
    list_.push_back({Pass::input, chunk_.at(side), micro_batch});
    waiting_.push_back({Pass::weight, chunk_.at(side), micro_batch});
  }
  /// The oldest one that waits.
  void weight() {
    list_.push_back(waiting_.front());
    waiting_.pop_front();
  }
  [[nodiscard]] bool waits() const { return !waiting_.empty(); }
  [[nodiscard]] std::vector<ChunkVisit> take() { return std::move(list_); }

 private:
  std::array<int, 2> chunk_, forwards_{}, backwards_{};
  std::vector<ChunkVisit> list_;
  std::deque<ChunkVisit> waiting_;
};

constexpr std::size_t kDown = 0, kBack = 1;

/// Before and in the steady state: forwards down until the first has come back, then all four.
void fill(RankVisits& visits, int after, int rank, int micro_batches, int ranks) {
  for (int i = 0; i < 2 * after; ++i) visits.forward(kDown);
  for (int i = 0; i < rank + 1; ++i) {
    visits.forward(kDown);
    visits.forward(kBack);
  }
  for (int i = 0; i < after; ++i) {
    visits.input(kBack);
    visits.weight();
    visits.forward(kBack);
  }
  for (int i = 0; i < micro_batches - 2 * ranks + rank + 1; ++i) {
    visits.forward(kDown);
    visits.backward(kBack);
    visits.forward(kBack);
    visits.backward(kDown);
  }
}

/// No forward down is left; in the end gradients of weights stand where the rank would wait.
void drain(RankVisits& visits, int after, int rank) {
  for (int i = 0; i < after; ++i) {
    visits.backward(kBack);
    visits.forward(kBack);
    visits.backward(kDown);
  }
  const int rounds = rank + 1, half = rounds / 2;
  for (int i = 0; i < rounds; ++i) {
    const bool split_down = i >= half, split_back = i > half || (i == half && rank % 2 == 1);
    split_back ? visits.input(kBack) : visits.backward(kBack);
    split_down ? visits.input(kDown) : visits.backward(kDown);
  }
  for (int i = 0; i < after; ++i) {
    visits.weight();
    visits.input(kDown);
  }
}

}  // namespace

PipelineSchedule dual_pipe_v(const Stages& stages, int micro_batches) {
  const int ranks = stages.ranks();
  DSTRAIN_CHECK(stages.rank == chunk_ranks(ranks, 2, ChunkOrder::v),
                "dual_pipe_v has two chunks per rank in a V");
  DSTRAIN_CHECK(micro_batches >= 2 * ranks, "dual_pipe_v has two micro-batches per rank or more");
  PipelineSchedule schedule;
  for (int r = 0; r < ranks; ++r) {
    const int after = ranks - 1 - r;
    RankVisits visits(r, 2 * ranks - 1 - r);
    fill(visits, after, r, micro_batches, ranks);
    drain(visits, after, r);
    while (visits.waits()) visits.weight();
    schedule.push_back(visits.take());
  }
  return schedule;
}

}  // namespace dstrain
