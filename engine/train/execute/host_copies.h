#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <optional>
#include <string>

#include "engine/device/staged_copy.h"
#include "engine/device/stream.h"

namespace dstrain {

/// Copies of tensors in pageable host memory. Those of a GPU travel through pinned buffers,
/// from which threads write them: the driver alone copies with one thread.
class HostCopies {
 public:
  /// `pci_bus`: the device's, whose cores write; empty: any cores.
  HostCopies(c10::Device device, const std::string& pci_bus);

  /// Holds the values once finish() has returned.
  [[nodiscard]] at::Tensor copy(const at::Tensor& values, at::ScalarType type);
  void finish();

 private:
  Stream stream_;
  std::optional<StagedCopy> staged_;  ///< of a GPU
};

}  // namespace dstrain
