#pragma once

#include <string>

namespace dstrain {

/// Receives the progress of long work. Called by one thread at a time.
class ProgressSink {
 public:
  virtual ~ProgressSink() = default;
  /// A line that stays.
  virtual void note(const std::string& text) = 0;
  /// How far it is, `share` in [0, 1]; `text` says it whole and replaces what the last call said.
  virtual void progress(double share, const std::string& text) = 0;
};

}  // namespace dstrain
