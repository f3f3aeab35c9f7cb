#pragma once

#include <string>
#include <vector>

#include "engine/weights/pickle.h"

namespace dstrain {

/// One plain value of a pickle, or what stands for several.
struct ListedValue {
  std::string path;                      ///< "module.lm_head.weight", "param_groups[0].lr"
  std::string what;                      ///< "F32", "int", "torch.float32", "12 more"
  std::string value = {};                ///< of a plain value; of bytes their number
  std::vector<std::int64_t> shape = {};  ///< of a tensor
  bool is_tensor = false;
};

struct ListingLimits {
  std::size_t values = 100'000;
  std::size_t depth = 32;
  std::size_t numbers = 8;  ///< shown of a list or tuple of plain values
  std::size_t bytes = std::size_t{8} << 20;  ///< of paths and values together
};

/// The values of a pickle from its root down, in its order, within the limits; what lies beyond
/// them is counted in one line. What several others hold is listed once, and then named.
[[nodiscard]] std::vector<ListedValue> listing(const PickleValue& root,
                                               const ListingLimits& limits = {});

}  // namespace dstrain
