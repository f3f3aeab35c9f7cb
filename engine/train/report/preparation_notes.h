#pragma once

#include <chrono>
#include <string>

#include "engine/base/rank_record.h"
#include "engine/data/text/progress_sink.h"
#include "engine/metrics/progress.h"

namespace dstrain {

/// Progress of the preparation of data, as notes that are not too many.
class PreparationNotes final : public ProgressSink {
 public:
  PreparationNotes(Progress& progress, RankRecordFile& record)
      : progress_(progress), record_(record) {}
  void note(const std::string& text) override { progress_.note(text); }
  void progress(double share, const std::string& text) override;

 private:
  using Clock = std::chrono::steady_clock;

  Progress& progress_;
  RankRecordFile& record_;
  Clock::time_point last_ = Clock::now();
};

}  // namespace dstrain
