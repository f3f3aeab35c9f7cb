#include "engine/program/measured_machine.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/input_file.h"
#include "engine/base/json.h"
#include "engine/base/user_folders.h"
#include "engine/program/known_gpus.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
constexpr std::uint64_t kLargest = 1 << 20;

/// Names every field once, for reader and writer.
template <class Visitor, class Rates>
void describe(Visitor&& v, Rates& r) {
  v("device", r.device), v("measured", r.measured), v("host", r.host);
  v("num_devices", r.num_devices), v("flops_per_s", r.flops_per_s);
  v("burst_flops_per_s", r.burst_flops_per_s), v("memory_bytes_per_s", r.memory_bytes_per_s);
  v("host_link_bytes_per_s", r.host_link_bytes_per_s);
  v("pageable_link_bytes_per_s", r.pageable_link_bytes_per_s);
  v("host_copy_bytes_per_s", r.host_copy_bytes_per_s), v("link_bytes_per_s", r.link_bytes_per_s);
  v("collective_latency_s", r.collective_latency_s), v("device_memory_bytes", r.device_memory);
  v("host_duplex_bytes_per_s", r.host_duplex_bytes_per_s);
  v("host_memory_bytes_per_s", r.host_memory_bytes_per_s);
  v("host_update_bytes_per_s", r.host_update_bytes_per_s);
  v("host_update_dma_bytes_per_s", r.host_update_dma_bytes_per_s);
  v("host_threads", r.host_threads), v("arena_s_per_gib", r.arena_s_per_gib);
  v("file_read_bytes_per_s", r.file_read_bytes_per_s);
  v("file_write_bytes_per_s", r.file_write_bytes_per_s);
  v("communicator_memory_bytes", r.communicator_memory);
  v("fp8_flops_per_s", r.fp8_flops_per_s);
  v("network_measured", r.network.measured), v("network_hosts", r.network.hosts);
  v("network_ranks", r.network.ranks), v("network_bytes_per_s", r.network.bytes_per_s);
  v("network_latency_s", r.network.latency_s);
  v("shared_bytes_per_s", r.shared_bytes_per_s), v("shared_latency_s", r.shared_latency_s);
}

Json to_json(const MeasuredRates& rates) {
  Json entry;
  describe([&entry](const char* name, const auto& value) { entry[name] = value; }, rates);
  return entry;
}

/// A field that is not there keeps 0: older files have fewer.
MeasuredRates from_json(const nlohmann::json& entry) {
  MeasuredRates rates;
  describe(
      [&entry](const char* name, auto& value) {
        if (const auto found = entry.find(name); found != entry.end()) found->get_to(value);
      },
      rates);
  return rates;
}

/// The plan of a gather of few bytes over as many ranks takes as long as it did. Groups with one
/// rank in each host that gather by trees have told nothing of rings.
void take_network(Machine& machine, const NetworkRates& network) {
  if (network.hosts < 2 || network.ranks < network.hosts || network.bytes_per_s <= 0) return;
  machine.network_bytes_per_s = network.bytes_per_s;
  machine.network_source = fmt::format("measured on {} over {} hosts with {} ranks",
                                       network.measured, network.hosts, network.ranks);
  if (machine.lone_ranks_by_trees && network.ranks == network.hosts) {
    machine.network_source += ", the hop built in";
    return;
  }
  machine.hop_latency_s =
      std::max(0.0, network.latency_s - machine.collective_latency_s) / (network.ranks - 1);
}

const MeasuredRates* entry_of(const std::vector<MeasuredRates>& all, const std::string& device) {
  const auto found = std::ranges::find(all, device, &MeasuredRates::device);
  return found == all.end() ? nullptr : &*found;
}

}  // namespace

fs::path measured_file() {
  const fs::path config = user_config_folder(::getenv);
  return config.empty() ? config : config / "dstrain/machine.json";
}

fs::path measured_file_to_write() {
  fs::path file = measured_file();
  if (file.empty()) {
    throw Error(ErrorKind::usage, "neither XDG_CONFIG_HOME nor HOME is set",
                "set one of them: the rates are kept below it");
  }
  return file;
}

std::string rates_text(const MeasuredRates& rates) { return json_text(to_json(rates)); }

MeasuredRates parse_rates(const std::string& text) {
  try {
    return from_json(parse_json(text, "the rates of rank 0's machine", {.bytes = kLargest}));
  } catch (const nlohmann::json::exception& wrong) {
    throw Error(ErrorKind::data, fmt::format("rates of a machine: {}", wrong.what()));
  }
}

std::vector<MeasuredRates> read_measured(const fs::path& file) {
  std::vector<MeasuredRates> all;
  if (file.empty() || !path_exists(file)) return all;
  try {
    const nlohmann::json json = read_json_object(file, {.bytes = kLargest});
    for (const nlohmann::json& entry :
         json.at("machines").get_ref<const nlohmann::json::array_t&>()) {
      const MeasuredRates& rates = all.emplace_back(from_json(entry));
      if (!entry.is_object() || rates.device.empty() || rates.flops_per_s < 0 ||
          rates.memory_bytes_per_s < 0) {
        throw Error(ErrorKind::data,
                    file.string() + ": an entry names no device or a negative rate");
      }
    }
  } catch (const nlohmann::json::exception& wrong) {
    throw Error(ErrorKind::data, fmt::format("{}: {}", file.string(), wrong.what()),
                "remove it and run `dstrain doctor --measure`");
  }
  return all;
}

