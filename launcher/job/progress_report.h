#pragma once

#include <cstdint>
#include <string>

#include "launcher/base/console.h"

namespace dstrain::launcher {

/// Lines of rank 0's report pipe (launcher/README.md): shown, and their figures remembered.
class ProgressReport {
 public:
  void take(const std::string& line, Console& console, Console::Time now);

  [[nodiscard]] std::int64_t step() const { return step_; }
  [[nodiscard]] std::int64_t memory_bytes() const { return memory_bytes_; }

 private:
  std::int64_t step_ = -1;         ///< highest
  std::int64_t memory_bytes_ = 0;  ///< highest; 0: never told
};

}  // namespace dstrain::launcher
