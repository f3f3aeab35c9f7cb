#pragma once

#include <string>
#include <vector>

#include "engine/program/simulate.h"
#include "engine/recipe/load.h"

namespace dstrain {

/// What a step of a recipe needs.
struct PlannedMemory {
  Bytes memory = 0;   ///< of the fullest rank in its fullest phase
  Bytes limit = 0;    ///< that a rank has
  Bytes usable = 0;   ///< of that: kMemoryReserve is left where the recipe sets no limit
  Bytes host = 0;     ///< of a rank, in host memory
  double step_s = 0;  ///< of the longest phase

  [[nodiscard]] bool fits() const { return memory <= usable; }
};

/// Plans one recipe again and again under other settings.
class MemoryPlanner {
 public:
  MemoryPlanner(std::string recipe, std::vector<std::string> overrides, int ranks);

  /// As it is, without settings.
  [[nodiscard]] const Recipe& recipe() const { return recipe_; }
  /// With them.
  [[nodiscard]] Recipe recipe_with(const std::vector<std::string>& settings,
                                   const std::string& origin) const;
  [[nodiscard]] int ranks() const { return ranks_; }
  [[nodiscard]] int data_ranks() const;

  /// With `settings` ("batch.micro=4") put behind the overrides; `origin` names them in errors.
  /// Error{usage} where that is no recipe for these ranks.
  [[nodiscard]] PlannedMemory plan(const std::vector<std::string>& settings, const Machine& machine,
                                   const std::string& origin) const;

 private:
  std::string file_;
  std::vector<std::string> overrides_;
  int ranks_;
  std::string weights_;
  Recipe recipe_;
};

}  // namespace dstrain
