#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/device/stream.h"

namespace dstrain {

/// A few whole numbers of the device on their way to the host. All fetches use the page-locked
/// memory of the first: under a pipeline nothing should be allocated while receives wait.
class HostNumbers {
 public:
  /// Enqueues the copy of `numbers` [n] int32. What was fetched before must have been taken.
  void fetch(const at::Tensor& numbers);
  /// Waits for them.
  [[nodiscard]] std::vector<std::int64_t> take() const;

 private:
  at::Tensor host_;
  std::optional<Event> there_;
};

}  // namespace dstrain
