#pragma once

#include <functional>
#include <string>

#include "engine/device/device.h"
#include "engine/program/measured_machine.h"

namespace dstrain {

/// Puts into `rates` what offloading uses: both directions of the link at once, the host's memory
/// and AdamW by threads (beside copies, too), page-locked memory, and files of the temporary
/// directory ($TMPDIR). About 20 s. `tell` gets one line per figure.
void measure_host(const DeviceFacts& device, MeasuredRates& rates,
                  const std::function<void(const std::string&)>& tell);

}  // namespace dstrain
