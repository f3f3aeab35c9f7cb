#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "engine/base/rank_record.h"
#include "engine/device/stream.h"

namespace dstrain {

/// Tells the rank record how long training steps take and what part of that is waiting for other
/// ranks; the launcher compares ranks by the rest. On the CPU every step, by the host's clock. On a
/// GPU one step in kSampled, by the device's: the compute lane waits where it waits for
/// communication, while an idle lane that the host fed too late counts as work.
class StepPace {
 public:
  static constexpr std::int64_t kSampled = 4;

  StepPace(c10::Device device, RankRecordFile& record);

  void begin(const Stream& compute);
  /// Later work of the compute lane starts after `event` of a communication lane.
  void wait(const Event& event, const Stream& compute);
  void end(const Stream& compute);
  /// Takes in what the device has finished; does not wait.
  void settle();

 private:
  enum class State { idle, measuring, ended };

  [[nodiscard]] Event timed() const { return Event(device_, Event::Timing::yes); }

  c10::Device device_;
  RankRecordFile& record_;
  State state_ = State::idle;
  std::int64_t steps_ = 0;
  Event begin_;
  Event end_;
  std::vector<std::pair<Event, Event>> waits_;  ///< made once, used again
  std::size_t num_waits_ = 0;                   ///< of the step
};

}  // namespace dstrain
