#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "engine/weights/pickle.h"

namespace dstrain {

/// An array of numpy whose elements are unsigned bytes, in the order of C.
struct PickleArray {
  std::vector<std::int64_t> shape;
  std::string_view bytes;  ///< of the value, one for each element
};

/// The array that a value is: what numpy.core.multiarray._reconstruct was called for, with its
/// state. Nothing for any other value, other types of elements, the order of Fortran, and a shape
/// that its bytes do not fill.
[[nodiscard]] std::optional<PickleArray> byte_array(const PickleValue& value);

}  // namespace dstrain
