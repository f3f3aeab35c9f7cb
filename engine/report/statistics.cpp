#include "engine/report/statistics.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <random>

#include "engine/base/error.h"
#include "engine/base/median.h"

namespace dstrain::report {
namespace {

/// Probability that |T| < t, Abramowitz and Stegun 26.7.3 and 26.7.4.
double student_inside(double t, int degrees) {
  const double angle = std::atan(t / std::sqrt(static_cast<double>(degrees)));
  const double cosine = std::cos(angle);
  double term = degrees % 2 == 1 ? cosine : 1;
  double sum = degrees == 1 ? 0 : term;
  for (int k = degrees % 2 == 1 ? 3 : 2; k <= degrees - 2; k += 2) {
    term *= cosine * cosine * (k - 1) / k;
    sum += term;
  }
  if (degrees % 2 == 0) return std::sin(angle) * sum;
  return 2 / std::numbers::pi * (angle + std::sin(angle) * sum);
}

double triangle(const Point& a, const Point& b, const Point& c) {
  return std::abs((a.x - c.x) * (b.y - a.y) - (a.x - b.x) * (c.y - a.y));
}

}  // namespace

std::optional<Interval> bootstrap_median(std::span<const double> values, std::size_t block,
                                         int draws) {
  if (block == 0 || values.size() < 2 * block || draws < 1) return std::nullopt;
  std::mt19937_64 random(0x5DEECE66Du);
  const std::uint64_t starts = values.size() - block + 1;
  std::vector<double> medians;
  medians.reserve(static_cast<std::size_t>(draws));
  std::vector<double> sample;
  for (int draw = 0; draw < draws; ++draw) {
    sample.clear();
    while (sample.size() < values.size()) {
      // The standard's distributions differ between libraries; the bias of a remainder is 2^-50.
      const std::size_t begin = random() % starts;
      const std::size_t take = std::min(block, values.size() - sample.size());
      const auto from = values.subspan(begin, take);
      sample.insert(sample.end(), from.begin(), from.end());
    }
    medians.push_back(median(sample));
  }
  std::sort(medians.begin(), medians.end());
  const auto at = [&](double share) {
    return medians[static_cast<std::size_t>(share * static_cast<double>(medians.size() - 1) + 0.5)];
  };
  return Interval{at(0.025), at(0.975)};
}

double student_t_975(int degrees) {
  DSTRAIN_CHECK(degrees >= 1, "Student's t needs a degree of freedom");
  double low = 0;
  double high = 13;  // above t of one degree, 12.706
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (student_inside(middle, degrees) < 0.95 ? low : high) = middle;
  }
  return (low + high) / 2;
}

Estimate paired_ratio(std::span<const double> base, std::span<const double> test) {
  DSTRAIN_CHECK(base.size() == test.size() && !base.empty(), "pairs need two values each");
  const auto count = static_cast<double>(base.size());
  double sum = 0;
  for (std::size_t i = 0; i < base.size(); ++i) sum += std::log(test[i] / base[i]);
  const double mean = sum / count;
  if (base.size() < 3) return {.value = std::exp(mean)};
  double squares = 0;
  for (std::size_t i = 0; i < base.size(); ++i) {
    const double off = std::log(test[i] / base[i]) - mean;
    squares += off * off;
  }
  const double half =
      student_t_975(static_cast<int>(base.size()) - 1) * std::sqrt(squares / (count - 1) / count);
  return {.value = std::exp(mean),
          .interval = Interval{std::exp(mean - half), std::exp(mean + half)}};
}

std::vector<Point> thin(std::span<const Point> points, std::size_t count) {
  DSTRAIN_CHECK(count >= 4, "a thinned line needs four points");
  if (points.size() <= count) return {points.begin(), points.end()};
  const auto by_y = [](const Point& a, const Point& b) { return a.y < b.y; };
  const auto min = std::min_element(points.begin(), points.end(), by_y) - points.begin();
  const auto max = std::max_element(points.begin(), points.end(), by_y) - points.begin();

  std::vector<std::ptrdiff_t> chosen = {0};
  const std::size_t buckets = count - 4;  // both ends and both extremes are kept besides
  const auto edge = [&](std::size_t bucket) {
    return 1 + bucket * (points.size() - 2) / std::max<std::size_t>(1, buckets);
  };
  for (std::size_t bucket = 0; bucket < buckets; ++bucket) {
    const std::size_t next_end = bucket + 1 < buckets ? edge(bucket + 2) : points.size();
    Point next;
    for (std::size_t i = edge(bucket + 1); i < next_end; ++i) {
      next.x += points[i].x;
      next.y += points[i].y;
    }
    const auto of_next = static_cast<double>(next_end - edge(bucket + 1));
    next = {next.x / of_next, next.y / of_next};
    std::size_t best = edge(bucket);
    for (std::size_t i = best; i < edge(bucket + 1); ++i) {
      const Point& last = points[static_cast<std::size_t>(chosen.back())];
      if (triangle(last, points[i], next) > triangle(last, points[best], next)) best = i;
    }
    chosen.push_back(static_cast<std::ptrdiff_t>(best));
  }
  chosen.insert(chosen.end(), {min, max, static_cast<std::ptrdiff_t>(points.size()) - 1});
  std::sort(chosen.begin(), chosen.end());
  chosen.erase(std::unique(chosen.begin(), chosen.end()), chosen.end());
  std::vector<Point> kept;
  for (const std::ptrdiff_t i : chosen) kept.push_back(points[static_cast<std::size_t>(i)]);
  return kept;
}

}  // namespace dstrain::report
