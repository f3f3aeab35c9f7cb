#include "engine/models/gpu_sizes.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "engine/base/error.h"

namespace dstrain {
namespace {

/// The key of the recipe that decides the size.
std::string key_of(SizeOf size, const ModelConfig& config) {
  struct Key {
    const char* name;
    int ModelConfig::*member;
  };
  constexpr Key kWidth = {"width", &ModelConfig::width}, kHeads = {"heads", &ModelConfig::heads},
                kHeadDim = {"head_dim", &ModelConfig::head_dim};
  const auto first_given = [&](const std::vector<Key>& keys) -> std::string {
    for (const Key& key : keys)
      if (config.*key.member != 0) return fmt::format("model.{}", key.name);
    return config.weights.empty() ? "model.name" : "model.weights";
  };
  switch (size) {
    case SizeOf::width:
      return first_given({kWidth});
    case SizeOf::head:
      return first_given({kHeadDim, kHeads, kWidth});
    case SizeOf::experts_per_token:
      return first_given({{"experts_per_token", &ModelConfig::experts_per_token}});
    case SizeOf::images:
      return "batch.micro";
  }
  throw Error(ErrorKind::internal, "no such size");
}

std::string text_of(const SizeMisfit& misfit, const std::string& key) {
  switch (misfit.of) {
    case SizeOf::width:
      return fmt::format("a width of {}", misfit.size);
    case SizeOf::head:
      return fmt::format("heads of {} elements{}", misfit.size,
                         key == "model.head_dim" ? "" : " (model.width over model.heads)");
    case SizeOf::experts_per_token:
      return fmt::format("{} experts for a token", misfit.size);
    case SizeOf::images:
      return fmt::format("{} images at once", misfit.size);
  }
  throw Error(ErrorKind::internal, "no such size");
}

}  // namespace

void require_gpu_sizes(const ModelConfig& config, const ModelCost& cost,
                       std::string_view otherwise) {
  // One at a time, first the width, which decides that of heads, too.
  std::vector<SizeMisfit> found;
  for (const BlockCost& block : cost.blocks)
    found.insert(found.end(), block.misfits.begin(), block.misfits.end());
  if (found.empty()) return;
  SizeMisfit misfit = *std::ranges::min_element(found, {}, &SizeMisfit::of);
  for (const SizeMisfit& other : found) {
    if (other.of != misfit.of) continue;
    TakenSizes& taken = misfit.taken;
    taken.unit = std::lcm(taken.unit, other.taken.unit);
    if (other.taken.max > 0)
      taken.max = taken.max > 0 ? std::min(taken.max, other.taken.max) : other.taken.max;
  }
  const std::string key = key_of(misfit.of, config);
  throw Error(ErrorKind::usage,
              fmt::format("{}: no kernel of a GPU takes {}", key, text_of(misfit, key)),
              fmt::format("use {}{}; {}, which take any size", misfit.taken.text(),
                          misfit.taken.unit > 1
                              ? fmt::format(", such as {}", misfit.taken.nearest(misfit.size))
                              : "",
                          otherwise));
}

}  // namespace dstrain
