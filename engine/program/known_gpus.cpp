#include "engine/program/known_gpus.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <string_view>

namespace dstrain {
namespace {

constexpr double k1e12 = 1e12, kGb = 1e9;

// NVIDIA's datasheets and architecture whitepapers, without sparsity. Bridges of NVLink between two
// cards are left out: not every host has them.
constexpr std::array kGpus = {
    // name, words, capability, bf16, fp16, fp8, fp32, GiB, memory, NVLink, PCIe
    KnownGpu{"t4", "T4", 7, 5, 0, 65 * k1e12, 0, 8.1 * k1e12, 14.6, 320 * kGb, 0, 3},
    KnownGpu{"v100-16", "V100 16GB", 7, 0, 0, 125 * k1e12, 0, 15.7 * k1e12, 15.8, 900 * kGb,
             300 * kGb, 3},
    KnownGpu{"v100-32", "V100 32GB", 7, 0, 0, 125 * k1e12, 0, 15.7 * k1e12, 31.7, 900 * kGb,
             300 * kGb, 3},
    KnownGpu{"v100-16-pcie", "V100 PCIE 16GB", 7, 0, 0, 112 * k1e12, 0, 14 * k1e12, 15.8, 900 * kGb,
             0, 3},
    KnownGpu{"v100-32-pcie", "V100 PCIE 32GB", 7, 0, 0, 112 * k1e12, 0, 14 * k1e12, 31.7, 900 * kGb,
             0, 3},
    KnownGpu{"a10", "A10", 8, 6, 125 * k1e12, 125 * k1e12, 0, 31.2 * k1e12, 22.0, 600 * kGb, 0, 4},
    KnownGpu{"a30", "A30", 8, 0, 165 * k1e12, 165 * k1e12, 0, 10.3 * k1e12, 23.5, 933 * kGb, 0, 4},
    KnownGpu{"a40", "A40", 8, 6, 149.7 * k1e12, 149.7 * k1e12, 0, 37.4 * k1e12, 44.3, 696 * kGb, 0,
             4},
    KnownGpu{"a100-40", "A100 40GB", 8, 0, 312 * k1e12, 312 * k1e12, 0, 19.5 * k1e12, 39.4,
             1555 * kGb, 600 * kGb, 4},
    KnownGpu{"a100-80", "A100 80GB", 8, 0, 312 * k1e12, 312 * k1e12, 0, 19.5 * k1e12, 79.2,
             2039 * kGb, 600 * kGb, 4},
    KnownGpu{"a100-40-pcie", "A100 PCIE 40GB", 8, 0, 312 * k1e12, 312 * k1e12, 0, 19.5 * k1e12,
             39.4, 1555 * kGb, 0, 4},
    KnownGpu{"a100-80-pcie", "A100 PCIE 80GB", 8, 0, 312 * k1e12, 312 * k1e12, 0, 19.5 * k1e12,
             79.2, 1935 * kGb, 0, 4},
    KnownGpu{"rtx3090", "RTX 3090", 8, 6, 71 * k1e12, 71 * k1e12, 0, 35.6 * k1e12, 23.6, 936 * kGb,
             0, 4},
    KnownGpu{"a6000", "RTX A6000", 8, 6, 154.8 * k1e12, 154.8 * k1e12, 0, 38.7 * k1e12, 47.4,
             768 * kGb, 0, 4},
    KnownGpu{"rtx4090", "RTX 4090", 8, 9, 165.2 * k1e12, 165.2 * k1e12, 330.3 * k1e12, 82.6 * k1e12,
             23.6, 1008 * kGb, 0, 4},
    KnownGpu{"rtx6000-ada", "RTX 6000 Ada", 8, 9, 364.2 * k1e12, 364.2 * k1e12, 728.5 * k1e12,
             91.1 * k1e12, 47.4, 960 * kGb, 0, 4},
    KnownGpu{"l4", "L4", 8, 9, 121 * k1e12, 121 * k1e12, 242 * k1e12, 30.3 * k1e12, 22.0, 300 * kGb,
             0, 4},
    KnownGpu{"l40", "L40", 8, 9, 181 * k1e12, 181 * k1e12, 362 * k1e12, 90.5 * k1e12, 44.3,
             864 * kGb, 0, 4},
    KnownGpu{"l40s", "L40S", 8, 9, 362 * k1e12, 362 * k1e12, 733 * k1e12, 91.6 * k1e12, 44.3,
             864 * kGb, 0, 4},
    KnownGpu{"h20", "H20", 9, 0, 148 * k1e12, 148 * k1e12, 296 * k1e12, 44 * k1e12, 95.0,
             4000 * kGb, 900 * kGb, 5},
    KnownGpu{"h100-pcie", "H100 PCIe", 9, 0, 756 * k1e12, 756 * k1e12, 1513 * k1e12, 51 * k1e12,
             79.1, 2000 * kGb, 0, 5},
    KnownGpu{"h100", "H100", 9, 0, 989.4 * k1e12, 989.4 * k1e12, 1979 * k1e12, 67 * k1e12, 79.2,
             3350 * kGb, 900 * kGb, 5},
    KnownGpu{"h100-nvl", "H100 NVL", 9, 0, 835 * k1e12, 835 * k1e12, 1671 * k1e12, 60 * k1e12, 93.1,
             3900 * kGb, 0, 5},
    KnownGpu{"h200", "H200", 9, 0, 989.4 * k1e12, 989.4 * k1e12, 1979 * k1e12, 67 * k1e12, 139.8,
             4800 * kGb, 900 * kGb, 5},
    KnownGpu{"h200-nvl", "H200 NVL", 9, 0, 835 * k1e12, 835 * k1e12, 1671 * k1e12, 60 * k1e12,
             139.8, 4800 * kGb, 0, 5},
    KnownGpu{"gh200", "GH200", 9, 0, 989.4 * k1e12, 989.4 * k1e12, 1979 * k1e12, 67 * k1e12, 94.5,
             4000 * kGb, 900 * kGb, 5},
    KnownGpu{"b200", "B200", 10, 0, 2250 * k1e12, 2250 * k1e12, 4500 * k1e12, 75 * k1e12, 178.3,
             8000 * kGb, 1800 * kGb, 5},
    KnownGpu{"b300", "B300", 10, 3, 2250 * k1e12, 2250 * k1e12, 4500 * k1e12, 75 * k1e12, 267.7,
             8000 * kGb, 1800 * kGb, 5},
    KnownGpu{"rtx5090", "RTX 5090", 12, 0, 209.5 * k1e12, 209.5 * k1e12, 419 * k1e12, 104.8 * k1e12,
             31.3, 1792 * kGb, 0, 5},
    KnownGpu{"pro6000", "RTX PRO 6000 Blackwell", 12, 0, 503.8 * k1e12, 503.8 * k1e12,
             1007.6 * k1e12, 126 * k1e12, 94.9, 1792 * kGb, 0, 5},
};

/// Words by which a card is another one than the rest of its name says.
constexpr std::array<std::string_view, 11> kOtherCards = {
    "laptop", "mobile", "max", "mig", "ti", "super", "d", "3e", "cmp", "grid", "notebook"};

std::string lower(std::string_view text) {
  std::string small(text);
  std::ranges::transform(small, small.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return small;
}

/// Runs of letters and digits, in small letters.
std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words(1);
  for (const char c : lower(text)) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      words.back() += c;
    } else if (!words.back().empty()) {
      words.emplace_back();
    }
  }
  if (words.back().empty()) words.pop_back();
  return words;
}

