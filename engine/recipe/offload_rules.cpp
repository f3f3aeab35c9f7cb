#include <fmt/format.h>

#include "engine/recipe/choices.h"
#include "engine/recipe/optimizers.h"
#include "engine/recipe/rule.h"

namespace dstrain {
namespace {

void files_have_a_path(const Recipe& r, RuleContext& context) {
  if (!places_files(r.memory.offload) || !r.memory.offload.path.empty()) return;
  context.error("memory.offload.path", "missing; memory.offload places something in a file",
                "name a directory on a local disk, the same on every host");
}

/// A matrix is updated whole, and lies in several chunks.
void offloaded_rule_is_element_wise(const Recipe& r, RuleContext& context) {
  const OffloadConfig& offload = r.memory.offload;
  if (offload.optimizer == OffloadPlace::device && offload.parameters == OffloadPlace::device)
    return;
  if (!optimizer_row(r.optimizer.name).others) return;
  context.error(offload.optimizer == OffloadPlace::device ? "memory.offload.parameters"
                                                          : "memory.offload.optimizer",
                fmt::format("optimizer.name {} updates whole matrices, offloaded ones are updated "
                            "in chunks",
                            spelling(r.optimizer.name)),
                "use optimizer.name: adamw, lion, rmsprop or sgd, or leave memory.offload out");
}

void offloaded_inputs_are_recomputed(const Recipe& r, RuleContext& context) {
  if (r.memory.offload.activations == OffloadPlace::device || r.memory.recompute != Recompute::none)
    return;
  context.error("memory.offload.activations",
                "the inputs of recomputed blocks are offloaded, and memory.recompute is none",
                "set memory.recompute: blocks (or auto)");
}

/// The GPU reads pageable memory and files through the host, slower than the host updates them.
void gpu_updates_what_is_pinned(const Recipe& r, RuleContext& context) {
  const OffloadConfig& offload = r.memory.offload;
  if (offload.update != OffloadUpdate::gpu || offload.optimizer == OffloadPlace::device) return;
  const auto pinned = [](OffloadPlace place) {
    return place == OffloadPlace::device || place == OffloadPlace::pinned;
  };
  if (pinned(offload.optimizer) && pinned(offload.parameters)) return;
  context.error("memory.offload.update",
                fmt::format("gpu, but the states rest in {} memory and the parameters in {}",
                            spelling(offload.optimizer), spelling(offload.parameters)),
                "use update: auto or cpu, or place both pinned");
}

void chunks_are_whole_blocks(const Recipe& r, RuleContext& context) {
  constexpr int kBlock = 128;
  const int chunk = r.memory.offload.chunk;
  if (chunk % kBlock == 0) return;
  context.error("memory.offload.chunk", fmt::format("{} is no multiple of {}", chunk, kBlock),
                fmt::format("use {}", (chunk / kBlock + 1) * kBlock));
}

}  // namespace

bool places_files(const OffloadConfig& offload) {
  return offload.optimizer == OffloadPlace::file || offload.parameters == OffloadPlace::file ||
         offload.activations == OffloadPlace::file;
}

std::span<const Rule> offload_rules() {
  static const std::vector<Rule> all = {
      {files_have_a_path,
       {"memory.offload.optimizer", "memory.offload.parameters", "memory.offload.activations",
        "memory.offload.path"}},
      {offloaded_rule_is_element_wise,
       {"memory.offload.optimizer", "memory.offload.parameters", "optimizer.name"}},
      {offloaded_inputs_are_recomputed, {"memory.offload.activations", "memory.recompute"}},
      {gpu_updates_what_is_pinned,
       {"memory.offload.optimizer", "memory.offload.parameters", "memory.offload.update"}},
      {chunks_are_whole_blocks, {"memory.offload.chunk"}},
  };
  return all;
}

}  // namespace dstrain
