#include "engine/device/device.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <thread>

#include "engine/base/error.h"
#include "engine/base/host_memory.h"
#include "engine/device/device_limits.h"

namespace dstrain {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

Bytes machine_memory_bytes() {
  return static_cast<Bytes>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGE_SIZE);
}

}  // namespace

int num_gpus() { return c10::cuda::device_count(); }

DeviceFacts cpu_device() {
  return {.device = c10::Device(c10::kCPU),
          .name = "CPU",
          .num_devices = num_gpus(),
          .memory_bytes = machine_memory_bytes(),
          .multiprocessors = static_cast<int>(std::thread::hardware_concurrency())};
}

DeviceFacts choose_device(int local_rank) {
  DSTRAIN_CHECK(local_rank >= 0, fmt::format("local rank {}", local_rank));
  const int num_devices = num_gpus();
  if (num_devices == 0) return cpu_device();
  if (local_rank >= num_devices) {
    throw Error(ErrorKind::usage,
                fmt::format("local rank {} has no GPU: this machine shows {} GPU{}", local_rank,
                            num_devices, num_devices == 1 ? "" : "s"),
                fmt::format("start at most {} rank{} per machine, or show more GPUs in "
                            "CUDA_VISIBLE_DEVICES",
                            num_devices, num_devices == 1 ? "" : "s"));
  }
  const c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(local_rank));
  make_current(device);
  cudaDeviceProp properties{};
  C10_CUDA_CHECK(cudaGetDeviceProperties(&properties, local_rank));
  std::array<char, 32> bus{};
  C10_CUDA_CHECK(cudaDeviceGetPCIBusId(bus.data(), bus.size(), local_rank));
  std::ranges::transform(bus, bus.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return {.device = device,
          .name = properties.name,
          .pci_bus = bus.data(),
          .num_devices = num_devices,
          .memory_bytes = static_cast<Bytes>(properties.totalGlobalMem),
          .compute_major = properties.major,
          .compute_minor = properties.minor,
          .limits = limits_of_device(local_rank),
          .multiprocessors = properties.multiProcessorCount};
}

void make_current(c10::Device device) {
  if (device.is_cuda()) c10::cuda::set_device(device.index());
}

void synchronize(c10::Device device) {
  if (!device.is_cuda()) return;
  make_current(device);
  c10::cuda::device_synchronize();
}

MemoryFigures allocator_figures(c10::Device device) {
  MemoryFigures figures;
  if (!device.is_cuda()) return figures;
  constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const auto stats = allocator::getDeviceStats(device.index());
  figures.allocated = stats.allocated_bytes[kAll].current;
  figures.allocated_peak = stats.allocated_bytes[kAll].peak;
  figures.reserved = stats.reserved_bytes[kAll].current;
  figures.reserved_peak = stats.reserved_bytes[kAll].peak;
  return figures;
}

MemoryFigures memory_figures(c10::Device device) {
  MemoryFigures figures = allocator_figures(device);
  figures.host_peak = host_peak_bytes();
  if (!device.is_cuda()) {
    figures.device_total = machine_memory_bytes();
    return figures;
  }
  const auto [free_bytes, total_bytes] = allocator::get()->getMemoryInfo(device.index());
  figures.device_total = static_cast<Bytes>(total_bytes);
  figures.device_used = static_cast<Bytes>(total_bytes - free_bytes);
  return figures;
}

void reset_peak_memory(c10::Device device) {
  if (device.is_cuda()) allocator::resetPeakStats(device.index());
}

}  // namespace dstrain
