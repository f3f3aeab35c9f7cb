#include "engine/report/samples.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <map>

#include "engine/base/input_file.h"
#include "engine/report/run_files.h"

namespace dstrain::report {
namespace {

namespace fs = std::filesystem;

constexpr double kMaxGpus = 4096;  // of a host; a greater index is no sample

/// Names of the bits that nvidia-smi prints in hexadecimal: hardware slowdown, heat, power brake. The
/// others say that a GPU is idle, runs at clocks that were asked for, or is as busy as its power
/// limit allows.
bool is_throttled(const std::string& reasons) {
  constexpr unsigned long long kSlow = 0x08 | 0x20 | 0x40 | 0x80;
  return (std::strtoull(reasons.c_str(), nullptr, 16) & kSlow) != 0;
}

std::vector<std::string> csv_cells(std::string_view line) {
  std::vector<std::string> cells;
  while (true) {
    const std::size_t end = line.find(',');
    std::string_view cell = line.substr(0, end);
    while (!cell.empty() && (cell.front() == ' ' || cell.front() == '\r')) cell.remove_prefix(1);
    while (!cell.empty() && (cell.back() == ' ' || cell.back() == '\r')) cell.remove_suffix(1);
    cells.emplace_back(cell);
    if (end == std::string_view::npos) return cells;
    line.remove_prefix(end + 1);
  }
}

/// The number that a cell begins with, "41 %" included; kUnknown for others, as "[N/A]".
double cell_number(const std::string& cell) {
  double value = 0;
  const auto parsed = std::from_chars(cell.data(), cell.data() + cell.size(), value);
  return parsed.ec == std::errc() && std::isfinite(value) ? value : kUnknown;
}

/// Columns are found by their names in the first line.
std::vector<GpuSample> read_gpus(RunData& run, const fs::path& path) {
  std::vector<GpuSample> gpus;
  with_file(run, path, [&](const std::string& content) {
    std::map<std::string, std::size_t> columns;
    int broken = 0;
    split_lines(content, [&](std::string_view line) {
      const std::vector<std::string> cells = csv_cells(line);
      if (columns.empty()) {
        for (std::size_t i = 0; i < cells.size(); ++i)
          columns[cells[i].substr(0, cells[i].find(" ["))] = i;
        return;
      }
      const auto cell = [&](const char* name) {
        const auto found = columns.find(name);
        return found == columns.end() || found->second >= cells.size() ? std::string()
                                                                       : cells[found->second];
      };
      const double index = cell_number(cell("index"));
      if (!(index >= 0 && index < kMaxGpus) || cells.size() < columns.size()) {
        ++broken;
        return;
      }
      std::string reasons;
      for (const auto& [name, column] : columns) {
        if (name.starts_with("clocks_event_reasons") || name.starts_with("clocks_throttle_reasons"))
          reasons = cells[column];
      }
      gpus.push_back({.time = cell("timestamp"),
                      .index = static_cast<int>(index),
                      .name = cell("name"),
                      .memory_mib = cell_number(cell("memory.used")),
                      .total_mib = cell_number(cell("memory.total")),
                      .utilization = cell_number(cell("utilization.gpu")),
                      .temperature = cell_number(cell("temperature.gpu")),
                      .power_w = cell_number(cell("power.draw")),
                      .throttled = is_throttled(reasons)});
    });
    if (broken > 0) {
      run.problems.push_back(
          {path.filename().string(),
           fmt::format("{} lines left out: cut, or no sample of a GPU", broken)});
    }
  });
  return gpus;
}

/// psrecord's columns: elapsed seconds, CPU %, real and virtual memory in MiB.
std::vector<CpuSample> read_cpu(RunData& run, const fs::path& path) {
  std::vector<CpuSample> samples;
  with_file(run, path, [&](const std::string& content) {
    int broken = 0;
    split_lines(content, [&](std::string_view line) {
      if (line.starts_with('#')) return;
      std::vector<double> numbers;
      while (!line.empty()) {
        line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
        if (line.empty()) break;
        const std::string_view word = line.substr(0, line.find(' '));
        numbers.push_back(cell_number(std::string(word)));
        line.remove_prefix(word.size());
      }
      if (numbers.size() == 4 && std::ranges::all_of(numbers, [](double n) { return n >= 0; })) {
        samples.push_back({.elapsed_s = numbers[0],
                           .share = numbers[1],
                           .resident_mib = numbers[2],
                           .virtual_mib = numbers[3]});
      } else {
        ++broken;
      }
    });
    if (broken > 0) {
      run.problems.push_back({path.filename().string(),
                              fmt::format("{} lines left out: cut, or not four numbers", broken)});
    }
  });
  return samples;
}

/// HOST of "cpu-HOST.txt"; empty for other names.
std::string host_of(const std::string& name, std::string_view begin, std::string_view end) {
  if (name.size() <= begin.size() + end.size() || !name.starts_with(begin) || !name.ends_with(end))
    return {};
  return name.substr(begin.size(), name.size() - begin.size() - end.size());
}

void read_other_hosts(RunData& run) {
  struct Files {
    fs::path cpu, gpu, memory;
  };
  std::map<std::string, Files> hosts;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(run.path, ignored)) {
    const std::string name = entry.path().filename().string();
    if (const std::string host = host_of(name, "cpu-", ".txt"); !host.empty())
      hosts[host].cpu = entry.path();
    if (const std::string host = host_of(name, "gpu-", ".csv"); !host.empty())
      hosts[host].gpu = entry.path();
    if (const std::string host = host_of(name, "memory-", ".csv"); !host.empty())
      hosts[host].memory = entry.path();
  }
  for (const auto& [name, files] : hosts) {
    HostSamples host = {.host = name, .cpu = {}};
    if (!files.cpu.empty()) host.cpu = read_cpu(run, files.cpu);
    const fs::path& gpu = files.gpu.empty() ? files.memory : files.gpu;
    if (!gpu.empty()) {
      for (const GpuSample& sample : read_gpus(run, gpu))
        host.gpu_peak_mib = std::fmax(host.gpu_peak_mib, sample.memory_mib);
    }
    run.other_hosts.push_back(std::move(host));
  }
}

}  // namespace

void read_samples(RunData& run) {
  // A run without GPUs has neither.
  for (const char* name : {"gpu.csv", "memory.csv"}) {
    if (!path_exists(run.path / name)) continue;
    run.gpus = read_gpus(run, run.path / name);
    break;
  }
  run.cpu = read_cpu(run, run.path / "cpu.txt");
  read_other_hosts(run);
}

void read_clocks(RunData& run, const fs::path& path) {
  if (!path_exists(path)) return;
  std::map<std::string, ClockOffset> last;
  each_line(run, path, [&](const nlohmann::json& line) {
    const ClockOffset read = {.host = text(line, "host"),
                              .t_ns = number(line, "t_ns"),
                              .offset_ns = number(line, "offset_ns"),
                              .bound_ns = number(line, "bound_ns")};
    if (read.host.empty() || !std::isfinite(read.t_ns) || !std::isfinite(read.offset_ns) ||
        !(read.bound_ns >= 0))
      return false;
    ClockOffset& kept = last[read.host];
    if (kept.host.empty() || read.t_ns >= kept.t_ns) kept = read;
    return true;
  });
  for (const auto& [host, offset] : last) run.clocks.push_back(offset);
}

}  // namespace dstrain::report
