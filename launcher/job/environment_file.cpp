#include "launcher/job/environment_file.h"

#include <sys/utsname.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>

#include "engine/base/json.h"
#include "engine/base/system_files.h"

namespace dstrain::launcher {
namespace {

using Json = nlohmann::ordered_json;

bool is_relevant(const std::string& entry) {
  constexpr std::array<std::string_view, 9> kPrefixes = {
      "CUDA_", "NCCL_", "GLOO_", "OMP_", "GOMP_", "MKL_", "DSTRAIN_", "TORCH_", "SLURM_JOB_ID="};
  return std::any_of(kPrefixes.begin(), kPrefixes.end(),
                     [&entry](std::string_view prefix) { return entry.starts_with(prefix); });
}

Json installed_gpus() {
  Json names = Json::array();
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/driver/nvidia/gpus", error)) {
    names.push_back(read_field(entry.path() / "information", "Model"));
  }
  return names;
}

/// "--env NAME=VALUE" and "--env=NAME=VALUE" without the values, which are of the ranks alone.
std::vector<std::string> without_values(std::vector<std::string> words) {
  constexpr std::string_view kOption = "--env";
  bool follows = false;  // the option, as a word of its own
  for (std::string& word : words) {
    const bool joined = word.starts_with("--env=");
    const auto equals = word.find('=', joined ? kOption.size() + 1 : 0);
    if ((follows || joined) && equals != std::string::npos)
      word = word.substr(0, equals + 1).append(kSecretMask);
    follows = word == kOption;
  }
  return words;
}

/// In the values, before JSON writes some characters in another way.
void strike_out(Json& json, const Redactor& redactor) {
  if (json.is_string()) redactor.apply(json.get_ref<std::string&>());
  if (!json.is_structured()) return;
  for (Json& inner : json) strike_out(inner, redactor);
}

}  // namespace

std::string describe_environment(const std::string& build,
                                 const std::vector<std::string>& command_line,
                                 const Machine& machine, const Placement& placement,
                                 const Redactor& redactor) {
  Json json;
  json["build"] = build;
  json["command_line"] = without_values(command_line);
  utsname system{};
  if (::uname(&system) == 0) {
    json["system"] = std::string(system.sysname) + " " + system.release + " " + system.machine;
  }
  json["gpu_driver"] = read_field("/proc/driver/nvidia/version", "NVRM version");
  json["gpus_installed"] = machine.gpus_installed;
  json["gpu_names"] = installed_gpus();
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
      const std::string name = entry.substr(0, equals);
      json["variables"][name] =
          is_secret_name(name) ? std::string(kSecretMask) : entry.substr(equals + 1);
    }
  }
  strike_out(json, redactor);
  return json_text(json, 2) + "\n";
}

}  // namespace dstrain::launcher