bool holds(const std::vector<std::string>& words, std::string_view word) {
  return std::ranges::find(words, word) != words.end();
}

/// FLOP of a multiprocessor in a clock: products of 16 bits with sums in fp32, dense.
double product_flops(int major, int minor, bool geforce) {
  if (major == 10) return 8192;
  if (major == 9) return 4096;
  if (major == 8 && minor == 0) return 2048;
  return geforce ? 512 : 1024;
}

/// The part of a Machine's name before what is said about it.
std::string_view card_of(std::string_view name) {
  for (const std::string_view end : {" (", ", as those of ", " as measured on "})
    name = name.substr(0, name.find(end));
  return name;
}

}  // namespace

double KnownGpu::flops_per_s() const {
  return bf16_flops_per_s > 0 ? bf16_flops_per_s : fp16_flops_per_s;
}

std::span<const KnownGpu> known_gpus() { return kGpus; }

const KnownGpu* find_gpu(const std::string& name) {
  const std::string card = lower(card_of(name));
  for (const KnownGpu& gpu : kGpus) {
    if (card == gpu.name) return &gpu;
  }
  const std::vector<std::string> words = words_of(card);
  for (const std::string_view other : kOtherCards) {
    if (holds(words, other)) return nullptr;
  }
  const KnownGpu* found = nullptr;
  std::size_t max = 0;
  for (const KnownGpu& gpu : kGpus) {
    const std::vector<std::string> asked = words_of(gpu.words);
    const bool all =
        std::ranges::all_of(asked, [&](const auto& word) { return holds(words, word); });
    if (all && asked.size() > max) found = &gpu, max = asked.size();
  }
  return found;
}

