#include "engine/recipe/compute.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/recipe/choices.h"
#include "engine/recipe/tree.h"

namespace dstrain {
namespace {

constexpr const char* kComputeKey = "precision.compute";

/// `key` needs products that the device has not.
[[noreturn]] void lacks(const std::string& device, const GpuLimits& limits, const std::string& key,
                        const std::string& format, const std::string& hint) {
  throw Error(ErrorKind::usage,
              fmt::format("{}: {} has compute capability {}.{} and no products of {}", key, device,
                          limits.major, limits.minor, format),
              hint);
}

}  // namespace

void settle_compute(Recipe& recipe, const GpuLimits& limits, const std::string& device) {
  using enum ComputeType;
  PrecisionConfig& precision = recipe.precision;
  const auto given = [&] {
    return fmt::format("{}: {}", kComputeKey, spelling(precision.compute));
  };
  if (precision.compute == fp8 && !limits.fp8_products)
    lacks(device, limits, given(), "FP8", "use precision.compute: auto");
  if (precision.compute == bf16 && !limits.bf16_products)
    lacks(device, limits, given(), "bf16", "use precision.compute: auto");
  if (precision.compute != automatic) return;
  precision.compute = limits.bf16_products ? bf16 : fp16;
  if (precision.compute == bf16) return;
  if (precision.states != StateType::fp32)
    lacks(device, limits, fmt::format("precision.states: {}", spelling(precision.states)), "bf16",
          "use precision.states: fp32");
  if (precision.gradients == GradientType::bf16)
    lacks(device, limits, "precision.gradients: bf16", "bf16", "use precision.gradients: fp32");
}

void settle_compute(LoadedRecipe& loaded, const GpuLimits& limits, const std::string& device) {
  const bool chosen = loaded.recipe.precision.compute == ComputeType::automatic;
  settle_compute(loaded.recipe, limits, device);
  if (!chosen) return;
  const auto origin = std::ranges::find(loaded.origins, kComputeKey, &Origin::path);
  if (origin == loaded.origins.end()) return;
  origin->value = spelling(loaded.recipe.precision.compute);
  origin->origin = "auto";
}

void note_compute(const std::filesystem::path& resolved, ComputeType chosen) {
  std::string text = read_file(resolved, kMaxRecipeBytes);
  constexpr std::string_view kOpen = "\n  compute: auto ";
  const auto at = text.find(kOpen, text.find("\nprecision:"));
  if (at == std::string::npos) return;
  text.replace(
      at, kOpen.size(),
      fmt::format("\n  {:<{}}", fmt::format("compute: {}", spelling(chosen)), kOpen.size() - 3));
  write_file_atomically(resolved, text);
}

}  // namespace dstrain
