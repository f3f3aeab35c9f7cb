#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "engine/base/units.h"

namespace dstrain {

/// One optimizer step as a person follows it.
struct StepLine {
  std::int64_t step = 0;  ///< steps done
  std::int64_t total_steps = 0;
  std::int64_t epoch = 0;  ///< from 1
  std::int64_t epochs = 0;
  double loss = 0;
  double accuracy = 0;
  double gradient_norm = 0;
  double rate = 0;             ///< images or tokens per second, all ranks
  const char* unit = "img/s";  ///< of the rate
  double mfu = 0;              ///< model FLOP utilisation, 0 to 1; 0: unknown
  double step_s = 0;
  Bytes memory_bytes = 0;
  double remaining_s = 0;
};
/// "21.4%", or "n/a" of a share that is not known.
[[nodiscard]] std::string format_share(double share, int digits);

/// "step 120/5000  epoch 1/3  loss 3.2114  acc 21.4%  18.3k img/s  left 3m 07s  12 ms  mem 61.00
/// GiB  grad 0.84"
[[nodiscard]] std::string format_step(const StepLine& line);

/// Tells a person how the run goes: through the launcher's report pipe where there is one (the
/// launcher then draws the live line), else as plain lines on standard output, steps at most every
/// two seconds. Silent on ranks other than 0. Error{checkpoint} when standard output does not take
/// the first line.
class Progress {
 public:
  explicit Progress(int rank);
  void step(const StepLine& line);
  void note(const std::string& text);

 private:
  void write(const std::string& text);

  bool active_;
  int report_fd_;  ///< -1: plain lines
  bool printed_ = false;
  std::chrono::steady_clock::time_point last_step_line_{};
};

}  // namespace dstrain
