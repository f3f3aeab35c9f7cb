#include "engine/train/measure/device_machine.h"

#include "engine/device/device_limits.h"
#include "engine/program/known_gpus.h"

namespace dstrain {

Machine machine_of_device(const DeviceFacts& device) {
  const auto rates = [&] {
    if (!device.is_cuda() || find_gpu(device.name) != nullptr) return built_in_machine(device.name);
    const DeviceClocks clocks = clocks_of_device(device.device.index());
    return estimated_machine({.name = device.name,
                              .major = device.compute_major,
                              .minor = device.compute_minor,
                              .multiprocessors = device.multiprocessors,
                              .clock_hz = clocks.processor_hz,
                              .memory_bytes_per_s = clocks.memory_bytes_per_s,
                              .memory = device.memory_bytes});
  };
  Machine machine = rates();
  machine.limits = device.limits;
  return machine;
}

}  // namespace dstrain
