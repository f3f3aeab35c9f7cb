#include "engine/models/random_weights.h"

#include <algorithm>

#include "engine/base/philox.h"
#include "engine/base/stable_hash.h"
#include "engine/kernels/draw/kernels.h"
#include "engine/models/weights.h"

namespace dstrain {
namespace {

kernels::Draw draw_of(std::int64_t seed, const std::string& name, Init init, double init_std) {
  using enum kernels::Distribution;
  return {.key = random_key(static_cast<std::uint64_t>(seed), RandomStream::init),
          .stream = stable_hash(name),
          .distribution = init == Init::normal    ? normal
                          : init == Init::uniform ? uniform
                                                  : truncated_normal,
          .std = init_std};
}

class RandomWeights final : public WeightSource {
 public:
  explicit RandomWeights(std::int64_t seed) : seed_(seed) {}

  void read_whole(const Parameter& parameter, const Piece& part, std::int64_t begin,
                  std::span<float> out) const override {
    draw_weights(seed_, part.name, parameter.init, parameter.init_std, begin, out);
  }
  [[nodiscard]] std::optional<std::int64_t> seed() const override { return seed_; }
  [[nodiscard]] bool read_state(const BlockState&, std::span<float>) const override {
    return false;
  }

 private:
  std::int64_t seed_;
};

}  // namespace

std::optional<float> same_value(Init init, double init_std) {
  if (init == Init::zeros) return 0.0F;
  if (init == Init::ones) return 1.0F;
  if (init == Init::constant) return static_cast<float>(init_std);
  return std::nullopt;
}

void draw_weights(std::int64_t seed, const std::string& name, Init init, double init_std,
                  std::int64_t begin, std::span<float> out) {
  if (const std::optional<float> value = same_value(init, init_std)) {
    std::ranges::fill(out, *value);
    return;
  }
  kernels::Draw args = draw_of(seed, name, init, init_std);
  args.out = out.data();
  args.count = args.width = args.row = static_cast<std::int64_t>(out.size());
  args.first = begin;
  kernels::reference::draw(args);
}

void draw_weights_on_gpu(std::int64_t seed, const Piece& box, Init init, double init_std,
                         float* out, cudaStream_t stream) {
  kernels::Draw args = draw_of(seed, box.name, init, init_std);
  args.out = out;
  args.count = box.numel();
  args.first = box.whole_index(0);
  args.width = box.columns.size();
  args.row = box.row_length();
  kernels::cuda::draw(args, stream);
}

std::unique_ptr<WeightSource> make_random_weights(std::int64_t seed) {
  return std::make_unique<RandomWeights>(seed);
}

}  // namespace dstrain
