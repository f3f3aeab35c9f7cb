#pragma once

#include <memory>
#include <string>

#include "engine/metrics/metrics.h"

namespace dstrain {

/// "21.4%", or "n/a" of a share that is not known.
[[nodiscard]] std::string format_share(double share, int digits);

/// "step 120/5000  epoch 1/3  loss 3.2114  acc 21.4%  18.3k img/s  left 3m 07s  12 ms  mem 61.00
/// GiB  grad 0.84". Rates and times are smoothed.
[[nodiscard]] std::string format_step(const StepMetrics& metrics);

/// Tells a person how the run goes.
class Progress : public MetricsSink {
 public:
  [[nodiscard]] std::string_view name() const override { return "the progress"; }
  virtual void note(const std::string& text) = 0;
  /// No step follows; notes about the whole do.
  virtual void end() {}
};

/// Through the launcher's report pipe where there is one (the launcher then draws the live line),
/// else as plain lines on standard output, steps at most every two seconds. Silent on ranks other
/// than 0. The lines throw Error{checkpoint} when standard output does not take the first one.
[[nodiscard]] std::unique_ptr<Progress> make_progress(int rank);

}  // namespace dstrain
