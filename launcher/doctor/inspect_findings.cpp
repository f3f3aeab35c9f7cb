#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "engine/base/torch_folder.h"
#include "engine/base/units.h"
#include "launcher/doctor/inspect.h"

namespace dstrain::launcher {
namespace {

constexpr std::int64_t kGiB = std::int64_t{1} << 30;
constexpr std::int64_t kMiB = std::int64_t{1} << 20;
/// What the driver itself keeps on an idle GPU stays below this.
constexpr std::int64_t kIdleMemory = kGiB;
constexpr std::int64_t kFewFiles = 1024;
constexpr int kFellOffTheBus = 79;  ///< NVIDIA's Xid catalogue

class Examination {
 public:
  explicit Examination(const Inspection& inspection) : at_(inspection) {}

  std::vector<Finding> run() {
    engine();
    gpus();
    events();
    disks();
    memory();
    limits();
    network();
    std::stable_sort(findings_.begin(), findings_.end(),
                     [](const Finding& a, const Finding& b) { return a.level > b.level; });
    return std::move(findings_);
  }

 private:
  void add(Level level, std::string text, std::string advice) {
    findings_.push_back({level, std::move(text), std::move(advice)});
  }

  void engine() {
    const EngineFacts& engine = at_.engine;
    if (engine.path.empty() || engine.loads) return;
    if (!engine.missing.empty() && engine.missing != "libdstrain_engine.so") {
      add(Level::error,
          fmt::format("library {} is missing{}{}", engine.missing, engine.torch.empty() ? "" : ": ",
                      engine.torch),
          engine.torch.empty() ? "install dstrain anew, or launch with --ship"
                               : no_torch_advice(built_torch_version()));
    } else if (!engine.missing.empty()) {
      add(Level::error, fmt::format("the engine is not there: {}", engine.path),
          "install dstrain anew, or launch with --ship");
    } else {
      add(Level::error, fmt::format("the engine cannot be loaded: {}", engine.error),
          "install dstrain anew, or launch with --ship");
    }
  }

  void gpus() {
    if (at_.visible_devices && at_.gpus_visible == 0) {
      add(at_.gpu_nodes > 0 ? Level::warning : Level::note,
          fmt::format("CUDA_VISIBLE_DEVICES is set {} and shows none of {} GPUs",
                      at_.visible_devices->empty() ? "but empty"
                                                   : fmt::format("to '{}'", *at_.visible_devices),
                      at_.gpu_nodes),
          "unset it, or ask the scheduler for GPUs (Slurm: --gpus-per-node)");
    }
    const auto answering = static_cast<int>(at_.gpus.size());
    if (at_.gpu_nodes > 0 && at_.driver.empty()) {
      add(Level::error,
          fmt::format("{} GPU device nodes and no driver that answers", at_.gpu_nodes),
          "run nvidia-smi there; a driver update wants a reboot or a reload of the module");
    } else if (at_.gpu_nodes > answering) {
      add(Level::warning,
          fmt::format("the driver answers for {} of {} GPUs", answering, at_.gpu_nodes),
          "look for Xid in dmesg; a GPU that fell off the bus wants a reset or a reboot");
    }
    for (const LibraryFacts& library : at_.engine.libraries) {
      if (library.name == "CUDA runtime") compare_cuda(library.version);
    }
    int max_links = 0;
    for (const GpuFacts& gpu : at_.gpus) max_links = std::max(max_links, gpu.nvlinks);
    for (const GpuFacts& gpu : at_.gpus) {
      one_gpu(gpu);
      if (gpu.nvlinks < max_links) {
        add(Level::warning,
            fmt::format("GPU {} has {} active NVLinks, others have {}", gpu.index, gpu.nvlinks,
                        max_links),
            "run nvidia-smi nvlink --status; reset the GPU or reseat the bridge");
      }
    }
  }

  /// A driver runs libraries of its own and older major versions of CUDA, and newer minor ones.
  void compare_cuda(const std::string& runtime) {
    const auto major = static_cast<int>(to_number(runtime.substr(0, runtime.find('.')), 0));
    if (at_.driver_cuda == 0 || major <= at_.driver_cuda / 1000) return;
    add(Level::error,
        fmt::format("driver {} runs CUDA up to {}.{}, the engine needs {}", at_.driver,
                    at_.driver_cuda / 1000, at_.driver_cuda % 1000 / 10, runtime),
        fmt::format("update the driver to one that runs CUDA {}; the engine is built for no other",
                    major));
  }

  void one_gpu(const GpuFacts& gpu) {
    if (gpu.used_bytes > kIdleMemory || !gpu.processes.empty()) {
      std::vector<std::string> holders;
      for (const GpuProcess& process : gpu.processes) {
        holders.push_back(fmt::format("{} ({})", process.pid,
                                      process.name.empty() ? "not visible here" : process.name));
      }
      add(Level::warning,
          fmt::format("GPU {}: {} of {} are held by {}", gpu.index, format_bytes(gpu.used_bytes),
                      format_bytes(gpu.memory_bytes),
                      holders.empty() ? "nobody visible here"
                                      : fmt::format("{}", fmt::join(holders, ", "))),
          "wait for those processes, or end them if they are left over from another job");
    }
    if (gpu.remap_failed || gpu.uncorrected_errors > 0) {
      add(gpu.remap_failed ? Level::error : Level::warning,
          fmt::format("GPU {}: {} uncorrectable memory errors since the driver was loaded{}",
                      gpu.index, std::max<std::int64_t>(gpu.uncorrected_errors, 0),
                      gpu.remap_failed ? ", and rows that could not be replaced" : ""),
          gpu.remap_failed ? "replace the GPU"
                           : "reset the GPU (nvidia-smi --gpu-reset) or reboot");
    }
    if (gpu.remap_pending) {
      add(Level::warning, fmt::format("GPU {}: memory rows wait to be replaced", gpu.index),
          "reset the GPU (nvidia-smi --gpu-reset) or reboot");
    }
    if (!gpu.throttled.empty()) {
      // A power cap is how many GPUs reach their limit under load; the others are faults.
      const bool cap_only = gpu.throttled == std::vector<std::string>{"power cap"};
      add(cap_only ? Level::note : Level::warning,
          fmt::format("GPU {} is slowed: {} ({} C)", gpu.index, fmt::join(gpu.throttled, ", "),
                      gpu.temperature_c),
          "look at cooling and power of that machine");
    }
    if (gpu.pcie_lanes > 0 && gpu.pcie_lanes < gpu.pcie_lanes_max) {
      add(Level::warning,
          fmt::format("GPU {} uses {} of {} PCIe lanes", gpu.index, gpu.pcie_lanes,
                      gpu.pcie_lanes_max),
          "reseat it, or look at the slot in the firmware's settings");
    }
  }

