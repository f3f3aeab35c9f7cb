#pragma once

#include <optional>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/models/model.h"
#include "engine/train/session/generate.h"

namespace dstrain {

/// Answers as generate() gives them, by a rank that holds all weights: keys and values are kept, so
/// that a token costs one row and not the whole sequence. Each of `ranks` answers its share of the
/// samples; all get all answers. `model` has its values, in `dtype`. Nothing where some rank's
/// memory had no room for keys and values, or a GPU's kernels do not take their heads. Collective.
[[nodiscard]] std::optional<std::vector<GeneratedAnswer>> cached_answers(
    Model& model, at::ScalarType dtype, Communicator& ranks,
    const std::vector<TextQuestion>& samples, const Tokenizer& tokenizer,
    const GenerateOptions& options);

}  // namespace dstrain
