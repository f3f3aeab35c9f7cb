#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/base/json.h"
#include "launcher/doctor/inspect.h"

namespace dstrain::launcher {
namespace {

using Json = nlohmann::ordered_json;

// Each describe() names the fields of one struct once, for the writer and the reader.

template <class Visitor, class Facts>
  requires std::is_same_v<std::remove_const_t<Facts>, GpuProcess>
void describe(Visitor& v, Facts& f) {
  v("pid", f.pid), v("name", f.name), v("memory_bytes", f.memory_bytes);
}

template <class Visitor, class Facts>
  requires std::is_same_v<std::remove_const_t<Facts>, GpuFacts>
void describe(Visitor& v, Facts& f) {
  v("index", f.index), v("name", f.name), v("uuid", f.uuid);
  v("memory_bytes", f.memory_bytes), v("used_bytes", f.used_bytes);
  v("temperature_c", f.temperature_c), v("throttled", f.throttled);
  v("corrected_errors", f.corrected_errors), v("uncorrected_errors", f.uncorrected_errors);
  v("remap_pending", f.remap_pending), v("remap_failed", f.remap_failed);
  v("pcie_lanes", f.pcie_lanes), v("pcie_lanes_most", f.pcie_lanes_most);
  v("nvlinks", f.nvlinks), v("processes", f.processes);
}

template <class Visitor, class Facts>
  requires std::is_same_v<std::remove_const_t<Facts>, DiskFacts>
void describe(Visitor& v, Facts& f) {
  v("purpose", f.purpose), v("path", f.path), v("exists", f.exists);
  v("free_bytes", f.free_bytes), v("total_bytes", f.total_bytes);
}

template <class Visitor, class Facts>
  requires std::is_same_v<std::remove_const_t<Facts>, RdmaPort>
void describe(Visitor& v, Facts& f) {
  v("name", f.name), v("state", f.state), v("rate", f.rate);
}

template <class Visitor, class Facts>
  requires std::is_same_v<std::remove_const_t<Facts>, LibraryFacts>
void describe(Visitor& v, Facts& f) {
  v("name", f.name), v("version", f.version), v("path", f.path);
}

template <class Visitor, class Facts>
  requires std::is_same_v<std::remove_const_t<Facts>, EngineFacts>
void describe(Visitor& v, Facts& f) {
  v("loads", f.loads), v("path", f.path), v("error", f.error), v("missing", f.missing);
  v("libraries", f.libraries);
}

template <class Visitor, class Facts>
  requires std::is_same_v<std::remove_const_t<Facts>, NetworkInterface>
void describe(Visitor& v, Facts& f) {
  v("name", f.name), v("address", f.address), v("kind", f.kind), v("mbit_per_s", f.mbit_per_s);
}

template <class Visitor, class Facts>
  requires std::is_same_v<std::remove_const_t<Facts>, Inspection>
void describe(Visitor& v, Facts& f) {
  v("host", f.host), v("build", f.build), v("kernel", f.kernel), v("arch", f.arch);
  v("system", f.system), v("cores", f.cores), v("cores_installed", f.cores_installed);
  v("numa_nodes", f.numa_nodes), v("memory_bytes", f.memory_bytes);
  v("available_bytes", f.available_bytes), v("memory_limit_bytes", f.memory_limit_bytes);
  v("locked_bytes", f.locked_bytes), v("open_files", f.open_files), v("shm_bytes", f.shm_bytes);
  v("disks", f.disks), v("clock_ns", f.clock_ns), v("gpu_nodes", f.gpu_nodes);
  v("gpus_visible", f.gpus_visible), v("visible_devices", f.visible_devices);
  v("driver", f.driver), v("driver_cuda", f.driver_cuda), v("gpus", f.gpus);
  v("gpu_events", f.gpu_events), v("interfaces", f.interfaces), v("route", f.route);
  v("rdma", f.rdma), v("peermem", f.peermem), v("ptrace_scope", f.ptrace_scope);
  v("engine", f.engine);
}

class Writer {
 public:
  template <class Value>
  void operator()(const char* name, const Value& value) {
    json_[name] = write(value);
  }
  template <class Facts>
  static Json object(const Facts& facts) {
    Writer writer;
    describe(writer, facts);
    return writer.json_;
  }

 private:
  template <class Value>
    requires std::is_arithmetic_v<Value>
  static Json write(Value value) {
    return value;
  }
  static Json write(const std::string& value) { return value; }
  static Json write(NetworkInterface::Kind kind) { return kind_name(kind); }
  template <class Value>
  static Json write(const std::optional<Value>& value) {
    return value ? write(*value) : Json();
  }
  template <class Value>
  static Json write(const std::vector<Value>& values) {
    Json list = Json::array();
    for (const Value& value : values) list.push_back(write(value));
    return list;
  }
  template <class Facts>
    requires std::is_class_v<Facts>
  static Json write(const Facts& facts) {
    return object(facts);
  }

  Json json_ = Json::object();
};

class Reader {
  using Json = nlohmann::json;

 public:
  explicit Reader(const Json& json) : json_(json) {}

  template <class Value>
  void operator()(const char* name, Value& value) {
    if (const auto found = json_.find(name); found != json_.end()) read(*found, value);
  }

 private:
  template <class Value>
    requires std::is_arithmetic_v<Value>
  static void read(const Json& json, Value& value) {
    json.get_to(value);
  }
  static void read(const Json& json, std::string& value) { json.get_to(value); }
  static void read(const Json& json, NetworkInterface::Kind& kind) {
    using enum NetworkInterface::Kind;
    const auto name = json.get<std::string>();
    for (const auto each : {loopback, ethernet, infiniband, wireless, virtual_link, other}) {
      if (name == kind_name(each)) kind = each;
    }
  }
  template <class Value>
  static void read(const Json& json, std::optional<Value>& value) {
    if (json.is_null()) return;
    Value found{};
    read(json, found);
    value = std::move(found);
  }
  template <class Value>
  static void read(const Json& json, std::vector<Value>& values) {
    for (const Json& item : json.get_ref<const Json::array_t&>()) {
      Value value{};
      read(item, value);
      values.push_back(std::move(value));
    }
  }
  template <class Facts>
    requires std::is_class_v<Facts>
  static void read(const Json& json, Facts& facts) {
    (void)json.get_ref<const Json::object_t&>();
    Reader reader(json);
    describe(reader, facts);
  }

  const Json& json_;
};

}  // namespace

std::string to_json(const Inspection& inspection) {
  // Names of processes and paths are bytes, which need not be UTF-8.
  return json_text(Writer::object(inspection));
}

Inspection inspection_from_json(std::string_view json) {
  try {
    const nlohmann::json parsed =
        parse_json(json, "the answer of `dstrain agent`", {.kind = ErrorKind::hosts});
    Inspection inspection;
    (void)parsed.get_ref<const nlohmann::json::object_t&>();
    Reader reader(parsed);
    describe(reader, inspection);
    return inspection;
  } catch (const nlohmann::json::exception& error) {
    throw Error(
        ErrorKind::hosts,
        std::string("the answer of `dstrain agent` is not what doctor asked for: ") + error.what(),
        "install the same version of dstrain everywhere");
  }
}

}  // namespace dstrain::launcher
