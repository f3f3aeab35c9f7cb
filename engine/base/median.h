#pragma once

#include <vector>

namespace dstrain {

/// The median of values that are not empty; the mean of the middle two where their number is even.
[[nodiscard]] double median(std::vector<double> values);

}  // namespace dstrain
