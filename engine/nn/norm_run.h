#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <utility>
#include <vector>

#include "engine/kernels/taken_sizes.h"
#include "engine/nn/layer_pass.h"

namespace dstrain {

/// The sum of a norm's terms, and its norm.
struct NormedSum {
  Features sum, normed;
};

/// LayerNorm::run_sum() and RmsNorm::run_sum().
template <class Norm>
[[nodiscard]] NormedSum run_norm_sum(Norm& norm, LayerPass& pass,
                                     const std::vector<Features>& terms, bool hands_on,
                                     const at::Tensor& maxima) {
  const Features& x = terms.front();
  const bool adds = terms.size() > 1;
  if (pass.costs == nullptr) {
    auto [sum, normed] = norm.forward(
        x.tensor, adds ? std::optional<at::Tensor>(terms[1].tensor) : std::nullopt, maxima);
    return {.sum = {.tensor = std::move(sum)},
            .normed = {.tensor = std::move(normed), .maxima = maxima}};
  }
  // The sum is its input where nothing is added.
  const Bytes bytes = x.bytes(), kept = (adds || !x.counted) && !hands_on ? bytes : 0;
  pass.costs->require(SizeOf::width, x.columns(), kernels::kNormDims);
  pass.costs->add(norm.cost(x.rows(), kept), {{.bytes = 2 * bytes}}, {{.bytes = 3 * bytes}});
  NormedSum made{.sum = x.sized(x.size.shape), .normed = x.sized(x.size.shape)};
  made.sum.counted = true;
  return made;
}

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
  Features made = run_norm_sum(norm, pass, terms, /*hands_on=*/false, {}).normed;
  made.counted = keeps_output;
  if (keeps_output) pass.costs->add_to_last({.name = {}, .saved_bytes = x.bytes()});
  // A gradient more than the layers around it hold.
  if (!pass.costs->on_images()) pass.costs->hold_also(0, x.bytes());
  return made;
}

}  // namespace dstrain
