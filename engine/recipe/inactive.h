#pragma once

#include <string>
#include <string_view>

namespace dstrain {

/// A field that changes nothing in a recipe, and why.
struct Inactive {
  std::string_view path;
  std::string reason;
};

}  // namespace dstrain
