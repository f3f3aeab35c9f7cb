#include "engine/program/known_gpus.h"

#include <map>
#include <set>

#include "test/support/catch.h"

using namespace dstrain;

namespace {

std::string card(const std::string& name) {
  const KnownGpu* gpu = find_gpu(name);
  return gpu == nullptr ? "" : gpu->name;
}

}  // namespace

TEST_CASE("cards are known by whole words of the driver's name", "[program][machine]") {
  const std::map<std::string, std::string> cards = {
      {"Tesla T4", "t4"},
      {"Tesla V100-SXM2-32GB", "v100-32"},
      {"Tesla V100-PCIE-16GB", "v100-16-pcie"},
      {"NVIDIA A100-SXM4-40GB", "a100-40"},
      {"NVIDIA A100-SXM4-80GB", "a100-80"},
      {"NVIDIA A100 80GB PCIe", "a100-80-pcie"},
      {"NVIDIA L4", "l4"},
      {"NVIDIA L40", "l40"},
      {"NVIDIA L40S", "l40s"},
      {"NVIDIA RTX A6000", "a6000"},
      {"NVIDIA RTX 6000 Ada Generation", "rtx6000-ada"},
      {"NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "pro6000"},
      {"NVIDIA GeForce RTX 4090", "rtx4090"},
      {"NVIDIA H100 80GB HBM3", "h100"},
      {"NVIDIA H100 PCIe", "h100-pcie"},
      {"NVIDIA H100 NVL", "h100-nvl"},
      {"NVIDIA H200", "h200"},
      {"NVIDIA GH200 480GB", "gh200"},
      {"NVIDIA H100 80GB HBM3 as measured on 2026-11-21", "h100"},
      {"rtx4090", "rtx4090"},
      {"rtx4090 (estimated, no measurement of this card)", "rtx4090"},
      {"NVIDIA RTX A1000", ""},
      {"NVIDIA A100-SXM4-40GB MIG 1g.5gb", ""},
      {"NVIDIA GeForce RTX 4090 Laptop GPU", ""},
      {"NVIDIA GeForce RTX 4090 D", ""},
      {"NVIDIA GeForce RTX 3090 Ti", ""},
      {"CPU", ""},
      {"", ""}};
  for (const auto& [name, known] : cards) {
    INFO(name);
    CHECK(card(name) == known);
  }
}

TEST_CASE("every card of the table can be planned for, and says that it was not measured",
          "[program][machine]") {
  std::set<std::string> names;
  for (const KnownGpu& gpu : known_gpus()) {
    INFO(gpu.name);
    CHECK(names.insert(gpu.name).second);
    CHECK(find_gpu(gpu.words) == &gpu);
    CHECK((gpu.bf16_flops_per_s > 0) == gpu.limits().bf16_products);
    CHECK((gpu.fp8_flops_per_s > 0) == gpu.limits().fp8_products);
    CHECK(gpu.flops_per_s() > 0);
    const Machine machine = find_machine(gpu.name);
    CHECK(find_gpu(machine.name) == &gpu);
    CHECK(machine.device_memory > Bytes{14} << 30);
    CHECK(machine.flops_per_s > 0);
    CHECK(machine.link_bytes_per_s > 0);
    CHECK(machine.flops_per_s < gpu.flops_per_s());
    CHECK(machine.memory_bytes_per_s < gpu.memory_bytes_per_s);
    const bool measured = machine.name == "h200" || machine.name == "h100";
    CHECK((machine.name.find("estimated, no measurement of this card") == std::string::npos) ==
          measured);
    CHECK(machine.peer_copies == (gpu.nvlink_bytes_per_s > 0));
  }
  CHECK(estimated_machine(*find_gpu("h200")).flops_per_s == Approx(h200().flops_per_s));
  CHECK(estimated_machine(*find_gpu("h200")).link_bytes_per_s == Approx(h200().link_bytes_per_s));
  CHECK(find_machine("rtx4090").flops_per_s == Approx(165.2e12 * 670 / 989.4));
  CHECK(find_machine("t4").fp8_flops_per_s == 0);
}

TEST_CASE("a card that is not in the table is estimated by its clocks", "[program][machine]") {
  // Multiprocessors and boost clocks of NVIDIA's datasheets.
  const auto check = [](const char* card, const std::string& name, int processors, double clock) {
    const KnownGpu& sheet = *find_gpu(card);
    const Machine known = estimated_machine(sheet);
    const Machine found = estimated_machine({.name = name,
                                             .major = sheet.major,
                                             .minor = sheet.minor,
                                             .multiprocessors = processors,
                                             .clock_hz = clock,
                                             .memory_bytes_per_s = sheet.memory_bytes_per_s,
                                             .memory = known.device_memory});
    INFO(card);
    CHECK(found.flops_per_s == Approx(known.flops_per_s).epsilon(0.02));
    CHECK(found.fp8_flops_per_s == Approx(known.fp8_flops_per_s).epsilon(0.02));
    CHECK(found.vector_flops_per_s == Approx(known.vector_flops_per_s).epsilon(0.02));
    CHECK(found.memory_bytes_per_s == Approx(known.memory_bytes_per_s));
    CHECK(found.device_memory == Approx(static_cast<double>(known.device_memory)));
    CHECK(found.limits.shared_block == known.limits.shared_block);
    CHECK(found.name.find("estimated from its clocks") != std::string::npos);
  };
  check("t4", "Tesla T4", 40, 1.59e9);
  check("a100-80", "A100", 108, 1.41e9);
  check("rtx3090", "NVIDIA GeForce RTX 3090", 82, 1.695e9);
  check("a6000", "NVIDIA RTX A6000", 84, 1.8e9);
  check("rtx4090", "NVIDIA GeForce RTX 4090", 128, 2.52e9);
  check("l40s", "NVIDIA L40S", 142, 2.52e9);
  check("rtx5090", "NVIDIA GeForce RTX 5090", 170, 2.407e9);
  check("pro6000", "NVIDIA RTX PRO 6000 Blackwell", 188, 2.617e9);
}

TEST_CASE("a card that is not known is not an H200 without a word", "[program][machine]") {
  CHECK(built_in_machine("NVIDIA H200").name == "h200");
  const std::string name = built_in_machine("NVIDIA RTX A1000").name;
  CHECK(name == "h200, as those of 'NVIDIA RTX A1000' are not known: dstrain doctor --measure");
  CHECK(datasheet_flops("NVIDIA RTX A1000") == 0);
  CHECK(datasheet_flops("NVIDIA L40") == 181e12);
  CHECK(datasheet_flops("NVIDIA L4") == 121e12);
  CHECK(datasheet_flops("Tesla T4") == 65e12);
}
