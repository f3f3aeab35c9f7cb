#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace dstrain::importing {

/// A number as Python's float() reads it: "0.", ".5", "1.e-4", "+1e-4", "1_000". Nothing for what
/// it refuses, for NaN and infinities, and for what is beyond double.
[[nodiscard]] std::optional<double> python_real(std::string_view text);
/// A number as Python's int() reads it; at most 15 digits.
[[nodiscard]] std::optional<long> python_whole(std::string_view text);
/// yes, true, t, y, 1 and no, false, f, n, 0 in any case, as HfArgumentParser reads them.
[[nodiscard]] std::optional<bool> python_flag(std::string_view text);

}  // namespace dstrain::importing
