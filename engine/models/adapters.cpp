#include "engine/models/adapters.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "engine/base/error.h"
#include "engine/models/family.h"
#include "engine/models/groups.h"
#include "engine/recipe/text.h"

namespace dstrain {
namespace {

/// PEFT's word for every linear map but the head.
constexpr const char* kAllLinear = "all-linear";
constexpr const char* kAdapterPrefix = "base_model.model.";

/// Calls visit(map) for each linear map that may have an adapter.
template <class Visit>
void for_each_map(const Model& model, Visit visit) {
  for (const auto& block : model.blocks) {
    for (Linear* linear : block->linears()) {
      for (std::size_t part = 0; part < linear->parts().size(); ++part)
        visit(AdaptedMap{.linear = linear, .part = part});
    }
  }
}

/// Whether `pattern` means the linear map `name`, by any name that files have for it.
bool means(const std::string& pattern, const Family& family, const std::string& name) {
  return std::ranges::any_of(family.file_names(name), [&](const std::string& known) {
    return matches_module(pattern, known);
  });
}

[[noreturn]] void fail_unmatched(const Model& model, const std::string& pattern) {
  std::set<std::string> last_parts;
  for_each_map(model, [&](const AdaptedMap& map) {
    last_parts.insert(map.name().substr(map.name().rfind('.') + 1));
  });
  throw Error(ErrorKind::usage,
              fmt::format("lora.targets: no linear map's name matches '{}'", shown(pattern)),
              fmt::format("the last parts of their names are {}", fmt::join(last_parts, ", ")));
}

}  // namespace

std::string adapter_prefix(const std::string& map) { return kAdapterPrefix + map; }

bool is_adapter(const std::string& tensor) { return tensor.starts_with(kAdapterPrefix); }

void add_adapters(Model& model, const LoraConfig& config) {
  for (Parameter* parameter : all_parameters(model)) parameter->trainable = false;
  std::vector<std::string> patterns = config.targets;
  if (patterns.empty()) {
    const auto usual = model.family->recipe().lora_targets;
    patterns.assign(usual.begin(), usual.end());
  }
  const LowRankOptions options = {.rank = config.rank,
                                  .scale = adapter_scale(config),
                                  .dropout = config.dropout,
                                  .lr_ratio = config.lr_ratio};
  std::set<std::string> matched;
  const auto head = model.blocks.back()->linears();
  const auto fits = [&](const std::string& pattern, const AdaptedMap& map) {
    if (pattern == kAllLinear) return std::ranges::find(head, map.linear) == head.end();
    return means(pattern, *model.family, map.name());
  };
  for_each_map(model, [&](const AdaptedMap& map) {
    bool wanted = false;
    for (const std::string& pattern : patterns) {
      if (!fits(pattern, map)) continue;
      wanted = true;
      matched.insert(pattern);
    }
    if (wanted) map.linear->add_adapter(map.part, adapter_prefix(map.name()), options);
  });
  for (const std::string& pattern : patterns) {
    if (!matched.contains(pattern)) fail_unmatched(model, pattern);
  }
  train(model, config.also_train, "lora.also_train");
}

std::vector<AdaptedMap> adapted_maps(const Model& model) {
  std::set<std::string> tensors;
  for (const Parameter* parameter : all_parameters(model)) {
    if (is_adapter(parameter->parts[0].name)) tensors.insert(parameter->parts[0].name);
  }
  std::vector<AdaptedMap> maps;
  for_each_map(model, [&](const AdaptedMap& map) {
    if (tensors.contains(adapter_prefix(map.name()) + ".lora_A.weight")) maps.push_back(map);
  });
  return maps;
}

}  // namespace dstrain
