#pragma once

#include <c10/core/ScalarType.h>

#include <CLI/CLI.hpp>
#include <string>

#include "engine/device/device.h"

namespace dstrain {

/// The option --dtype of a command that computes with a finished model.
void add_dtype_option(CLI::App& app, std::string& word);
/// What it means on `device`.
[[nodiscard]] at::ScalarType dtype_of(const std::string& word, const DeviceFacts& device);

}  // namespace dstrain
