#pragma once

#include <span>
#include <string>
#include <vector>

#include "engine/base/gpu_limits.h"
#include "engine/program/simulate.h"

namespace dstrain {

/// A card by NVIDIA's datasheet. Products are dense, with sums in fp32; 0 where a card has none.
struct KnownGpu {
  const char* name;   ///< for --machine
  const char* words;  ///< all of them stand in the driver's name, as whole words in any case
  int major, minor;   ///< compute capability
  double bf16_flops_per_s, fp16_flops_per_s, fp8_flops_per_s;
  double vector_flops_per_s;  ///< fp32 outside tensor cores
  double memory_gib;          ///< about what the driver reports
  double memory_bytes_per_s;
  double nvlink_bytes_per_s;  ///< both directions together, through a switch; 0: PCIe alone
  int pcie;                   ///< generation, of 16 lanes

  [[nodiscard]] GpuLimits limits() const { return limits_of_capability(major, minor); }
  /// Rate of the products of 16 bits that a run takes: bf16, and fp16 where that is missing.
  [[nodiscard]] double flops_per_s() const;
};

[[nodiscard]] std::span<const KnownGpu> known_gpus();
/// By `--machine`'s name or the driver's, or by the name of a Machine made of it; nullptr: not in
/// the table. Laptop cards, slices by MIG and the like are not the card whose name they hold.
[[nodiscard]] const KnownGpu* find_gpu(const std::string& name);

/// What `--machine` takes without a measurement: the built-in machines, then the cards.
[[nodiscard]] std::vector<std::string> machine_names();

/// What a driver says of a card.
struct GpuFigures {
  std::string name;
  int major = 0, minor = 0;  ///< compute capability
  int multiprocessors = 0;
  double clock_hz = 0;
  double memory_bytes_per_s = 0;
  Bytes memory = 0;
};
/// A card that is not in the table: products of a multiprocessor and clock as its generation has
/// them (NVIDIA's architecture whitepapers), with half of them on GeForce cards, which add in fp32
/// at half rate below 9.0 and on 12.x. No NVLink is assumed.
[[nodiscard]] Machine estimated_machine(const GpuFigures& figures);

/// Datasheet x the shares that an H200 reaches, not measured on this card, which its name says.
/// Ranks on PCIe copy through host memory and have no peer copies. What no datasheet has (the host,
/// launches, memory of libraries) is the H200's.
[[nodiscard]] Machine estimated_machine(const KnownGpu& gpu);

}  // namespace dstrain
