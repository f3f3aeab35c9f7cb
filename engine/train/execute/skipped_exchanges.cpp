#include "engine/train/execute/skipped_exchanges.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <string_view>

#include "engine/base/error.h"

namespace dstrain {
namespace {
constexpr const char* kVariable = "DSTRAIN_SKIP_EXCHANGES";
}  // namespace

SkippedExchanges::SkippedExchanges(const RunConfig& run) {
  const char* value = std::getenv(kVariable);
  if (value == nullptr) return;
  const std::string_view text = value;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), first_);
  if (error != std::errc() || end != text.data() + text.size() || first_ < 1) {
    throw Error(ErrorKind::usage, fmt::format("{}: '{}' is no step", kVariable, text),
                "name the first step whose exchanges are skipped, such as 20, or unset it");
  }
  if (!run.checkpoint.every.is_never()) {
    throw Error(
        ErrorKind::usage,
        fmt::format("{} is set, which is for measurements: ranks stop exchanging gradients, "
                    "and this run would write checkpoints of what they train",
                    kVariable),
        "unset it, or set run.checkpoint.every: never");
  }
  skips_ = std::make_shared<std::atomic<bool>>(false);
}

std::shared_ptr<const std::atomic<bool>> SkippedExchanges::flag(const CommChannel& channel) const {
  return exchanges_groups(channel.lane) ? skips_ : nullptr;
}

void SkippedExchanges::enter(std::int64_t step) {
  if (skips_) *skips_ = step + 1 >= first_;
}

std::string SkippedExchanges::note() const {
  if (!skips_) return {};
  return fmt::format(
      "{}: from step {} on ranks exchange no parameters and no gradients; what they train is of no "
      "use",
      kVariable, first_);
}

}  // namespace dstrain
