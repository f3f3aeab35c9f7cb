#include "engine/base/user_folders.h"

#include <sys/statvfs.h>

namespace dstrain {
namespace {

namespace fs = std::filesystem;

fs::path folder_of(const Variable& variable, const char* name, const char* below_home) {
  const char* named = variable(name);
  if (named != nullptr && *named == '/') return named;
  const char* home = variable("HOME");
  return home != nullptr && *home == '/' ? fs::path(home) / below_home : fs::path();
}

}  // namespace

fs::path user_config_folder(const Variable& variable) {
  return folder_of(variable, "XDG_CONFIG_HOME", ".config");
}

fs::path user_cache_folder(const Variable& variable) {
  return folder_of(variable, "XDG_CACHE_HOME", ".cache");
}

std::int64_t free_disk_bytes(fs::path folder) {
  struct statvfs status {};
  while (::statvfs(folder.empty() ? "." : folder.c_str(), &status) != 0) {
    if (folder.empty() || folder == folder.parent_path()) return -1;
    folder = folder.parent_path();
  }
  return static_cast<std::int64_t>(status.f_bavail) * static_cast<std::int64_t>(status.f_frsize);
}

}  // namespace dstrain
