#pragma once

#include <string>

namespace dstrain {

/// A field that changes nothing in a recipe, and why.
struct Inactive {
  std::string path;
  std::string reason;
};

}  // namespace dstrain
