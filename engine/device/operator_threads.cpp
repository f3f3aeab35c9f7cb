#include "engine/device/operator_threads.h"

#include <ATen/Parallel.h>

#include <algorithm>

namespace dstrain {

OperatorThreads::OperatorThreads(int max)
    : given_(at::get_num_threads()), used_(std::min(max, given_)) {
  if (used_ < given_) at::set_num_threads(used_);
}

OperatorThreads::~OperatorThreads() {
  if (used_ < given_) at::set_num_threads(given_);
}

}  // namespace dstrain
