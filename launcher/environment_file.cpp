#include "launcher/environment_file.h"

#include <sys/utsname.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>

#include "launcher/redact.h"

namespace dstrain::launcher {
namespace {

using Json = nlohmann::ordered_json;

bool is_relevant(const std::string& entry) {
  constexpr std::array<std::string_view, 8> kPrefixes = {
      "CUDA_", "NCCL_", "GLOO_", "OMP_", "MKL_", "DSTRAIN_", "TORCH_", "SLURM_JOB_ID="};
  return std::any_of(kPrefixes.begin(), kPrefixes.end(),
                     [&entry](std::string_view prefix) { return entry.starts_with(prefix); });
}

/// Value of the line "name: value" in a file under /proc/driver/nvidia; empty without it.
std::string read_field(const std::filesystem::path& path, std::string_view name) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    if (!line.starts_with(name)) continue;
    const auto start = line.find_first_not_of(": \t", name.size());
    return start == std::string::npos ? std::string() : line.substr(start);
  }
  return {};
}

Json gpu_names() {
  Json names = Json::array();
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/driver/nvidia/gpus", error)) {
    names.push_back(read_field(entry.path() / "information", "Model"));
  }
  return names;
}

}  // namespace

std::string describe_environment(const std::string& build,
                                 const std::vector<std::string>& command_line,
                                 const Machine& machine, const Placement& placement) {
  Json json;
  json["build"] = build;
  json["command_line"] = command_line;
  utsname system{};
  if (::uname(&system) == 0) {
    json["system"] = std::string(system.sysname) + " " + system.release + " " + system.machine;
  }
  json["gpu_driver"] = read_field("/proc/driver/nvidia/version", "NVRM version");
  json["gpus_installed"] = machine.gpus_installed;
  json["gpu_names"] = gpu_names();
  json["world_size"] = placement.world_size;
  for (const NodePlacement& node : placement.nodes) {
    json["hosts"].push_back({{"name", node.host.name},
                             {"first_rank", node.first_rank},
                             {"ranks", node.num_ranks},
                             {"gpus", node.host.gpus},
                             {"cores", node.host.cores}});
  }
  json["variables"] = Json::object();
  for (const std::string& entry : own_environment()) {
    const auto equals = entry.find('=');
    if (is_relevant(entry) && equals != std::string::npos) {
      json["variables"][entry.substr(0, equals)] = entry.substr(equals + 1);
    }
  }
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace dstrain::launcher