std::vector<std::string> machine_names() {
  std::vector<std::string> names = built_in_machines();
  for (const KnownGpu& gpu : kGpus) {
    if (std::ranges::find(names, gpu.name) == names.end()) names.emplace_back(gpu.name);
  }
  return names;
}

Machine estimated_machine(const KnownGpu& gpu) {
  const Machine known = h200();
  const KnownGpu& sheet = *find_gpu(known.name);
  // Shares of the datasheet's rates that an H200 reaches in steps.
  const double products = known.flops_per_s / sheet.flops_per_s();
  const double memory = known.memory_bytes_per_s / sheet.memory_bytes_per_s;
  // One direction of 16 lanes of the first generation that counts here, 3.
  const auto pcie = [](int generation) { return 15.75e9 * std::exp2(generation - 3); };
  const double to_host = pcie(gpu.pcie) / pcie(sheet.pcie);
  Machine machine = known;
  machine.name = fmt::format("{} (estimated, no measurement of this card{})", gpu.name,
                             gpu.major * 10 + gpu.minor < 75 ? "; for plans alone" : "");
  machine.flops_per_s = products * gpu.flops_per_s();
  machine.fp8_flops_per_s = known.fp8_flops_per_s / sheet.fp8_flops_per_s * gpu.fp8_flops_per_s;
  machine.fp32_flops_per_s =
      known.fp32_flops_per_s / sheet.vector_flops_per_s * gpu.vector_flops_per_s;
  machine.attention_flops_per_s =
      known.attention_flops_per_s / known.flops_per_s * machine.flops_per_s;
  machine.vector_flops_per_s =
      known.vector_flops_per_s / sheet.vector_flops_per_s * gpu.vector_flops_per_s;
  machine.memory_bytes_per_s = memory * gpu.memory_bytes_per_s;
  machine.host_link_bytes_per_s = to_host * known.host_link_bytes_per_s;
  machine.host_duplex_bytes_per_s = to_host * known.host_duplex_bytes_per_s;
  machine.device_memory = std::llround(std::ldexp(gpu.memory_gib, 30));
  machine.limits = gpu.limits();
  if (gpu.nvlink_bytes_per_s > 0) {
    const double link = gpu.nvlink_bytes_per_s / sheet.nvlink_bytes_per_s;
    machine.link_bytes_per_s = link * known.link_bytes_per_s;
    machine.copy_beside_product_bytes_per_s = link * known.copy_beside_product_bytes_per_s;
    machine.copy_beside_batch_bytes_per_s = link * known.copy_beside_batch_bytes_per_s;
  } else {
    // Every byte goes down to the host and up again.
    machine.link_bytes_per_s = machine.host_link_bytes_per_s / 2;
    machine.peer_copies = false;
  }
  return machine;
}

Machine estimated_machine(const GpuFigures& figures) {
  const std::pair capability(figures.major, figures.minor);
  const bool geforce = holds(words_of(figures.name), "geforce");
  const double clocks = figures.multiprocessors * figures.clock_hz;
  const double narrow = clocks * product_flops(figures.major, figures.minor, geforce);
  const double cores = capability <= std::pair(8, 0) ? 64 : 128;
  const KnownGpu gpu = {.name = figures.name.c_str(),
                        .words = "",
                        .major = figures.major,
                        .minor = figures.minor,
                        .bf16_flops_per_s = figures.major >= 8 ? narrow : 0,
                        .fp16_flops_per_s = narrow,
                        .fp8_flops_per_s = capability >= std::pair(8, 9) ? 2 * narrow : 0,
                        .vector_flops_per_s = 2 * cores * clocks,
                        .memory_gib = std::ldexp(static_cast<double>(figures.memory), -30),
                        .memory_bytes_per_s = figures.memory_bytes_per_s,
                        .nvlink_bytes_per_s = 0,
                        .pcie = figures.major >= 8 ? 4 : 3};
  Machine machine = estimated_machine(gpu);
  machine.name = fmt::format("{} (estimated from its clocks; dstrain doctor --measure measures it)",
                             figures.name);
  return machine;
}

}  // namespace dstrain
