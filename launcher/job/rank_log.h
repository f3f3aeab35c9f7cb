#pragma once

#include <deque>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/redact.h"
#include "launcher/base/fd.h"

namespace dstrain::launcher {

/// Standard output and error of one rank: in full into its file, the last lines in memory for the
/// report, but for C++ backtraces, which say less than the words before them.
class RankLog {
 public:
  /// Appends to `path`, so that a resumed run keeps its history. `redactor` outlives the log.
  RankLog(const std::filesystem::path& path, const Redactor& redactor);

  /// Takes bytes as they came and returns the whole lines that they complete, redacted, as they
  /// went into the file.
  std::string append(std::string_view bytes);
  /// The rank is gone: a last line without its newline counts as well.
  std::string finish();

  [[nodiscard]] std::vector<std::string> last_lines() const { return {tail_.begin(), tail_.end()}; }
  /// Why the file could not be written, or empty. The rank goes on without its log.
  [[nodiscard]] const std::string& error() const { return error_; }

 private:
  std::string commit(std::string lines);

  const Redactor& redactor_;
  std::filesystem::path path_;
  UniqueFd file_;
  std::string partial_;
  std::deque<std::string> tail_;
  std::string error_;
};

}  // namespace dstrain::launcher
