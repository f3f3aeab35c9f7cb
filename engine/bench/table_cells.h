#pragma once

#include <string>

#include "engine/report/document.h"

namespace dstrain::bench {

[[nodiscard]] report::Cell text_cell(std::string text);
/// "-" for what is not known.
[[nodiscard]] report::Cell number_cell(double value, int digits);
/// Four digits that count.
[[nodiscard]] report::Cell value_cell(double value);

}  // namespace dstrain::bench
