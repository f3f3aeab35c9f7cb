#include "engine/program/measured_machine.h"

#include <fstream>

#include "engine/base/error.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"

using namespace dstrain;

namespace {

MeasuredRates example() {
  return {.device = "NVIDIA H100 80GB HBM3",
          .measured = "2026-11-21",
          .host = "n1",
          .num_devices = 4,
          .flops_per_s = 500e12,
          .memory_bytes_per_s = 2.9e12,
          .host_link_bytes_per_s = 54e9,
          .link_bytes_per_s = 310e9,
          .collective_latency_s = 18e-6,
          .device_memory = Bytes{80} << 30};
}

}  // namespace

TEST_CASE("measured rates survive the file, one entry per device", "[program][machine]") {
  test::TempDir folder;
  const auto file = folder / "new" / "machine.json";
  CHECK(read_measured(file).empty());
  save_measured(file, example());
  MeasuredRates processor;
  processor.device = "CPU";
  processor.measured = "2026-11-20";
  processor.flops_per_s = 70e9;
  save_measured(file, processor);
  MeasuredRates again = example();
  again.flops_per_s = 510e12;
  save_measured(file, again);
  const auto all = read_measured(file);
  REQUIRE(all.size() == 2);
  CHECK(all[0].device == "CPU");
  CHECK(all[1].flops_per_s == 510e12);
  CHECK(all[1].collective_latency_s == 18e-6);
  CHECK(all[1].device_memory == Bytes{80} << 30);
  CHECK(all[1].host == "n1");
}

TEST_CASE("rates survive the way from rank to rank, and old files are read", "[program][machine]") {
  MeasuredRates rates = example();
  rates.host_duplex_bytes_per_s = 88.6e9;
  rates.host_memory_bytes_per_s = 400e9;
  rates.host_update_bytes_per_s = 320e9;
  rates.file_write_bytes_per_s = 2e9;
  rates.communicator_memory = Bytes{600} << 20;
  const MeasuredRates taken = parse_rates(rates_text(rates));
  CHECK(rates_text(taken) == rates_text(rates));
  const Machine machine = to_machine(taken);
  CHECK(machine.host_duplex_bytes_per_s == 88.6e9);
  // Four devices share the host.
  CHECK(machine.host_memory_bytes_per_s == 100e9);
  CHECK(machine.host_update_bytes_per_s == 80e9);
  CHECK(machine.file_write_bytes_per_s == 0.5e9);
  CHECK(machine.communicator_overhead == Bytes{600} << 20);
  rates.fp8_flops_per_s = 900e12;
  CHECK(to_machine(parse_rates(rates_text(rates))).fp8_flops_per_s == 900e12);
  const MeasuredRates old = parse_rates(R"({"device": "CPU", "flops_per_s": 1e9})");
  CHECK(old.host_memory_bytes_per_s == 0);
  CHECK(to_machine(old).host_memory_bytes_per_s == cpu().host_memory_bytes_per_s);
  CHECK_THROWS_AS(parse_rates("[1"), Error);
}

TEST_CASE("what was measured replaces the built-in figure, what was not stays",
          "[program][machine]") {
  const Machine machine = to_machine(example());
  CHECK(machine.name == "NVIDIA H100 80GB HBM3 as measured on 2026-11-21");
  CHECK(machine.flops_per_s == 500e12);
  // FP8 was not measured: as many times faster as on the built-in machine.
  CHECK(machine.fp8_flops_per_s == Approx(500e12 * h100().fp8_flops_per_s / h100().flops_per_s));
  CHECK(machine.attention_flops_per_s ==
        Approx(500e12 * h100().attention_flops_per_s / h100().flops_per_s));
  CHECK(machine.ranks_per_node == 4);
  CHECK(machine.network_bytes_per_s == h200().network_bytes_per_s);
  MeasuredRates alone = example();
  alone.num_devices = 1;
  alone.link_bytes_per_s = 0;
  CHECK(to_machine(alone).link_bytes_per_s == h200().link_bytes_per_s);
  CHECK(to_machine(alone).ranks_per_node == h200().ranks_per_node);
  MeasuredRates processor;
  processor.device = "CPU";
  CHECK(to_machine(processor).flops_per_s == cpu().flops_per_s);
  CHECK(to_machine(processor).shared_latency_s == cpu().shared_latency_s);
  processor.shared_bytes_per_s = 3e9;
  processor.shared_latency_s = 7e-6;
  processor.host_threads = 48;
  const Machine taken = to_machine(parse_rates(rates_text(processor)));
  CHECK(taken.shared_bytes_per_s == 3e9);
  CHECK(taken.shared_latency_s == 7e-6);
  CHECK(taken.cores == 48);
  CHECK(taken.cores_source == "as measured");
}

