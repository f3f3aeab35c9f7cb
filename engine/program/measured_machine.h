#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "engine/program/simulate.h"

namespace dstrain {

/// Collectives of several hosts with this kind of device together; none measured: hosts 0.
struct NetworkRates {
  std::string measured;  ///< day, UTC
  int hosts = 0, ranks = 0;
  double bytes_per_s = 0;  ///< that leave a host, of the slower of gather and reduction
  double latency_s = 0;    ///< of a gather of a few bytes
};

/// What `dstrain doctor --measure` found out about one kind of device. Rates of 0 were not
/// measured.
struct MeasuredRates {
  std::string device;    ///< as the driver names it: "NVIDIA H200"; "CPU"
  std::string measured;  ///< day, UTC: "2026-11-20"
  std::string host;
  int num_devices = 1;  ///< that took part
  double flops_per_s = 0;
  double burst_flops_per_s = 0;  ///< one large product, for information
  double memory_bytes_per_s = 0;
  double host_link_bytes_per_s = 0;      ///< from pinned memory
  double pageable_link_bytes_per_s = 0;  ///< from pageable memory, for information
  double host_copy_bytes_per_s = 0;      ///< one thread, for information
  double link_bytes_per_s = 0;           ///< as in Machine; more than one device
  double collective_latency_s = 0;
  Bytes device_memory = 0;
  // Since 2026-11-23; of the host, by all its cores.
  double host_duplex_bytes_per_s = 0;      ///< one device's link, both directions at once
  double host_memory_bytes_per_s = 0;      ///< bytes it moves in a triad
  double host_update_bytes_per_s = 0;      ///< AdamW on the CPU, alone
  double host_update_dma_bytes_per_s = 0;  ///< the same beside copies, for information
  int host_threads = 0;                    ///< that the two took
  double arena_s_per_gib = 0;              ///< to page-lock host memory, for information
  double file_read_bytes_per_s = 0, file_write_bytes_per_s = 0;  ///< past the page cache
  Bytes communicator_memory = 0;                                 ///< of each beyond the first
  double fp8_flops_per_s = 0;                           ///< since 2026-11-24; 0: no FP8 either
  NetworkRates network = {};                            ///< since 2026-11-30
  double shared_bytes_per_s = 0, shared_latency_s = 0;  ///< as in Machine; of ranks on the CPU
};

/// $XDG_CONFIG_HOME/dstrain/machine.json, else ~/.config/dstrain/machine.json; empty without both.
[[nodiscard]] std::filesystem::path measured_file();

/// The same to be written; Error{usage} without both.
[[nodiscard]] std::filesystem::path measured_file_to_write();

/// One line of JSON, and back; Error{data} for another format.
[[nodiscard]] std::string rates_text(const MeasuredRates& rates);
[[nodiscard]] MeasuredRates parse_rates(const std::string& text);

/// One entry per device name. An absent file has none; Error{data} for one of another format.
[[nodiscard]] std::vector<MeasuredRates> read_measured(const std::filesystem::path& file);
/// Replaces the entry of the same device but for its network, which is measured on its own; keeps
/// the others. Makes the folder.
void save_measured(const std::filesystem::path& file, MeasuredRates rates);
/// Replaces that of `device` alone; an entry that has no other rates leaves these built in.
void save_network(const std::filesystem::path& file, const std::string& device,
                  const NetworkRates& network);

/// The built-in machine of this device with what was measured put over it. Its name says
/// which device and when.
[[nodiscard]] Machine to_machine(const MeasuredRates& rates);
/// The entry for `device`, or nothing; that of a card of which only the network was measured is
/// nothing where no other rates are known.
[[nodiscard]] std::optional<MeasuredRates> find_rates(const std::vector<MeasuredRates>& all,
                                                      const std::string& device);
[[nodiscard]] std::optional<Machine> find_measured(const std::vector<MeasuredRates>& all,
                                                   const std::string& device);

/// For `--machine NAME`: a built-in name, or a part of the name of a measured device. Error{usage}
/// lists what there is.
[[nodiscard]] Machine choose_machine(const std::string& name,
                                     const std::vector<MeasuredRates>& measured);
/// Name of the first GPU of this machine by the driver's files; empty without. No CUDA call.
[[nodiscard]] std::string installed_gpu(const std::filesystem::path& proc = "/proc");

}  // namespace dstrain
