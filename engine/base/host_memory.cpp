#include "engine/base/host_memory.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "engine/base/units.h"

namespace dstrain {
namespace {

/// Value of "NAME:  123 kB" in bytes; 0 without it.
Bytes read_kib(const char* path, std::string_view name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(name)) continue;
    return std::strtoll(line.c_str() + name.size(), nullptr, 10) * 1024;
  }
  return 0;
}

}  // namespace

std::int64_t host_resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::int64_t all = 0, resident = 0;
  file >> all >> resident;
  return file ? resident * ::sysconf(_SC_PAGESIZE) : 0;
}

Error host_memory_error(std::int64_t wanted_bytes) {
  std::string text(kHostOutOfMemory);
  if (wanted_bytes > 0) {
    text += fmt::format(": {} ({} bytes) wanted in one piece", format_bytes(wanted_bytes),
                        wanted_bytes);
  }
  text += fmt::format("; this process has {} in memory",
                      format_bytes(read_kib("/proc/self/status", "VmRSS:")));
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    text += fmt::format(" and {} of address space, limited to {} (ulimit -v, RLIMIT_AS)",
                        format_bytes(read_kib("/proc/self/status", "VmSize:")),
                        format_bytes(static_cast<Bytes>(limit.rlim_cur)));
  }
  text +=
      fmt::format("; {} are available", format_bytes(read_kib("/proc/meminfo", "MemAvailable:")));
  return {
      ErrorKind::internal, text,
      "fewer ranks or loader threads per host, a smaller model or batch.micro, or a larger limit"};
}

}  // namespace dstrain
