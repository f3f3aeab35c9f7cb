#pragma once

#include <string>
#include <string_view>

#include "engine/report/statistics.h"

namespace dstrain::report {

// Numbers as people read them; "-" for what is not known, in every format of a report.

[[nodiscard]] std::string time_words(double seconds);     ///< "24.5 ms"
[[nodiscard]] std::string share_words(double share);      ///< "18 %", below 10 % with a decimal
[[nodiscard]] std::string rate_words(double per_second);  ///< "2,610", "41.3"
[[nodiscard]] std::string bytes_words(double bytes);      ///< "2.04 MiB"
[[nodiscard]] std::string byte_rate_words(double per_second);  ///< "23.4 GB/s"
[[nodiscard]] std::string number_words(double value);          ///< four digits: "1.812"
/// "1.12x [1.09, 1.15]".
[[nodiscard]] std::string ratio_words(const Estimate& ratio);

}  // namespace dstrain::report
