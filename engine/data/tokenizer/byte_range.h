#pragma once

#include <cstddef>

namespace dstrain {

/// Bytes [begin, end) of a text.
struct ByteRange {
  std::size_t begin = 0;
  std::size_t end = 0;
};

}  // namespace dstrain
