#pragma once

#include <c10/core/Device.h>

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "engine/base/rank_record.h"
#include "engine/device/stream.h"
#include "engine/program/phases.h"
#include "engine/program/program.h"

namespace dstrain {

/// Where one training step of this rank spent its time, in seconds by the device's clock, on the
/// CPU by the host's.
struct StepTimes {
  /// Times of the compute lane, its waits included; they add up to the step.
  std::array<double, kNumPhases> phase_s{};
  /// The compute lane stood still for that lane. On the CPU, where lanes run one after the other:
  /// all of the lane's time.
  std::array<double, kNumLanes> wait_s{};
  /// Waits for communication, of these, that lie inside each phase.
  std::array<double, kNumPhases> waits_in_s{};
  /// Times of the other lanes' actions, from begin to end, added.
  std::array<double, kNumLanes> lane_s{};
  /// Waits for lanes that communicate, and the collectives of the compute lane itself.
  double exposed_comm_s = 0;

  [[nodiscard]] double of(Phase phase) const { return phase_s[static_cast<std::size_t>(phase)]; }
  [[nodiscard]] double waits_in(Phase phase) const {
    return waits_in_s[static_cast<std::size_t>(phase)];
  }
  [[nodiscard]] double wait(Lane lane) const { return wait_s[static_cast<std::size_t>(lane)]; }
};

/// One step in so many is timed so that its events cost at most 0.4 % of the steps' time: a timed
/// event holds up its stream for about 3.2 us (measured on an H100). `step_s`: predicted; the same
/// on all ranks, so that they time the same steps.
[[nodiscard]] int timing_interval(const Program& training, double step_s);

/// Takes the times of training steps, and tells the rank record how long they take and what part
/// of that is waiting for other ranks, which the launcher compares. On the CPU every step, on a GPU
/// one in `every`: its streams get events between the actions, which are read when the step is
/// over.
class StepTimer {
 public:
  /// `every` 0: no times, and the rank record gets CPU steps only.
  StepTimer(c10::Device device, int every, RankRecordFile& record);

  void begin(std::int64_t step, const Stream& compute);
  /// What the compute lane gets from here on belongs to `phase`.
  void enter(Phase phase, const Stream& compute);
  /// Later work of the compute lane starts after `event` of an action of `lane`, which
  /// communicates or not.
  void wait(const Event& event, Lane lane, bool communicates, const Stream& compute);
  /// Around an action of another lane, without its waits, and around a collective of the compute
  /// lane.
  void begin_action(Lane lane, const Stream& stream);
  void end_action(Lane lane, bool communicates, const Stream& stream);
  void end(const Stream& compute);
  /// The times of `step`, nothing where it was not timed. The device has finished the step but for
  /// actions that outlast it, which this waits for.
  [[nodiscard]] std::optional<StepTimes> take(std::int64_t step);

 private:
  /// A span between two events of a step.
  struct Span {
    enum class Kind { phase, wait, action } kind = Kind::phase;
    std::size_t index = 0;  ///< of the phase or lane
    std::size_t phase = 0;  ///< in which a wait or an action was enqueued
    bool communicates = false;
    std::size_t begin = 0;  ///< of `events`
    std::size_t end = 0;
  };
  struct Step {
    std::int64_t step = -1;
    std::vector<Event> events;  ///< made once, used again
    std::size_t used = 0;
    std::vector<Span> spans;
  };
  std::size_t mark(const Stream& stream);
  [[nodiscard]] StepTimes sum(const Step& step) const;

  c10::Device device_;
  int every_;
  RankRecordFile& record_;
  std::int64_t steps_ = 0;
  std::deque<Step> under_way_;  ///< timed steps, the newest last
  std::vector<Step> free_;
  Step* present_ = nullptr;    ///< being enqueued, if timed
  std::optional<Span> phase_;  ///< open
  std::optional<std::size_t> action_begin_;
};

}  // namespace dstrain
