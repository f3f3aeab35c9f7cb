#pragma once

#include <string_view>

namespace dstrain {

/// The file of choices of that name (gemm_cache_name) that dstrain was built with, which saves the
/// first run on such a GPU its measurements; empty when there is none. JSON, as GemmCache writes it.
[[nodiscard]] std::string_view shipped_choices(std::string_view name);

}  // namespace dstrain
