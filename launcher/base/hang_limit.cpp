#include "launcher/base/hang_limit.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "engine/base/error.h"

namespace dstrain::launcher {

HangLimit hang_limit_from(std::string_view text) {
  if (text == "auto") return {.kind = HangLimit::Kind::learned};
  if (text == "off") return {.kind = HangLimit::Kind::off};
  HangLimit limit{.kind = HangLimit::Kind::fixed};
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, limit.seconds);
  if (error != std::errc{} || rest != end || !std::isfinite(limit.seconds) || limit.seconds <= 0) {
    throw Error(ErrorKind::usage,
                fmt::format("'{}': use auto, off or a number of seconds above 0", text));
  }
  return limit;
}

std::string to_text(const HangLimit& limit) {
  switch (limit.kind) {
    case HangLimit::Kind::learned:
      return "auto";
    case HangLimit::Kind::fixed:
      return fmt::format("{}", limit.seconds);
    case HangLimit::Kind::off:
      return "off";
  }
  return {};
}

}  // namespace dstrain::launcher
