#pragma once

#include <cstddef>
#include <deque>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/redact.h"
#include "launcher/base/background_writes.h"
#include "launcher/base/fd.h"

namespace dstrain::launcher {

/// Standard output and error of one rank: in full into its file, the last lines in memory for the
/// report, but for C++ backtraces, which say less than the words before them. `writer` writes, so
/// that an agent whose disk is stuck still answers.
class RankLog {
 public:
  /// Above this much that is not written yet nothing more should be taken from the rank.
  static constexpr std::size_t kMaxWaiting = std::size_t{4} << 20;

  /// Appends to `path`, so that a resumed run keeps its history. `redactor` and `writer` outlive
  /// the log; the latter must drop nothing.
  RankLog(const std::filesystem::path& path, const Redactor& redactor, BackgroundQueue& writer);

  /// Takes bytes as they came and returns the whole lines that they complete, redacted, as they
  /// go into the file.
  std::string append(std::string_view bytes);
  /// The rank is gone: a last line without its newline counts as well.
  std::string finish();

  [[nodiscard]] std::vector<std::string> last_lines() const { return {tail_.begin(), tail_.end()}; }
  /// Why the file could not be written, or empty. The rank goes on without its log.
  [[nodiscard]] std::string error() const { return writes_.error(); }
  /// Bytes that are not in the file yet.
  [[nodiscard]] std::size_t waiting() const { return writes_.waiting(); }

 private:
  std::string commit(std::string lines);

  /// What the thread that writes has.
  struct File {
    std::filesystem::path path;
    UniqueFd fd = {};
  };

  const Redactor* redactor_;
  std::shared_ptr<File> file_;
  BackgroundWrites writes_;
  std::string partial_;
  std::deque<std::string> tail_;
};

}  // namespace dstrain::launcher
