#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dstrain::launcher {

/// Output of several ranks on its way to the console: equal lines that come close together become
/// one line of all those ranks. Lines of one rank keep their order. As long as one rank speaks
/// nothing is delayed, unless `several` are known to.
class LineFolder {
 public:
  using Time = std::chrono::steady_clock::time_point;
  /// How long a line waits for the same line of other ranks.
  static constexpr std::chrono::milliseconds kWait{200};
  struct Line {
    std::string prefix;  ///< "[rank 0] " or "[ranks 0-3] "
    std::string text;
  };

  explicit LineFolder(bool several) : several_(several) {}

  /// `lines`: whole lines of `rank`, each with its newline.
  void add(int rank, std::string_view lines, Time now);
  /// What is due at `now`, oldest first; everything if `all`.
  [[nodiscard]] std::vector<Line> take(Time now, bool all);
  [[nodiscard]] std::optional<Time> deadline() const;

 private:
  struct Entry {
    std::string text;
    std::vector<int> ranks;
    Time time;
  };
  std::vector<Entry> entries_;
  int first_rank_ = -1;
  bool several_;  ///< more than one rank has spoken
};

}  // namespace dstrain::launcher
