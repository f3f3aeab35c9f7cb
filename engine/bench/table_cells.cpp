#include "engine/bench/table_cells.h"

#include <fmt/format.h>

#include <cmath>

#include "engine/report/words.h"

namespace dstrain::bench {

report::Cell text_cell(std::string text) { return {.text = std::move(text)}; }

report::Cell number_cell(double value, int digits) {
  return {.text = std::isfinite(value) ? fmt::format("{:.{}f}", value, digits) : "-",
          .figure = {},
          .value = value};
}

report::Cell value_cell(double value) {
  return {.text = report::number_words(value), .figure = {}, .value = value};
}

}  // namespace dstrain::bench
