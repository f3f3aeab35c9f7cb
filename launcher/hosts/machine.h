#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace dstrain::launcher {

/// What of this machine a job may use.
struct Machine {
  std::string host;
  int cores = 1;             ///< that this process may run on
  int gpus = 0;              ///< visible to CUDA in this environment
  int gpus_installed = 0;    ///< device nodes
  bool gpus_hidden = false;  ///< CUDA_VISIBLE_DEVICES is set but names none
};

/// Reads the system; no CUDA call, so that no GPU context is made in a process that only starts
/// others.
[[nodiscard]] Machine probe_machine();

/// Number of nvidiaN nodes in `dev` (normally /dev).
[[nodiscard]] int count_gpu_nodes(const std::filesystem::path& dev);
/// How many of `installed` GPUs CUDA shows under CUDA_VISIBLE_DEVICES: unset shows all, an empty
/// list none, and the list ends at the first entry that names no GPU (CUDA C++ Programming Guide,
/// "CUDA Environment Variables").
[[nodiscard]] int count_visible_gpus(int installed,
                                     const std::optional<std::string>& visible_devices);

}  // namespace dstrain::launcher
