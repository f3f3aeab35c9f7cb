#pragma once

#include <cstdint>
#include <vector>

#include "engine/models/model.h"
#include "engine/models/weights.h"

namespace dstrain {

/// Lets the frozen matrices of the layers' linear maps rest in 4 bits (Parameter::nf4): neither
/// embedding nor head, as in bitsandbytes. Error{usage} names one that is no whole blocks.
void rest_in_four_bits(const Model& model, bool double_coded);

/// What such a parameter holds of `source`, Nf4Storage::bytes.
[[nodiscard]] std::vector<std::uint8_t> coded_value(const Parameter& parameter,
                                                    const WeightSource& source);

}  // namespace dstrain
