#pragma once

#include "engine/device/device.h"
#include "engine/program/simulate.h"
#include "engine/train/session/world.h"

namespace dstrain {

/// Rates of this rank's device without a measurement: built in, of a known card, or estimated from
/// the card's clocks. Its limits are the device's.
[[nodiscard]] Machine machine_of_device(const DeviceFacts& device);

/// What a run's plan is made for: the rates that `dstrain doctor --measure` found for this device,
/// else machine_of_device(); in any case this device's memory, and on a CPU this host's cores and
/// ranks, with so many threads each. A broken file costs the prediction only.
[[nodiscard]] Machine machine_of_rank(const World& world, int threads);

}  // namespace dstrain
