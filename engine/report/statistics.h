#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace dstrain::report {

/// Ends of a confidence interval of 95 %.
struct Interval {
  double low = 0;
  double high = 0;
};

/// A figure and its interval; none where there are too few values.
struct Estimate {
  double value = 0;
  std::optional<Interval> interval = {};
};

/// Interval of the median by moving-block bootstrap, which keeps what neighbours have in common.
/// The draws start from a fixed seed. Nothing for fewer than two blocks.
[[nodiscard]] std::optional<Interval> bootstrap_median(std::span<const double> values,
                                                       std::size_t block = 10, int draws = 2000);

/// The t of which 2.5 % of Student's distribution with `degrees` (1 or more) lie above.
[[nodiscard]] double student_t_975(int degrees);

/// Geometric mean of test / base, pair by pair, with Student's interval of the logs; the interval
/// needs 3 pairs. The spans are of equal length, not empty, and hold positive values.
[[nodiscard]] Estimate paired_ratio(std::span<const double> base, std::span<const double> test);

struct Point {
  double x = 0;
  double y = 0;
};

/// At most `count` (4 or more) of `points`, which are in order of x and finite, by
/// largest-triangle-three-buckets; the least and the greatest y are always among them.
[[nodiscard]] std::vector<Point> thin(std::span<const Point> points, std::size_t count);

}  // namespace dstrain::report
