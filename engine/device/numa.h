#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace dstrain {

/// Cores that this process may run on, in rising order; never empty.
[[nodiscard]] std::vector<int> usable_cores();

/// Those of usable_cores() on the NUMA node of the PCI device `pci_bus` ("0000:17:00.0"). All of
/// them where the node is not known, where it has none of them, or without a device (empty).
[[nodiscard]] std::vector<int> cores_near(const std::string& pci_bus,
                                          const std::filesystem::path& sys = "/sys");

/// Lets the calling thread run on `cores` only; nothing when empty or refused.
void bind_this_thread(std::span<const int> cores);

}  // namespace dstrain
