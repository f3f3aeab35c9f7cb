#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace dstrain {

/// All runs of one GPU kernel, copy or memset.
struct KernelTime {
  std::string name;
  std::int64_t runs = 0;
  double seconds = 0;
};

/// What the GPU did while `work` ran, longest first; `work` must wait for the device before it
/// returns. Empty without a GPU. Measured by CUPTI through Kineto, which costs some time itself.
[[nodiscard]] std::vector<KernelTime> profile_kernels(const std::function<void()>& work);

}  // namespace dstrain
