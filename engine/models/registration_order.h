#pragma once

#include <string>
#include <vector>

#include "engine/models/model.h"

namespace dstrain {

/// The trained tensors of `model` in the order in which transformers' model of its family registers
/// them (named_parameters()), the same in versions 4 and 5; test/cli/import_checkpoint_test.py
/// holds it. Empty: not known for the family.
[[nodiscard]] std::vector<std::string> registration_order(const Model& model);

}  // namespace dstrain
