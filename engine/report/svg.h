#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/report/run_data.h"
#include "engine/report/statistics.h"

namespace dstrain::report {

/// `text` inside of HTML or SVG, attributes included; control characters are written out.
[[nodiscard]] std::string escape_html(std::string_view text);

struct Line {
  std::string name;
  std::vector<Point> points;  ///< in order of x; what is not finite breaks nothing and is left out
  bool dots = false;          ///< marks in place of a line
};
struct LineChart {
  std::string title;
  std::string description;
  std::string x_label;
  std::string y_label;
  bool from_zero = false;
  std::vector<Line> lines;
  std::size_t max_points = 1000;  ///< of a line, which is thinned to them; at least 4
};
/// Empty where no point is finite.
[[nodiscard]] std::string draw_lines(const LineChart& chart);

struct StackedBars {
  std::string title;
  std::string description;
  std::string unit;
  std::vector<std::string> parts;
  std::vector<std::pair<std::string, std::vector<double>>> rows;  ///< values by part
};
[[nodiscard]] std::string draw_bars(const StackedBars& chart);

struct HeatMap {
  std::string title;
  std::string description;
  std::string unit;
  std::vector<std::string> rows;
  std::vector<std::string> columns;
  std::vector<std::vector<double>> values;  ///< by row; kUnknown: left white
};
[[nodiscard]] std::string draw_heat_map(const HeatMap& chart);

/// Durations of one kind of event.
struct Durations {
  std::string name;
  double from_s = 0;  ///< of the histogram, whose parts are equal on a logarithmic axis
  double to_s = 0;
  std::vector<std::int64_t> counts;
  std::array<double, 5> quantiles_s = {};  ///< 5, 25, 50, 75, 95 %
};
struct DurationChart {
  std::string title;
  std::string description;
  std::vector<Durations> rows;
};
/// A histogram and a box for each row, on one logarithmic axis. Empty without rows.
[[nodiscard]] std::string draw_durations(const DurationChart& chart);

/// A row for each rank and lane; zoomed by the script.
[[nodiscard]] std::string draw_timeline(const Timeline& timeline);

/// Round numbers that cover from `low` to `high`, about `count` of them.
[[nodiscard]] std::vector<double> axis_ticks(double low, double high, int count);

}  // namespace dstrain::report
