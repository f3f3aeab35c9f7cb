#pragma once

#include <string>
#include <vector>

#include "engine/program/simulate.h"
#include "engine/recipe/recipe.h"

namespace dstrain {

/// What one rank may hold.
struct MemoryLimit {
  Bytes bytes = 0;  ///< of everything, Ledger::total(); 0: not known, nothing is given up for it
  Bytes fixed = 0;  ///< of that, what is no buffer of the program: Ledger::products and fixed
};

/// Share of a device's memory that no plan may use: the caching allocator held up to 2.7 % more
/// than was allocated, and the ledger was short by up to 1.3 %.
inline constexpr double kMemoryReserve = 0.04;

/// Share of the limit within which outputs of activation functions are kept: the gain, about 1 % of
/// the time, is worth no plan that is close to the limit.
inline constexpr double kHiddenShare = 0.9;

/// memory.limit where the recipe gives it, else the machine's memory less kMemoryReserve; none on a
/// machine whose ranks share the host's memory. `machine.device_memory` must be the same on all
/// ranks: that of the smallest device.
[[nodiscard]] MemoryLimit memory_limit(const Recipe& recipe, const Program& program,
                                       const Layout& layout, const ModelCost& cost,
                                       const Machine& machine);

/// What `memory.recompute: auto` came to.
struct RecomputeChoice {
  std::vector<bool> blocks;  ///< as ProgramOptions::recompute
  bool keep_hidden = false;  ///< as ProgramOptions::keep_hidden
  Bytes limit = 0;           ///< 0: not known
  Bytes needed_without = 0;  ///< peak of the fullest rank if nothing is recomputed
  Bytes needed = 0;          ///< peak as chosen
};

/// Nothing where that fits `limit`, with `options.keep_hidden` not even outputs of activation
/// functions where kHiddenShare of it is enough; else those, and where that does not fit either
/// block after block, those first that free most saved bytes per FLOP computed again (of equal ones
/// the first, whose activations would be held longest), until the peak fits. None of the chosen
/// could be left out; if even all are not enough, all are chosen. A function of its arguments
/// alone, so that all ranks choose alike. `options.recompute` is ignored. Of a pipeline: for the
/// blocks and the memory of `coordinate`.
[[nodiscard]] RecomputeChoice choose_recompute(const Layout& layout, const ModelCost& cost,
                                               const ProgramOptions& options,
                                               const MemoryLimit& limit, int coordinate = 0);

/// "7 of 37 blocks, as the plan needs 85.10 GiB of 79.00 GiB".
[[nodiscard]] std::string describe(const RecomputeChoice& choice);

}  // namespace dstrain
