#include "engine/kernels/draw/draw_math.h"
#include "engine/kernels/draw/kernels.h"

namespace dstrain::kernels::reference {
namespace {

template <class OneDraw>
void draw_all(const Draw& a, OneDraw one) {
  for (std::int64_t begin = 0; begin < a.count; begin += a.width) {
    const std::int64_t end = begin + a.width < a.count ? begin + a.width : a.count;
    auto place = static_cast<std::uint64_t>(a.first + begin / a.width * a.row);
    for (std::int64_t i = begin; i < end;) {
      const Philox random = Philox::at(a.key, a.stream, place / 4);
      for (std::uint64_t word = place % 4; word < 4 && i < end; ++word, ++i, ++place)
        a.out[i] = static_cast<float>(a.std * one(random.word[word]));
    }
  }
}

}  // namespace

void draw(const Draw& args) {
  switch (args.distribution) {
    case Distribution::truncated_normal:
      return draw_all(args, [](std::uint32_t bits) { return draw_truncated_normal(bits); });
    case Distribution::normal:
      return draw_all(args, [](std::uint32_t bits) { return draw_normal(bits); });
    case Distribution::uniform:
      return draw_all(args, [](std::uint32_t bits) { return draw_uniform(bits); });
  }
}

}  // namespace dstrain::kernels::reference
