#pragma once

#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace dstrain::launcher {

/// Ranks whose output is shown on the console.
struct Tee {
  bool all = false;
  std::vector<int> ranks = {0};  ///< unless `all`

  [[nodiscard]] bool shows(int rank) const;
  /// Whether it may show more than one rank of several.
  [[nodiscard]] bool shows_several() const { return all || ranks.size() > 1; }

  bool operator==(const Tee&) const = default;
  static auto fields(auto& m) { return std::tie(m.all, m.ranks); }
};

/// "all", "none" or "0,8". Error{usage} for anything else.
[[nodiscard]] Tee tee_from(std::string_view text);
/// The reverse.
[[nodiscard]] std::string to_text(const Tee& tee);

}  // namespace dstrain::launcher
