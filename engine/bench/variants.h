#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/bench/bench_plan.h"

namespace dstrain::bench {

/// A way to train a recipe: what it changes in it.
struct Variant {
  std::string name;                    ///< letters, digits, '-', '_', '.', '+'
  std::vector<std::string> overrides;  ///< "path.to.key=value"
};

/// "zero2", or one with additions, "zero2+recompute". Error{usage} lists what there is.
[[nodiscard]] Variant named_variant(std::string_view name);
/// "NAME=KEY=VALUE,KEY=VALUE". Error{usage} where it is not of that form.
[[nodiscard]] Variant own_variant(std::string_view text);
/// "recipe, ddp, zero1; +recompute": what named_variant() knows.
[[nodiscard]] std::string variant_names();

/// What `dstrain bench run` runs: every recipe with each number of ranks and each variant, the
/// first of which is the baseline. Weak or strong scaling starts from the first number of ranks.
[[nodiscard]] std::vector<Case> variant_cases(std::size_t recipes, const std::vector<int>& ranks,
                                              const std::vector<Variant>& variants,
                                              bool weak = false, bool strong = false);

}  // namespace dstrain::bench
