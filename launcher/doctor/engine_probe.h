#pragma once

#include <chrono>
#include <filesystem>

#include "launcher/doctor/inspect.h"

namespace dstrain::launcher {

/// Loads the engine library in a child process, which ends at once: what the loader says, whether it
/// is of `build` (load_engine), and which versions of LibTorch, NCCL and CUDA came with it. Longer
/// than `limit` counts as a failure.
[[nodiscard]] EngineFacts probe_engine(const std::filesystem::path& library,
                                       const std::string& build,
                                       std::chrono::milliseconds limit);

}  // namespace dstrain::launcher
