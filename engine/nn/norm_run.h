#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "engine/nn/layer_pass.h"

namespace dstrain {

/// LayerNorm::run() and RmsNorm::run().
template <class Norm>
[[nodiscard]] Features run_norm(Norm& norm, LayerPass& pass, const std::vector<Features>& terms,
                                bool keeps_output) {
  const Features& x = terms.front();
  if (pass.costs == nullptr) {
    const auto rows = [](const Features& term) {
      return term.tensor.reshape({-1, term.tensor.size(-1)});
    };
    const auto delta = terms.size() > 1 ? std::optional<at::Tensor>(rows(terms[1])) : std::nullopt;
    return {.tensor = norm.forward(rows(x), delta).second.view(x.tensor.sizes())};
  }
  // The sum is its input where nothing is added.
  const bool own_sum = terms.size() > 1 || !x.counted;
  const Bytes bytes = x.bytes();
  pass.costs->add(norm.cost(x.rows(), (own_sum ? bytes : 0) + (keeps_output ? bytes : 0)),
                  {{.bytes = 2 * bytes}}, {{.bytes = 3 * bytes}});
  // A gradient more than the layers around it hold.
  if (!pass.costs->on_images()) pass.costs->hold_also(0, bytes);
  Features made = x.sized(x.size.shape);
  made.counted = keeps_output;
  return made;
}

}  // namespace dstrain
