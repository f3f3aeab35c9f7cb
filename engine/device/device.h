#pragma once

#include <c10/core/Device.h>

#include <string>

#include "engine/base/gpu_limits.h"
#include "engine/base/units.h"

namespace dstrain {

/// The device that this process computes on.
struct DeviceFacts {
  c10::Device device{c10::kCPU};
  std::string name;          ///< "NVIDIA H200", or "CPU"
  std::string pci_bus = {};  ///< "0000:17:00.0", small letters; empty on the CPU
  int num_devices = 0;       ///< GPUs that this process sees; 0 without GPU or driver
  Bytes memory_bytes = 0;    ///< of the GPU; of the machine on the CPU
  int compute_major = 0;     ///< compute capability, 0 on the CPU
  int compute_minor = 0;
  GpuLimits limits = kCpuLimits;  ///< lowered by DSTRAIN_GPU_AS
  int multiprocessors = 0;        ///< streaming multiprocessors; hardware threads on the CPU

  [[nodiscard]] bool is_cuda() const { return device.is_cuda(); }
};

/// GPUs that this process sees; 0 without GPU or driver. Never throws.
[[nodiscard]] int num_gpus();

/// GPU number `local_rank` where there is any GPU, made current for the calling thread; the CPU
/// otherwise. Error{usage} with both numbers when there are fewer GPUs than ranks on this machine.
[[nodiscard]] DeviceFacts choose_device(int local_rank);
/// The CPU although there may be a GPU.
[[nodiscard]] DeviceFacts cpu_device();

/// Makes a GPU current for the calling thread (a new thread starts on GPU 0); nothing on the CPU.
void make_current(c10::Device device);

/// Waits for all work on the device; nothing on the CPU.
void synchronize(c10::Device device);

/// Where memory went. On the CPU the device figures are 0 but for total (of the machine).
struct MemoryFigures {
  Bytes allocated = 0;  ///< in live tensors now, as the caching allocator counts (rounded to 512 B)
  Bytes allocated_peak = 0;  ///< since the last reset_peak_memory
  Bytes reserved = 0;        ///< held from the driver by the caching allocator now
  Bytes reserved_peak = 0;
  Bytes device_used = 0;  ///< by all processes, contexts and libraries included
  Bytes device_total = 0;
  Bytes host_peak = 0;  ///< resident set of this process, peak since its start

  /// What is held on the device but is not the caching allocator's: context, kernels, NCCL, other
  /// processes.
  [[nodiscard]] Bytes outside_allocator() const { return device_used - reserved; }
};
/// Without the figures of the device: these cost no driver call.
[[nodiscard]] MemoryFigures allocator_figures(c10::Device device);
/// Costs a driver call on a GPU: for logs and summaries, not for every action.
[[nodiscard]] MemoryFigures memory_figures(c10::Device device);
void reset_peak_memory(c10::Device device);

}  // namespace dstrain
