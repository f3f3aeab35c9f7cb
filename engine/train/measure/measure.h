#pragma once

#include <functional>
#include <string>

#include "engine/program/measured_machine.h"

namespace dstrain {

/// Measures this machine's rates as training uses them: products of the shapes of ViT-B/16 in turn,
/// as long as a GPU needs to reach its working clock; element-wise passes; copies from the host;
/// and gathers and reductions of 512 MiB among all visible GPUs. Without a GPU: one core's fp32
/// products and memory, and gathers and reductions of two ranks. Of the host, what measure_host
/// measures. About 40 s. `tell` gets one line per figure.
[[nodiscard]] MeasuredRates measure_rates(const std::function<void(const std::string&)>& tell);

}  // namespace dstrain
