#include "launcher/hosts/machine.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <string_view>

#include "engine/base/system_files.h"

namespace dstrain::launcher {
namespace {

bool is_number(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

bool names_gpu(std::string_view entry, int installed) {
  if (entry.starts_with("GPU-") || entry.starts_with("MIG-")) return true;
  int index = 0;
  return is_number(entry) &&
         std::from_chars(entry.data(), entry.data() + entry.size(), index).ec == std::errc{} &&
         index < installed;
}

int usable_cores() {
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return static_cast<int>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN)));
}

}  // namespace

int count_gpu_nodes(const std::filesystem::path& dev) {
  constexpr std::string_view kPrefix = "nvidia";
  int count = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(dev, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(kPrefix) && is_number(std::string_view(name).substr(kPrefix.size())))
      ++count;
  }
  return count;
}

int count_visible_gpus(int installed, const std::optional<std::string>& visible_devices) {
  if (!visible_devices || installed == 0) return installed;
  int count = 0;
  std::string_view rest = *visible_devices;
  while (true) {
    const auto comma = rest.find(',');
    if (!names_gpu(trim(rest.substr(0, comma)), installed)) return count;
    ++count;
    if (comma == std::string_view::npos) return count;
    rest.remove_prefix(comma + 1);
  }
}

Machine probe_machine() {
  Machine machine;
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) == 0) machine.host = name.data();
  if (machine.host.empty()) machine.host = "localhost";
  machine.cores = usable_cores();
  machine.gpus_installed = count_gpu_nodes("/dev");
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  machine.gpus =
      count_visible_gpus(machine.gpus_installed,
                         visible != nullptr ? std::optional<std::string>(visible) : std::nullopt);
  machine.gpus_hidden = visible != nullptr && machine.gpus == 0;
  return machine;
}

}  // namespace dstrain::launcher
