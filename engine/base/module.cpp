#include "engine/base/module.h"

#include <dlfcn.h>

#include "engine/base/error.h"

namespace dstrain {

namespace fs = std::filesystem;

fs::path find_module(const std::string& name) {
  Dl_info here{};
  // The cast is how POSIX takes functions.
  DSTRAIN_CHECK(::dladdr(reinterpret_cast<const void*>(&find_module), &here) != 0,
                "no binary holds this function");
  // Where the program itself was called by a relative path, the folder may be another by now.
  std::error_code error;
  fs::path binary = fs::absolute(here.dli_fname);
  if (!fs::exists(binary, error)) binary = fs::read_symlink("/proc/self/exe", error);
  fs::path folder = binary.parent_path();
  if (fs::exists(folder / name, error)) return folder / name;
  for (; folder.has_relative_path(); folder = folder.parent_path()) {
    if (fs::exists(folder / "lib" / name, error)) return folder / "lib" / name;
  }
  return name;
}

fs::path engine_library_path() {
  std::error_code error;
  const fs::path folder = fs::read_symlink("/proc/self/exe", error).parent_path();
  const fs::path beside = folder / "libdstrain_engine.so";
  return fs::exists(beside, error) ? beside : folder.parent_path() / "lib" / beside.filename();
}

}  // namespace dstrain
