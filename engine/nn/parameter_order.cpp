#include "engine/nn/parameter_order.h"

#include <algorithm>

namespace dstrain {

std::vector<Parameter*> matrices_first(std::vector<Parameter*> list) {
  std::stable_partition(list.begin(), list.end(),
                        [](const Parameter* parameter) { return parameter->shape.size() >= 2; });
  return list;
}

}  // namespace dstrain
