#pragma once

#include <string>
#include <string_view>
#include <tuple>

namespace dstrain::launcher {

/// How long a rank may make no progress before it counts as hung.
struct HangLimit {
  enum class Kind {
    learned,  ///< from the plan and the pauses of this run
    fixed,
    off,  ///< a rank never counts as hung
  };
  Kind kind = Kind::learned;
  double seconds = 0;  ///< above 0; of Kind::fixed

  bool operator==(const HangLimit&) const = default;
  static auto fields(auto& m) { return std::tie(m.kind, m.seconds); }
};
/// For a reader of the wire.
constexpr HangLimit::Kind largest(HangLimit::Kind /*type*/) { return HangLimit::Kind::off; }

/// "auto", "off" or seconds. Error{usage} for anything else.
[[nodiscard]] HangLimit hang_limit_from(std::string_view text);
/// The reverse.
[[nodiscard]] std::string to_text(const HangLimit& limit);

}  // namespace dstrain::launcher
