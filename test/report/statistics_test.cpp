#include "engine/report/statistics.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "engine/base/median.h"
#include "test/support/catch.h"

namespace dstrain::report {
namespace {

TEST_CASE("a median is the middle of the sorted values") {
  std::mt19937_64 random(7);
  for (std::size_t size = 1; size < 40; ++size) {
    std::vector<double> values(size);
    for (double& v : values) v = static_cast<double>(random() % 20);
    std::vector<double> sorted = values;
    std::sort(sorted.begin(), sorted.end());
    const double expected =
        size % 2 == 1 ? sorted[size / 2] : (sorted[size / 2 - 1] + sorted[size / 2]) / 2;
    CHECK(median(values) == expected);
  }
}

TEST_CASE("Student's t has the values of the tables") {
  CHECK(student_t_975(1) == Approx(12.7062).epsilon(1e-5));
  CHECK(student_t_975(2) == Approx(4.30265).epsilon(1e-5));
  CHECK(student_t_975(3) == Approx(3.18245).epsilon(1e-5));
  CHECK(student_t_975(4) == Approx(2.77645).epsilon(1e-5));
  CHECK(student_t_975(9) == Approx(2.26216).epsilon(1e-5));
  CHECK(student_t_975(30) == Approx(2.04227).epsilon(1e-5));
  CHECK(student_t_975(1000) == Approx(1.96234).epsilon(1e-5));
}

TEST_CASE("a ratio of pairs is the geometric mean with the interval of the logs") {
  const std::vector<double> base = {100, 110, 90};
  const std::vector<double> test = {112, 121, 101.7};
  // logs 0.1133287, 0.0953102, 0.1222176: mean 0.1102855, deviation 0.0137082.
  const Estimate ratio = paired_ratio(base, test);
  CHECK(ratio.value == Approx(std::exp(0.1102855)).epsilon(1e-6));
  REQUIRE(ratio.interval);
  CHECK(ratio.interval->low ==
        Approx(std::exp(0.1102855 - 4.30265 * 0.0137082 / std::sqrt(3.0))).epsilon(1e-5));
  CHECK(ratio.interval->high ==
        Approx(std::exp(0.1102855 + 4.30265 * 0.0137082 / std::sqrt(3.0))).epsilon(1e-5));
  CHECK_FALSE(paired_ratio(std::vector<double>{1, 2}, std::vector<double>{2, 4}).interval);
}

TEST_CASE("the bootstrap covers the median of noise and repeats itself") {
  int covered = 0;
  constexpr int kRuns = 100;
  for (int run = 0; run < kRuns; ++run) {
    std::mt19937_64 random(static_cast<unsigned>(run));
    std::normal_distribution<double> noise(5, 1);
    std::vector<double> values(120);
    for (double& v : values) v = noise(random);
    const auto interval = bootstrap_median(values, 10, 300);
    REQUIRE(interval);
    const auto again = bootstrap_median(values, 10, 300);
    CHECK(interval->low == again->low);
    CHECK(interval->low <= median(values));
    CHECK(interval->high >= median(values));
    covered += interval->low <= 5 && 5 <= interval->high ? 1 : 0;
  }
  CHECK(covered >= 85);
  CHECK(covered <= kRuns);
  CHECK_FALSE(bootstrap_median(std::vector<double>(19, 1.0)));
  CHECK(bootstrap_median(std::vector<double>(20, 1.0))->high == 1);
}

TEST_CASE("a thinned line keeps its ends, its extremes and its order") {
  std::mt19937_64 random(3);
  std::vector<Point> points;
  for (int i = 0; i < 5000; ++i)
    points.push_back({static_cast<double>(i), static_cast<double>(random() % 1000)});
  points[1234].y = 1e6;
  points[4321].y = -1e6;
  for (const std::size_t count : {4u, 5u, 100u, 1000u, 4999u}) {
    const std::vector<Point> kept = thin(points, count);
    CHECK(kept.size() <= count);
    CHECK(kept.size() + 4 >= std::min<std::size_t>(count, 1000));
    CHECK(kept.front().x == 0);
    CHECK(kept.back().x == 4999);
    CHECK(std::any_of(kept.begin(), kept.end(), [](const Point& p) { return p.y == 1e6; }));
    CHECK(std::any_of(kept.begin(), kept.end(), [](const Point& p) { return p.y == -1e6; }));
    for (std::size_t i = 1; i < kept.size(); ++i) CHECK(kept[i - 1].x < kept[i].x);
  }
  CHECK(thin(points, 5000).size() == 5000);
}

}  // namespace
}  // namespace dstrain::report
