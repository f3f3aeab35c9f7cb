#include "engine/train/measure/device_machine.h"

#include <thread>

#include "engine/base/error.h"
#include "engine/device/device_limits.h"
#include "engine/program/known_gpus.h"
#include "engine/program/measured_machine.h"

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

Machine machine_of_rank(const World& world, int threads) {
  const DeviceFacts& device = world.device;
  Machine machine = machine_of_device(device);
  try {
    const auto measured = find_measured(read_measured(measured_file()), device.name);
    if (measured) machine = *measured;
  } catch (const Error&) {
    machine.name += " (machine.json cannot be read)";
  }
  machine.device_memory = device.memory_bytes;
  if (!device.is_cuda()) {
    machine.cores = static_cast<int>(std::thread::hardware_concurrency());
    machine.ranks_per_node = world.local_size;
    machine.threads = threads;
  }
  return machine;
}

}  // namespace dstrain
