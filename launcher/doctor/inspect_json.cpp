#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/base/json.h"
#include "launcher/doctor/inspect.h"

namespace dstrain::launcher {

// Found by the library through their arguments, so not in an unnamed namespace. Unknown fields are
// left out, absent ones keep their default.

inline void to_json(nlohmann::json& json, NetworkInterface::Kind kind) { json = kind_name(kind); }

inline void from_json(const nlohmann::json& json, NetworkInterface::Kind& kind) {
  using enum NetworkInterface::Kind;
  const auto name = json.get<std::string>();
  for (const auto each : {loopback, ethernet, infiniband, wireless, virtual_link, other}) {
    if (name == kind_name(each)) kind = each;
  }
}

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(GpuProcess, pid, name, memory_bytes)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(GpuFacts, index, name, uuid, memory_bytes,
                                                used_bytes, temperature_c, throttled,
                                                corrected_errors, uncorrected_errors, remap_pending,
                                                remap_failed, pcie_lanes, pcie_lanes_max, nvlinks,
                                                processes)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(DiskFacts, purpose, path, exists, free_bytes,
                                                total_bytes)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(RdmaPort, name, state, rate)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(LibraryFacts, name, version, path)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(EngineFacts, loads, path, error, missing, torch,
                                                libraries)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(NetworkInterface, name, address, kind, mbit_per_s)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Inspection, host, build, kernel, arch, system,
                                                cores, cores_installed, numa_nodes, memory_bytes,
                                                available_bytes, memory_limit_bytes, locked_bytes,
                                                open_files, shm_bytes, disks, clock_ns, gpu_nodes,
                                                gpus_visible, driver, driver_cuda, gpus, gpu_events,
                                                interfaces, rdma, peermem, ptrace_scope, engine)

namespace {

template <class Value>
nlohmann::json json_of(const std::optional<Value>& value) {
  return value ? nlohmann::json(*value) : nlohmann::json();
}

template <class Value>
void read_optional(const nlohmann::json& json, const char* name, std::optional<Value>& value) {
  const auto found = json.find(name);
  if (found != json.end() && !found->is_null()) value = found->get<Value>();
}

}  // namespace

std::string to_json(const Inspection& inspection) {
  nlohmann::json json = inspection;
  json["visible_devices"] = json_of(inspection.visible_devices);
  json["route"] = json_of(inspection.route);
  // Names of processes and paths are bytes, which need not be UTF-8.
  return json_text(json);
}

Inspection inspection_from_json(std::string_view json) {
  try {
    const nlohmann::json parsed =
        parse_json(json, "the answer of `dstrain agent`", {.kind = ErrorKind::hosts});
    auto inspection = parsed.get<Inspection>();
    read_optional(parsed, "visible_devices", inspection.visible_devices);
    read_optional(parsed, "route", inspection.route);
    return inspection;
  } catch (const nlohmann::json::exception& error) {
    throw Error(
        ErrorKind::hosts,
        std::string("the answer of `dstrain agent` is not what doctor asked for: ") + error.what(),
        "install the same version of dstrain everywhere");
  }
}

}  // namespace dstrain::launcher
