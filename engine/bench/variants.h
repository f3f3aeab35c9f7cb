#pragma once

#include <string>
#include <string_view>
#include <vector>

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

}  // namespace dstrain::bench
