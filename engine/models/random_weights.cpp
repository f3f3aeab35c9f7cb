#include "engine/models/random_weights.h"

#include <algorithm>

#include "engine/base/philox.h"
#include "engine/models/parts.h"
#include "engine/models/weights.h"

namespace dstrain {
namespace {

/// FNV-1a: the same on every machine, unlike std::hash.
std::uint64_t stable_hash(const std::string& text) {
  std::uint64_t hash = 0xCBF29CE484222325ull;
  for (const char c : text) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 0x100000001B3ull;
  }
  return hash;
}

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

class RandomWeights final : public WeightSource {
 public:
  explicit RandomWeights(std::int64_t seed) : seed_(seed) {}

  void read(const Parameter& parameter, Range range, std::span<float> out) const override {
    for_each_part(parameter, range, out,
                  [&](const NamedShape& part, std::int64_t begin, std::span<float> piece) {
                    draw_weights(seed_, part.name, parameter.init, parameter.init_std, begin,
                                 piece);
                  });
  }

 private:
  std::int64_t seed_;
};

}  // namespace

void draw_weights(std::int64_t seed, const std::string& name, Init init, double init_std,
                  std::int64_t begin, std::span<float> out) {
  if (init != Init::truncated_normal) {
    std::fill(out.begin(), out.end(), init == Init::ones ? 1.0f : 0.0f);
    return;
  }
  const std::uint64_t key = random_key(static_cast<std::uint64_t>(seed), RandomStream::init);
  const std::uint64_t stream = stable_hash(name);
  auto element = static_cast<std::uint64_t>(begin);
  for (std::size_t i = 0; i < out.size();) {
    const Philox random = Philox::at(key, stream, element / 4);
    for (std::uint64_t word = element % 4; word < 4 && i < out.size(); ++word, ++i, ++element) {
      out[i] = static_cast<float>(init_std * truncated_normal(random.word[word]));
    }
  }
}

std::unique_ptr<WeightSource> make_random_weights(std::int64_t seed) {
  return std::make_unique<RandomWeights>(seed);
}

}  // namespace dstrain
