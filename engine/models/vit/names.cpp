#include "engine/models/vit/names.h"

#include <array>
#include <string_view>
#include <utility>

namespace dstrain {
namespace {

constexpr std::string_view kVitPrefix = "vit.";
constexpr std::string_view kLayer = "vit.encoder.layer.";

/// transformers 4 and all files so far -> transformers 5 in memory, for what follows the layer's
/// number.
constexpr std::array<std::pair<std::string_view, std::string_view>, 6> kLaterNames = {{
    {"attention.attention.query", "attention.q_proj"},
    {"attention.attention.key", "attention.k_proj"},
    {"attention.attention.value", "attention.v_proj"},
    {"attention.output.dense", "attention.o_proj"},
    {"intermediate.dense", "mlp.fc1"},
    {"output.dense", "mlp.fc2"},
}};

}  // namespace

std::string vit_memory_name(const std::string& name) {
  if (!name.starts_with(kLayer)) return name;
  const std::string numbered = name.substr(kLayer.size());  // "0.attention.output.dense.weight"
  const auto dot = numbered.find('.') + 1;
  std::string rest = numbered.substr(dot);
  for (const auto& [earlier, later] : kLaterNames) {
    if (!rest.starts_with(earlier)) continue;
    rest = std::string(later) + rest.substr(earlier.size());
    break;
  }
  return "vit.layers." + numbered.substr(0, dot) + rest;
}

std::vector<std::string> vit_file_names(const std::string& name) {
  std::vector<std::string> names = {name};
  if (const std::string later = vit_memory_name(name); later != name) names.push_back(later);
  if (name.starts_with(kVitPrefix)) {
    for (std::size_t i = names.size(); i-- > 0;)
      names.push_back(names[i].substr(kVitPrefix.size()));
  }
  return names;
}

}  // namespace dstrain