TEST_CASE("rates between hosts are kept beside those of a machine, and plans take both",
          "[program][machine]") {
  test::TempDir folder;
  const auto file = folder / "machine.json";
  const NetworkRates network{.measured = "2026-11-30",
                             .hosts = 4,
                             .ranks = 32,
                             .bytes_per_s = 300e9,
                             .latency_s = 18e-6 + 31 * 3e-6};
  save_network(file, example().device, network);
  save_measured(file, example());
  save_network(
      file, "CPU",
      {.measured = "2026-11-30", .hosts = 2, .ranks = 2, .bytes_per_s = 1e9, .latency_s = 1e-3});
  const auto all = read_measured(file);
  const Machine both = *find_measured(all, example().device);
  CHECK(both.flops_per_s == 500e12);
  CHECK(both.network_bytes_per_s == 300e9);
  CHECK(both.hop_latency_s == Approx(3e-6));
  CHECK(both.network_source == "measured on 2026-11-30 over 4 hosts with 32 ranks");
  const Machine alone = *find_measured(all, "CPU");
  CHECK(alone.name == "cpu");
  CHECK(alone.hop_latency_s == Approx(1e-3 - cpu().collective_latency_s));

  // NCCL gathers by trees where each host has one rank, which says nothing of rings.
  MeasuredRates lone = example();
  lone.network = network;
  lone.network.ranks = 4;
  CHECK(to_machine(lone).hop_latency_s == h100().hop_latency_s);
  CHECK(to_machine(lone).network_source.ends_with("with 4 ranks, the hop built in"));

  // A card of which nothing else is known.
  save_network(file, "NVIDIA Unheard 1", network);
  CHECK_FALSE(find_measured(read_measured(file), "NVIDIA Unheard 1").has_value());
}

TEST_CASE("a machine is chosen by a part of its name, a wrong name lists what there is",
          "[program][machine]") {
  const std::vector<MeasuredRates> all = {example()};
  CHECK(choose_machine("H100", all).flops_per_s == 500e12);
  CHECK(choose_machine("h200", all).flops_per_s == h200().flops_per_s);
  CHECK(find_measured(all, "NVIDIA H100 80GB HBM3").has_value());
  CHECK_FALSE(find_measured(all, "NVIDIA H100").has_value());
  CHECK_FALSE(find_measured(all, "").has_value());
  try {
    (void)choose_machine("tpu", all);
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(std::string(error.what()) == "no machine is called 'tpu'");
    CHECK(error.hint().starts_with("known: h200, h100, cpu, t4, "));
    CHECK(error.hint().find(", b200, ") != std::string::npos);
    CHECK(
        error.hint().ends_with(", 'NVIDIA H100 80GB HBM3'; `dstrain doctor --measure` adds the "
                               "one it runs on"));
  }
}

TEST_CASE("a file of another format is refused by name", "[program][machine]") {
  test::TempDir folder;
  const auto file = folder / "machine.json";
  for (const char* text :
       {"", "[]", "{}", "{\"machines\": 3}", "{\"machines\": [3]}", "{\"machines\": [{}]}",
        "{\"machines\": [{\"device\": \"x\", \"flops_per_s\": -1}]}",
        "{\"machines\": [{\"device\": \"x\", \"flops_per_s\": \"fast\"}]}"}) {
    CAPTURE(text);
    std::ofstream(file) << text;
    CHECK_THROWS_AS(read_measured(file), Error);
  }
}

TEST_CASE("the driver's files name the GPU", "[program][machine]") {
  test::TempDir proc;
  CHECK(installed_gpu(proc.path()).empty());
  for (const char* bus : {"0000:3b:00.0", "0000:18:00.0"}) {
    const auto gpu = proc / "driver" / "nvidia" / "gpus" / bus;
    std::filesystem::create_directories(gpu);
    std::ofstream(gpu / "information") << "Model: \t\t NVIDIA H200\nIRQ:   \t\t 5\n";
  }
  CHECK(installed_gpu(proc.path()) == "NVIDIA H200");
}
