#pragma once

#include <filesystem>
#include <string>

namespace dstrain {

/// Where a shared library of dstrain's own lies that is loaded only when it is needed: beside the
/// binary that holds this function, or in lib/ of a folder above it. `name` alone, so that the
/// system searches, when it is at neither place.
[[nodiscard]] std::filesystem::path find_module(const std::string& name);

/// Where libdstrain_engine.so is: beside this executable (build tree) or in ../lib (installed).
[[nodiscard]] std::filesystem::path engine_library_path();

}  // namespace dstrain
