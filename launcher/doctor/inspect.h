#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/system_files.h"
#include "launcher/hosts/network_interface.h"

namespace dstrain::launcher {

/// Sizes are bytes; -1 stands for "cannot be read", or for "no limit" where that is said.
struct GpuProcess {
  std::int64_t pid = 0;
  std::string name;  ///< empty when the process is not visible here (another container)
  std::int64_t memory_bytes = -1;
};

/// One GPU as the driver reports it (NVML), in bus order.
struct GpuFacts {
  int index = 0;
  std::string name;
  std::string uuid;
  std::int64_t memory_bytes = 0;
  std::int64_t used_bytes = 0;
  int temperature_c = -1;
  std::vector<std::string> throttled;  ///< reasons that slow its clocks: heat, power
  std::int64_t corrected_errors = -1;  ///< ECC, since the driver was loaded
  std::int64_t uncorrected_errors = -1;
  bool remap_pending = false;  ///< memory rows wait for a reset to be replaced
  bool remap_failed = false;   ///< memory rows could not be replaced
  int pcie_lanes = -1;         ///< in use
  int pcie_lanes_max = -1;
  int nvlinks = 0;  ///< active ones
  std::vector<GpuProcess> processes;
};

struct DiskFacts {
  std::string purpose;  ///< "working directory", "cache"
  std::string path;
  bool exists = false;
  std::int64_t free_bytes = -1;
  std::int64_t total_bytes = -1;
};

/// An InfiniBand or RoCE port.
struct RdmaPort {
  std::string name;   ///< "mlx5_0:1"
  std::string state;  ///< "ACTIVE"
  std::string rate;   ///< "400 Gb/sec (4X NDR)"
};

struct LibraryFacts {
  std::string name;     ///< "LibTorch", "NCCL", "CUDA runtime"
  std::string version;  ///< empty: not readable
  std::string path;
};

/// Whether the engine library can be loaded, found out in a child process.
struct EngineFacts {
  bool loads = false;
  std::string path;
  std::string error;    ///< of the loader
  std::string missing;  ///< file name of the library that the loader did not find
  std::string torch;    ///< why no torch wheel serves; empty: one does
  std::vector<LibraryFacts> libraries;
};

/// What one machine has and how it is.
struct Inspection {
  std::string host;
  std::string build;  ///< of the dstrain that looked
  std::string kernel;
  std::string arch;
  std::string system;  ///< "Debian GNU/Linux 12 (bookworm)"
  int cores = 1;       ///< that this process may run on
  int cores_installed = 1;
  int numa_nodes = 1;
  std::int64_t memory_bytes = -1;
  std::int64_t available_bytes = -1;
  std::int64_t memory_limit_bytes = -1;  ///< of the control group; -1: none
  std::int64_t locked_bytes = -1;        ///< limit of locked memory; -1: none
  std::int64_t open_files = -1;          ///< limit; -1: none
  std::int64_t shm_bytes = -1;           ///< size of /dev/shm
  std::vector<DiskFacts> disks;
  std::int64_t clock_ns = 0;                   ///< CLOCK_REALTIME at the end of the look
  int gpu_nodes = 0;                           ///< nvidiaN device nodes
  int gpus_visible = 0;                        ///< of them under CUDA_VISIBLE_DEVICES
  std::optional<std::string> visible_devices;  ///< CUDA_VISIBLE_DEVICES, when set
  std::string driver;                          ///< of NVIDIA; empty: none answers
  int driver_cuda = 0;                         ///< newest CUDA that it runs: 13000 for 13.0
  std::vector<GpuFacts> gpus;
  std::vector<std::string> gpu_events;  ///< "Xid" lines of the kernel's log, newest last
  std::vector<NetworkInterface> interfaces;
  std::optional<NetworkInterface> route;  ///< towards the controller or the other hosts
  std::vector<RdmaPort> rdma;
  bool peermem = false;   ///< module nvidia_peermem is loaded
  int ptrace_scope = -1;  ///< of yama; -1: no yama
  EngineFacts engine;
};

struct InspectOptions {
  std::string build;
  std::filesystem::path working_directory;
  std::string peer_address = {};              ///< numeric; empty: no route is looked up
  std::filesystem::path engine_library = {};  ///< empty: is not tried
  SystemRoots roots = {};
};

/// Looks at this machine; never throws for what cannot be read, and makes no CUDA call in this
/// process. Takes about 0.1 s, and as long as the engine library takes to load.
[[nodiscard]] Inspection inspect(const InspectOptions& options);

[[nodiscard]] std::string to_json(const Inspection& inspection);
/// Error{hosts} for what to_json() did not write. Unknown fields are left out, absent ones keep
/// their default.
[[nodiscard]] Inspection inspection_from_json(std::string_view json);

enum class Level { ok, note, warning, error };
[[nodiscard]] const char* level_name(Level level);

/// One thing that a person should know about a machine, and how to fix it.
struct Finding {
  Level level = Level::note;
  std::string text;
  std::string advice;
};
/// Worst first. `error`: no job can run there. Empty when all is well.
[[nodiscard]] std::vector<Finding> examine(const Inspection& inspection);
[[nodiscard]] Level worst(const std::vector<Finding>& findings);

}  // namespace dstrain::launcher
