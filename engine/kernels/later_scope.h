#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "engine/kernels/parameter.h"

namespace dstrain {

/// Sets Parameter::later of all `parameters` while it lives; then it is what it was before.
class LaterScope {
 public:
  /// `work` null: products run at once.
  LaterScope(std::vector<Parameter*> parameters, DeferredWork* work)
      : parameters_(std::move(parameters)) {
    for (Parameter* parameter : parameters_)
      before_.push_back(std::exchange(parameter->later, work));
  }
  ~LaterScope() {
    for (std::size_t i = 0; i < parameters_.size(); ++i) parameters_[i]->later = before_[i];
  }
  LaterScope(const LaterScope&) = delete;
  LaterScope& operator=(const LaterScope&) = delete;

 private:
  std::vector<Parameter*> parameters_;
  std::vector<DeferredWork*> before_;
};

}  // namespace dstrain
