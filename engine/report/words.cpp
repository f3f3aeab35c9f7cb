#include "engine/report/words.h"

#include <fmt/format.h>

#include <cmath>

#include "engine/base/units.h"

namespace dstrain::report {
namespace {

/// Three digits of what counts, whole above 100.
std::string three_digits(double value) {
  const double size = std::abs(value);
  return fmt::format("{:.{}f}", value, size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2);
}

}  // namespace

std::string time_words(double seconds) {
  if (!std::isfinite(seconds)) return "-";
  const double size = std::abs(seconds);
  if (size >= 120) return format_duration(seconds);
  if (size >= 1) return three_digits(seconds) + " s";
  if (size >= 1e-3) return three_digits(seconds * 1e3) + " ms";
  if (size == 0) return "0";
  return three_digits(seconds * 1e6) + " us";
}

std::string share_words(double share) {
  if (!std::isfinite(share)) return "-";
  return fmt::format("{:.{}f} %", share * 100, std::abs(share) < 0.0995 ? 1 : 0);
}

std::string rate_words(double per_second) {
  if (!std::isfinite(per_second)) return "-";
  if (std::abs(per_second) < 999.5) return three_digits(per_second);
  if (std::abs(per_second) > 1e15) return fmt::format("{:.3g}", per_second);
  std::string digits = fmt::format("{:.0f}", per_second);
  const std::size_t sign = per_second < 0 ? 1 : 0;
  for (std::size_t i = digits.size(); i > 3 + sign;) digits.insert(i -= 3, ",");
  return digits;
}

std::string bytes_words(double bytes) {
  if (!std::isfinite(bytes) || std::abs(bytes) > 9e18) return "-";
  return format_bytes(static_cast<Bytes>(bytes));
}

std::string byte_rate_words(double per_second) {
  if (!std::isfinite(per_second)) return "-";
  const double size = std::abs(per_second);
  if (size >= 1e9) return three_digits(per_second * 1e-9) + " GB/s";
  if (size >= 1e6) return three_digits(per_second * 1e-6) + " MB/s";
  return three_digits(per_second * 1e-3) + " kB/s";
}

std::string number_words(double value) {
  return std::isfinite(value) ? fmt::format("{:.4g}", value) : "-";
}

std::string ratio_words(const Estimate& ratio) {
  if (!std::isfinite(ratio.value)) return "-";
  if (!ratio.interval) return fmt::format("{:.2f}x", ratio.value);
  return fmt::format("{:.2f}x [{:.2f}, {:.2f}]", ratio.value, ratio.interval->low,
                     ratio.interval->high);
}

}  // namespace dstrain::report
