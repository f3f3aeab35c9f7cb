#pragma once

#include <string>
#include <vector>

#include "engine/mesh/mesh.h"
#include "engine/recipe/recipe.h"

namespace dstrain {

/// What the search chooses: degrees, what ZeRO shares, and the micro-batch. batch.global stays.
struct PlanChoice {
  Degrees degrees = {};  ///< of kAxisKeys; the data ranks are what they leave
  int zero_stage = 0;
  int shard = 0;  ///< as parallel.zero.shard
  int micro = 1;
  int concurrent = 1;  ///< as batch.concurrent
  // The pipeline's, once they are known.
  ScheduleName schedule = ScheduleName::automatic;
  int chunks = 0;  ///< of each rank; 0: not known

  /// Ranks that see different samples.
  [[nodiscard]] int data_ranks(int ranks) const {
    return static_cast<int>(ranks / product(degrees, kAllAxes - kDataAxes));
  }
  bool operator==(const PlanChoice&) const = default;
};

/// What it sets in a recipe, "path.to.key=value" each. Memory is left to `memory.recompute: auto`.
[[nodiscard]] std::vector<std::string> settings(const PlanChoice& choice);
/// "pipeline 2 x tensor 2 x data 2, ZeRO-1, micro 4": the degrees above 1.
[[nodiscard]] std::string describe(const PlanChoice& choice, int ranks);

struct SearchSpace {
  int ranks = 1;
  int ranks_per_node = 8;
  int blocks = 1;        ///< of the model, the most that a pipeline may have ranks
  int global = 1;        ///< samples of a step
  bool text = false;     ///< samples are sequences
  int experts = 0;       ///< of a layer; 0: none
  bool lanes = true;     ///< work on two lanes runs at once, as on a GPU
  bool kernels = false;  ///< blocks list kernels, whose launches pass beside another micro-batch
};
/// All choices whose degrees multiply to the ranks: tensor within a node, sequence up to 64, ZeRO
/// over all data ranks and over those of a node, micro-batches in powers of two, and two of them at
/// once where ranks exchange inside blocks or kernels are listed. Schedules are left open.
[[nodiscard]] std::vector<PlanChoice> all_choices(const SearchSpace& space);

/// The layouts that are shown whatever their time: pipeline 2 on two ranks, pipeline 2 x tensor 2
/// x data 2 on eight. Their ZeRO stage and micro-batch are the search's.
[[nodiscard]] bool is_default_layout(const PlanChoice& choice, int ranks);

}  // namespace dstrain
