#include "engine/base/philox.h"
#include "engine/kernels/activation/drop_draw.h"
#include "engine/kernels/activation/kernels.h"
#include "engine/kernels/host_view.h"

namespace dstrain::kernels::reference {

void dropout(const Dropout& a) {
  const View x(a.x, a.dtype), y(a.y, a.dtype);
  constexpr int kElements = DropDraw::kElements;
  const DropDraw draw = DropDraw::of(a.share);
  const std::uint64_t key = dropout_key(static_cast<std::uint64_t>(*a.seed), a.place);
  for (std::int64_t i = 0; i < a.count; ++i) {
    const std::int64_t element = a.whole(i);
    const auto words = DropDraw::words_of(key, static_cast<std::uint64_t>(element / kElements));
    const float factor = draw.factor_of(words, static_cast<int>(element % kElements));
    y.set(i, factor > 0 ? static_cast<double>(static_cast<float>(x.at(i)) * factor) : 0);
  }
}

}  // namespace dstrain::kernels::reference
