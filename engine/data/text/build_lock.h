#pragma once

#include <filesystem>
#include <string>

#include "engine/base/unique_fd.h"
#include "engine/data/text/progress_sink.h"

namespace dstrain::text {

/// Held by the one process or thread that builds a file, while others wait. It goes with its
/// holder, however that ends.
class BuildLock {
 public:
  /// Waits for the lock file `path`, which stays for good. `progress` (may be null) receives who
  /// holds it and how far that one is. Without a lock where the file system has none: two then do
  /// the same work, and each renames a whole file into place.
  BuildLock(const std::filesystem::path& path, const std::string& what, ProgressSink* progress);
  ~BuildLock() = default;
  BuildLock(const BuildLock&) = delete;
  BuildLock& operator=(const BuildLock&) = delete;

  /// False where the file system has no locks.
  [[nodiscard]] bool held() const { return held_; }
  /// Shown to those who wait.
  void report(double share, const std::string& text) const;

 private:
  UniqueFd fd_;
  bool held_ = true;
};

}  // namespace dstrain::text
