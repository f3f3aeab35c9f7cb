#pragma once

#include <array>
#include <optional>
#include <span>
#include <string_view>

#include "engine/recipe/recipe.h"

namespace dstrain {

/// What recipes, states, checkpoints and plans know of an update rule. Its arithmetic is in
/// engine/kernels/optimizer/optimizer_rules.h.
struct OptimizerRow {
  OptimizerName name;
  std::string_view spelling;
  std::string_view text;
  /// Names of its moments, as torch.optim has them; each is as large as what is updated.
  std::span<const std::string_view> moments;
  /// Where it updates whole hidden matrices only (Parameter::hidden_matrix), the rule of all other
  /// tensors.
  std::optional<OptimizerName> others = {};
  /// Paths of the keys that it reads and some other does not.
  std::span<const std::string_view> keys;
  // Defaults of keys whose default is not the same for all.
  std::array<double, 2> betas = {0.9, 0.999};
  double momentum = 0.9;
  bool nesterov = false;
  double weight_decay = 0.01;
};

/// All of them, in the order of OptimizerName.
[[nodiscard]] std::span<const OptimizerRow> optimizers();
[[nodiscard]] const OptimizerRow& optimizer_row(OptimizerName name);

}  // namespace dstrain