  void events() {
    if (at_.gpu_events.empty()) return;
    const std::string& newest = at_.gpu_events.back();
    const bool lost =
        std::any_of(at_.gpu_events.begin(), at_.gpu_events.end(), [](const std::string& line) {
          return line.find(fmt::format("): {},", kFellOffTheBus)) != std::string::npos;
        });
    add(lost ? Level::error : Level::warning,
        fmt::format("{} GPU fault{} in the kernel's log, the newest: {}", at_.gpu_events.size(),
                    at_.gpu_events.size() == 1 ? "" : "s", newest),
        "look the number up in NVIDIA's Xid catalogue; after a hardware fault reset or reboot");
  }

  void disks() {
    for (const DiskFacts& disk : at_.disks) {
      const bool working = disk.purpose == "working directory";
      if (working && !disk.exists) {
        add(Level::error, fmt::format("working directory {} is not there", disk.path),
            "start from a folder that every host has, on a shared file system");
      } else if (disk.free_bytes >= 0 && disk.free_bytes < (working ? 10 : 1) * kGiB) {
        add(working && disk.free_bytes < 64 * kMiB ? Level::error : Level::warning,
            fmt::format("{} free in the {} {}", format_bytes(disk.free_bytes), disk.purpose,
                        disk.path),
            working ? "free some: checkpoints go there" : "free some: tokenised data go there");
      }
    }
  }

  void memory() {
    if (at_.memory_limit_bytes >= 0 && at_.memory_limit_bytes < at_.memory_bytes / 2) {
      add(Level::note,
          fmt::format("this control group may use {} of {} memory",
                      format_bytes(at_.memory_limit_bytes), format_bytes(at_.memory_bytes)),
          "ask the scheduler for more if ranks are killed for memory");
    }
    if (at_.available_bytes >= 0 &&
        at_.available_bytes < std::min(at_.memory_bytes / 10, 8 * kGiB)) {
      add(Level::warning,
          fmt::format("{} of {} memory are available", format_bytes(at_.available_bytes),
                      format_bytes(at_.memory_bytes)),
          "see what else runs there");
    }
    // NCCL talks through /dev/shm between GPUs of one machine; containers give 64 MiB.
    if (at_.shm_bytes >= 0 && at_.shm_bytes < kGiB && at_.gpu_nodes > 1) {
      add(Level::warning, fmt::format("/dev/shm holds {}", format_bytes(at_.shm_bytes)),
          "start the container with --shm-size=16g or --ipc=host");
    }
  }

  void limits() {
    if (at_.locked_bytes >= 0 && !at_.rdma.empty()) {
      add(Level::warning,
          fmt::format("locked memory is limited to {}, RDMA wants no limit",
                      format_bytes(at_.locked_bytes)),
          "memlock unlimited in /etc/security/limits.conf, LimitMEMLOCK=infinity for slurmd or "
          "sshd");
    }
    if (at_.open_files >= 0 && at_.open_files < kFewFiles) {
      add(Level::warning, fmt::format("a process may open {} files", at_.open_files),
          "raise nofile in /etc/security/limits.conf, or ulimit -n 65536");
    }
    if (at_.ptrace_scope >= 2) {
      add(Level::note,
          fmt::format("kernel.yama.ptrace_scope is {}: no stacks of hung ranks", at_.ptrace_scope),
          "sysctl kernel.yama.ptrace_scope=1");
    }
  }

  void network() {
    for (const RdmaPort& port : at_.rdma) {
      if (port.state == "ACTIVE") continue;
      add(Level::note, fmt::format("InfiniBand port {} is {}", port.name, port.state),
          "look at the cable and the subnet manager if this port should carry traffic");
    }
    if (!at_.rdma.empty() && !at_.gpus.empty() && !at_.peermem) {
      add(Level::note, "module nvidia_peermem is not loaded",
          "modprobe nvidia_peermem, unless kernel and NCCL use dma-buf for GPUDirect RDMA");
    }
  }

  const Inspection& at_;
  std::vector<Finding> findings_;
};

}  // namespace

const char* level_name(Level level) {
  switch (level) {
    case Level::ok:
      return "ok";
    case Level::note:
      return "note";
    case Level::warning:
      return "warning";
    case Level::error:
      return "error";
  }
  return "error";
}

std::vector<Finding> examine(const Inspection& inspection) { return Examination(inspection).run(); }

Level worst(const std::vector<Finding>& findings) {
  Level level = Level::ok;
  for (const Finding& finding : findings) level = std::max(level, finding.level);
  return level;
}

}  // namespace dstrain::launcher
