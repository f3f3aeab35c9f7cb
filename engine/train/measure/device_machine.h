#pragma once

#include "engine/device/device.h"
#include "engine/program/simulate.h"

namespace dstrain {

/// Rates of this rank's device without a measurement: built in, of a known card, or estimated from
/// the card's clocks. Its limits are the device's.
[[nodiscard]] Machine machine_of_device(const DeviceFacts& device);

}  // namespace dstrain
