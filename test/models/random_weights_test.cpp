#include "engine/models/random_weights.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "engine/models/weights.h"
#include "test/support/catch.h"

namespace dstrain {
namespace {

Parameter stacked() {
  Parameter parameter;
  parameter.hold({{"query", {3, 5}}, {"key", {3, 5}}, {"value", {3, 5}}});
  parameter.init = Init::truncated_normal;
  parameter.init_std = 0.02;
  return parameter;
}

TEST_CASE("any range of random weights equals that range of the whole", "[models][property]") {
  const Parameter parameter = stacked();
  const auto source = make_random_weights(7);
  std::vector<float> whole(45);
  source->read(parameter, {0, 45}, whole);
  for (std::int64_t begin = 0; begin <= 45; ++begin) {
    for (std::int64_t end = begin; end <= 45; ++end) {
      std::vector<float> part(static_cast<std::size_t>(end - begin));
      source->read(parameter, {begin, end}, part);
      REQUIRE(std::equal(part.begin(), part.end(), whole.begin() + begin));
    }
  }
  std::vector<float> key(15);
  draw_weights(7, "key", Init::truncated_normal, 0.02, 0, key);
  CHECK(std::equal(key.begin(), key.end(), whole.begin() + 15));
}

TEST_CASE("any box of random weights equals that box of the whole", "[models][property]") {
  const Parameter whole = stacked();
  const auto source = make_random_weights(7);
  std::vector<float> expected(45);
  source->read(whole, {0, 45}, expected);
  const Range rows = GENERATE(Range{0, 3}, Range{1, 2}),
              columns = GENERATE(Range{0, 5}, Range{2, 4});
  Parameter cut = whole;
  cut.hold({{"query", {3, 5}, rows, columns}, {"value", {3, 5}, rows, columns}});
  CHECK(cut.shape == std::vector{2 * rows.size(), columns.size()});
  std::vector<float> chosen;
  for (const std::int64_t first : {std::int64_t{0}, std::int64_t{6}}) {
    for (std::int64_t row = rows.begin; row < rows.end; ++row) {
      for (std::int64_t column = columns.begin; column < columns.end; ++column)
        chosen.push_back(expected[static_cast<std::size_t>((first + row) * 5 + column)]);
    }
  }
  for (std::int64_t begin = 0; begin <= cut.numel(); ++begin) {
    for (std::int64_t end = begin; end <= cut.numel(); ++end) {
      std::vector<float> part(static_cast<std::size_t>(end - begin));
      source->read(cut, {begin, end}, part);
      REQUIRE(std::equal(part.begin(), part.end(), chosen.begin() + begin));
    }
  }
}

TEST_CASE("seed and tensor name choose the random weights", "[models]") {
  std::vector<float> a(8), b(8), c(8);
  draw_weights(1, "a", Init::truncated_normal, 1, 0, a);
  draw_weights(2, "a", Init::truncated_normal, 1, 0, b);
  draw_weights(1, "b", Init::truncated_normal, 1, 0, c);
  CHECK(a != b);
  CHECK(a != c);
  CHECK(b != c);
}

TEST_CASE("norms start at one and biases at zero", "[models]") {
  std::vector<float> values(4, 9);
  draw_weights(1, "a", Init::ones, 0.02, 0, values);
  CHECK(values == std::vector<float>(4, 1));
  draw_weights(1, "a", Init::zeros, 0.02, 0, values);
  CHECK(values == std::vector<float>(4, 0));
}

double phi(double z) { return 0.5 * std::erfc(-z / std::sqrt(2.0)); }

TEST_CASE("random weights follow the normal distribution", "[models]") {
  constexpr int kNum = 1 << 20;
  std::vector<float> x(kNum);
  draw_weights(3, "w", Init::normal, 2, 0, x);
  std::sort(x.begin(), x.end());
  // Among a million, the largest lies between 4 and 7 standard deviations.
  CHECK(x.front() < -8);
  CHECK(x.front() > -14);
  double worst = 0;
  for (int i = 0; i < kNum; ++i) {
    worst = std::max(worst, std::abs(phi(x[static_cast<std::size_t>(i)] / 2.0) - (i + 0.5) / kNum));
  }
  CHECK(worst < 1.95 / std::sqrt(double{kNum}));
}

TEST_CASE("random weights follow the normal distribution cut at two standard deviations",
          "[models]") {
  constexpr int kNum = 1 << 20;
  std::vector<float> x(kNum);
  draw_weights(3, "w", Init::truncated_normal, 1, 0, x);
  std::sort(x.begin(), x.end());
  CHECK(x.front() > -2.0f);
  CHECK(x.back() < 2.0f);
  // Kolmogorov-Smirnov: 1.95 / sqrt(n) is passed by chance once in 1,000 draws; the draw is fixed.
  double worst = 0;
  for (int i = 0; i < kNum; ++i) {
    const double expected = (phi(x[static_cast<std::size_t>(i)]) - phi(-2)) / (phi(2) - phi(-2));
    worst = std::max(worst, std::abs(expected - (i + 0.5) / kNum));
  }
  CHECK(worst < 1.95 / std::sqrt(double{kNum}));
}

}  // namespace
}  // namespace dstrain
