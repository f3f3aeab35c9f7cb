#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cmd/command.h"
#include "cmd/machine_options.h"

namespace dstrain {

struct PlanOptions {
  std::vector<std::string> recipes;    ///< files
  int ranks = 0;                       ///< 0: not given
  std::vector<std::string> overrides;  ///< "path.to.key=value"
  bool json = false;
  bool program = false;  ///< the actions of a step in place of tables
  MachineOptions machine;
  bool longest = false;             ///< samples that fit, instead of the recipe's own plan
  std::vector<double> memory_gb{};  ///< of devices for that; empty: the machine's
  bool search = false;              ///< for the fastest layout; the others are of the search
  int top = 10;                     ///< rows
  std::string write;                ///< file for the first row as sections of a recipe; empty: none
};

/// Prints the plan of one training step of each recipe; needs neither GPU nor data. Returns the
/// exit code.
int plan(PlanOptions& options);

/// Its options, which `dstrain` reads, too, so that mistakes and --help need no LibTorch.
Command add_plan(CLI::App& root, std::function<int(PlanOptions&)> run);

}  // namespace dstrain
