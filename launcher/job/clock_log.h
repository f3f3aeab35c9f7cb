#pragma once

#include <filesystem>
#include <string_view>
#include <utility>

#include "engine/base/append_file.h"
#include "launcher/base/console.h"
#include "launcher/job/clock_offset.h"

namespace dstrain::launcher {

/// clocks.jsonl of a run: how far the clocks of its hosts are from the controller's, for readers
/// that put their times side by side (engine/trace/README.md). A file that is not writable is given
/// up with one warning; the job goes on.
class ClockLog {
 public:
  ClockLog(std::filesystem::path path, Console& console)
      : path_(std::move(path)), console_(console) {}

  /// `host`: its own name for itself, which its traces say.
  void add(std::string_view host, const ClockReading& reading);

 private:
  std::filesystem::path path_;  ///< empty: given up
  Console& console_;
  AppendFile file_;
  bool open_ = false;
};

}  // namespace dstrain::launcher
