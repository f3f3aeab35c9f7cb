#include "engine/models/four_bits.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/side_by_side.h"
#include "engine/kernels/nf4/nf4.h"
#include "engine/nn/linear.h"

namespace dstrain {
namespace {

/// Reads and codes by as many threads as there are, of which none has much of it in fp32.
Nf4Codes codes_of(const Parameter& parameter, const Piece& part, const WeightSource& source) {
  constexpr std::int64_t kAtOnce = 1 << 20;  // whole blocks
  const std::int64_t all = num_elements(part.shape);
  Nf4Codes made{.codes = std::vector<std::uint8_t>(to_index(all / 2)),
                .maxima = std::vector<float>(to_index(all / kNf4Block))};
  const auto pieces = to_index((all + kAtOnce - 1) / kAtOnce);
  side_by_side(pieces, pieces, [&](std::size_t i) {
    const std::int64_t begin = static_cast<std::int64_t>(i) * kAtOnce;
    std::vector<float> values(to_index(std::min(kAtOnce, all - begin)));
    source.read_whole(parameter, part, begin, values);
    const Nf4Codes own = nf4_codes(values);
    std::ranges::copy(own.codes, made.codes.begin() + begin / 2);
    std::ranges::copy(own.maxima, made.maxima.begin() + begin / kNf4Block);
  });
  return made;
}

/// As the source has it in 4 bits, else coded here.
Nf4Tensor tensor_of(const Parameter& parameter, const Piece& part, const WeightSource& source) {
  const bool double_coded = parameter.nf4->double_coded;
  if (std::optional<Nf4Tensor> found = source.read_nf4(part)) {
    if (double_coded && !found->maxima) {
      throw Error(
          ErrorKind::usage,
          fmt::format("lora.double: true, but the file has maxima of {} in fp32", part.name),
          "use lora.double: false");
    }
    if (double_coded || !found->maxima) return *std::move(found);
    const Nf4Maxima& coded = *found->maxima;
    for (std::size_t b = 0; b < coded.codes.size(); ++b) {
      found->codes.maxima.push_back(
          nf4_maximum(coded.codes[b], coded.maxima[b / to_index(kNf4Maxima)], coded.offset));
    }
    return {.codes = std::move(found->codes)};
  }
  Nf4Tensor made{.codes = codes_of(parameter, part, source)};
  if (double_coded) made.maxima = nf4_maxima(made.codes.maxima);
  return made;
}

}  // namespace

void rest_in_four_bits(const Model& model, bool double_coded) {
  const std::vector<Linear*> head = model.blocks.back()->linears();
  for (const auto& block : model.blocks) {
    for (Linear* linear : block->linears()) {
      Parameter& weight = linear->weight();
      if (weight.trainable || weight.shape.size() != 2 ||
          std::ranges::find(head, linear) != head.end())
        continue;
      weight.nf4 = nf4_storage(weight.parts, double_coded);
      weight.hidden_matrix = false;  // no optimizer sees it
    }
  }
}

std::vector<std::uint8_t> coded_value(const Parameter& parameter, const WeightSource& source) {
  const Nf4Storage& storage = parameter.nf4.value();
  std::vector<std::uint8_t> stored(to_index(storage.bytes));
  for (std::size_t i = 0; i < parameter.parts.size(); ++i) {
    const Nf4Tensor whole = tensor_of(parameter, parameter.parts[i], source);
    store_nf4(storage, i, whole.codes, whole.maxima.value_or(Nf4Maxima{}), stored);
  }
  return stored;
}

}  // namespace dstrain
