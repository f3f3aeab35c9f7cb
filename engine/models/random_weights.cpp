#include "engine/models/random_weights.h"

#include <algorithm>
#include <cmath>

#include "engine/base/philox.h"
#include "engine/base/stable_hash.h"
#include "engine/models/weights.h"

namespace dstrain {
namespace {

/// Standard normal cut at 2 standard deviations, from 32 random bits by the inverse distribution: z
/// = q P(q^2) / Q(q^2), a least-squares fit over |q| <= Phi(2) - 1/2 with an error below 2e-7.
/// Plain arithmetic gives the same bits everywhere.
double truncated_normal(std::uint32_t bits) {
  constexpr double kTail = 0.47724986805182079;  // Phi(2) - 1/2
  const double q = ((static_cast<double>(bits) + 0.5) * 0x1p-31 - 1.0) * kTail;
  const double s = q * q;
  const double p =
      2.5066283469482164 +
      s * (-24.353430604595772 +
           s * (79.463601086464523 + s * (-94.607840518323438 + s * 25.142670039720853)));
  const double r =
      1.0 + s * (-10.762796905147754 +
                 s * (40.668495741205913 + s * (-61.780411659549425 + s * 29.438765336979769)));
  return q * p / r;
}

/// Natural logarithm of a normal number by frexp and the series of atanh, error below 1e-12: unlike
/// that of a libm, the same bits everywhere.
double plain_log(double x) {
  constexpr double kLog2 = 0.69314718055994531;
  int exponent = 0;
  double m = std::frexp(x, &exponent);
  if (m < 0.70710678118654752) m *= 2, --exponent;
  const double s = (m - 1) / (m + 1), t = s * s;
  double sum = 0;
  for (int k = 15; k >= 1; k -= 2) sum = sum * t + 1.0 / k;
  return exponent * kLog2 + 2 * s * sum;
}

/// Standard normal from 32 random bits by the inverse distribution: Wichura 1988, algorithm AS 241,
/// PPND7, error below 1e-6.
double normal(std::uint32_t bits) {
  const double p = (static_cast<double>(bits) + 0.5) * 0x1p-32, q = p - 0.5;
  if (std::abs(q) <= 0.425) {
    const double r = 0.180625 - q * q;
    return q * (((59.109374720 * r + 159.29113202) * r + 50.434271938) * r + 3.3871327179) /
           (((67.187563600 * r + 78.757757664) * r + 17.895169469) * r + 1);
  }
  // Below 4.79 for any p that 32 bits give, so that the formula of the far tail is not needed.
  const double r = std::sqrt(-plain_log(q < 0 ? p : 1 - p)) - 1.6;
  const double z = (((0.17023821103 * r + 1.3067284816) * r + 2.7568153900) * r + 1.4234372777) /
                   ((0.12021132975 * r + 0.73700164250) * r + 1);
  return q < 0 ? -z : z;
}

/// Uniform with mean 0 and variance 1.
double uniform(std::uint32_t bits) {
  constexpr double kRootOf3 = 1.7320508075688772;
  return ((static_cast<double>(bits) + 0.5) * 0x1p-31 - 1.0) * kRootOf3;
}

double (*draw_of(Init init))(std::uint32_t) {
  if (init == Init::normal) return normal;
  return init == Init::uniform ? uniform : truncated_normal;
}

class RandomWeights final : public WeightSource {
 public:
  explicit RandomWeights(std::int64_t seed) : seed_(seed) {}

  void read_whole(const Parameter& parameter, const Piece& part, std::int64_t begin,
                  std::span<float> out) const override {
    draw_weights(seed_, part.name, parameter.init, parameter.init_std, begin, out);
  }
  [[nodiscard]] bool read_state(const BlockState&, std::span<float>) const override {
    return false;
  }

 private:
  std::int64_t seed_;
};

}  // namespace

void draw_weights(std::int64_t seed, const std::string& name, Init init, double init_std,
                  std::int64_t begin, std::span<float> out) {
  if (init == Init::zeros || init == Init::ones) {
    std::fill(out.begin(), out.end(), init == Init::ones ? 1.0f : 0.0f);
    return;
  }
  const auto draw = draw_of(init);
  const std::uint64_t key = random_key(static_cast<std::uint64_t>(seed), RandomStream::init);
  const std::uint64_t stream = stable_hash(name);
  auto element = static_cast<std::uint64_t>(begin);
  for (std::size_t i = 0; i < out.size();) {
    const Philox random = Philox::at(key, stream, element / 4);
    for (std::uint64_t word = element % 4; word < 4 && i < out.size(); ++word, ++i, ++element) {
      out[i] = static_cast<float>(init_std * draw(random.word[word]));
    }
  }
}

std::unique_ptr<WeightSource> make_random_weights(std::int64_t seed) {
  return std::make_unique<RandomWeights>(seed);
}

}  // namespace dstrain