void save_measured(const fs::path& file, MeasuredRates rates) {
  std::vector<MeasuredRates> all = read_measured(file);
  const MeasuredRates* before = entry_of(all, rates.device);
  if (before != nullptr && rates.network.hosts == 0) rates.network = before->network;
  std::erase_if(all, [&](const MeasuredRates& other) { return other.device == rates.device; });
  all.push_back(std::move(rates));
  Json json;
  json["machines"] = Json::array();
  for (const MeasuredRates& each : all) json["machines"].push_back(to_json(each));
  fs::create_directories(file.parent_path());
  write_file_atomically(file, json_text(json, 2) + "\n");
}

void save_network(const fs::path& file, const std::string& device, const NetworkRates& network) {
  const std::vector<MeasuredRates> all = read_measured(file);
  const MeasuredRates* before = entry_of(all, device);
  MeasuredRates rates = before != nullptr ? *before : MeasuredRates();
  rates.device = device;
  rates.network = network;
  save_measured(file, std::move(rates));
}

Machine to_machine(const MeasuredRates& rates) {
  Machine machine = built_in_machine(rates.device);
  if (!rates.measured.empty())
    machine.name = fmt::format("{} as measured on {}", rates.device, rates.measured);
  const auto take = [](auto& known, auto found) {
    if (found > 0) known = found;
  };
  // Attention and fp32 are not measured, nor was FP8 once: they have the built-in ratios to other
  // products.
  if (rates.flops_per_s > 0) {
    const double ratio = rates.flops_per_s / machine.flops_per_s;
    machine.fp8_flops_per_s *= ratio;
    machine.fp32_flops_per_s *= ratio;
    machine.attention_flops_per_s *= ratio;
  }
  take(machine.flops_per_s, rates.flops_per_s);
  take(machine.fp8_flops_per_s, rates.fp8_flops_per_s);
  take(machine.memory_bytes_per_s, rates.memory_bytes_per_s);
  take(machine.host_link_bytes_per_s, rates.host_link_bytes_per_s);
  take(machine.link_bytes_per_s, rates.link_bytes_per_s);
  take(machine.collective_latency_s, rates.collective_latency_s);
  take(machine.device_memory, rates.device_memory);
  take(machine.host_duplex_bytes_per_s, rates.host_duplex_bytes_per_s);
  // The devices of a host share its memory, its cores and its disk.
  const int ranks = std::max(1, rates.num_devices);
  take(machine.host_memory_bytes_per_s, rates.host_memory_bytes_per_s / ranks);
  take(machine.host_update_bytes_per_s, rates.host_update_bytes_per_s / ranks);
  take(machine.file_read_bytes_per_s, rates.file_read_bytes_per_s / ranks);
  take(machine.file_write_bytes_per_s, rates.file_write_bytes_per_s / ranks);
  take(machine.communicator_overhead, rates.communicator_memory);
  take(machine.shared_bytes_per_s, rates.shared_bytes_per_s);
  take(machine.shared_latency_s, rates.shared_latency_s);
  if (machine.shares_memory && rates.host_threads > 0) {
    machine.cores = rates.host_threads;
    machine.cores_source = "as measured";
  }
  if (rates.num_devices > 1) machine.ranks_per_node = rates.num_devices;
  take_network(machine, rates.network);
  return machine;
}

std::optional<MeasuredRates> find_rates(const std::vector<MeasuredRates>& all,
                                        const std::string& device) {
  const MeasuredRates* rates = entry_of(all, device);
  if (rates == nullptr) return std::nullopt;
  const bool known = rates->flops_per_s > 0 || device == "CPU" || find_gpu(device) != nullptr;
  return known ? std::optional(*rates) : std::nullopt;
}

std::optional<Machine> find_measured(const std::vector<MeasuredRates>& all,
                                     const std::string& device) {
  const auto rates = find_rates(all, device);
  return rates ? std::optional(to_machine(*rates)) : std::nullopt;
}

Machine choose_machine(const std::string& name, const std::vector<MeasuredRates>& measured) {
  std::vector<std::string> known = machine_names();
  if (std::find(known.begin(), known.end(), name) != known.end()) return find_machine(name);
  for (const MeasuredRates& rates : measured) {
    if (!name.empty() && rates.device.find(name) != std::string::npos) return to_machine(rates);
    known.push_back("'" + rates.device + "'");
  }
  throw Error(ErrorKind::usage, fmt::format("no machine is called '{}'", name),
              fmt::format("known: {}; `dstrain doctor --measure` adds the one it runs on",
                          fmt::join(known, ", ")));
}

std::string installed_gpu(const fs::path& proc) {
  std::vector<fs::path> gpus;
  std::error_code error;
  fs::directory_iterator entry(proc / "driver" / "nvidia" / "gpus", error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error))
    gpus.push_back(entry->path());
  std::sort(gpus.begin(), gpus.end());
  if (gpus.empty()) return {};
  std::ifstream file(gpus.front() / "information");
  constexpr std::string_view kModel = "Model:";
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(kModel)) continue;
    const auto start = line.find_first_not_of(" \t", kModel.size());
    return start == std::string::npos ? std::string() : line.substr(start);
  }
  return {};
}

}  // namespace dstrain
