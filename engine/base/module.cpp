#include "engine/base/module.h"

#include <dlfcn.h>

#include <algorithm>
#include <vector>

#include "engine/base/error.h"

namespace dstrain {

namespace fs = std::filesystem;

namespace {

const fs::path kModules = fs::path("lib") / "dstrain";

/// Where pip puts the tree of a wheel whose program is in `prefix`/bin. With several Pythons the
/// one that was installed last, as the program was.
std::vector<fs::path> wheel_trees(const fs::path& prefix) {
  std::vector<fs::path> trees = {prefix / "dstrain"};  // pip install --target
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(prefix / "lib", none)) {
    if (!entry.path().filename().string().starts_with("python3")) continue;
    for (const char* packages : {"site-packages", "dist-packages"})
      trees.push_back(entry.path() / packages / "dstrain");
  }
  std::erase_if(trees,
                [&](const fs::path& tree) { return !fs::is_directory(tree / kModules, none); });
  std::ranges::sort(trees, std::ranges::greater(), [&](const fs::path& tree) {
    return fs::last_write_time(tree / kModules, none);
  });
  return trees;
}

}  // namespace

fs::path tree_of(const fs::path& program) {
  std::error_code none;
  const fs::path prefix = program.parent_path().parent_path();
  if (fs::is_directory(prefix / kModules, none)) return prefix;
  const std::vector<fs::path> trees = wheel_trees(prefix);
  return trees.empty() ? prefix : trees.front();
}

fs::path find_module(const std::string& name) {
  Dl_info here{};
  // The cast is how POSIX takes functions.
  DSTRAIN_CHECK(::dladdr(reinterpret_cast<const void*>(&find_module), &here) != 0,
                "no binary holds this function");
  // Where the program itself was called by a relative path, the folder may be another by now, and
  // a link to it lies in a folder of others.
  std::error_code error;
  const fs::path named = fs::absolute(here.dli_fname);
  const bool library = named.extension() == ".so" && fs::exists(named, error);
  const fs::path binary = library ? named : fs::read_symlink("/proc/self/exe", error);
  const fs::path folder = binary.parent_path();
  if (fs::exists(folder / name, error)) return folder / name;
  if (const fs::path file = tree_of(binary) / kModules / name; fs::exists(file, error)) return file;
  for (fs::path above = folder; above.has_relative_path(); above = above.parent_path()) {
    if (fs::exists(above / kModules / name, error)) return above / kModules / name;
  }
  return name;
}

fs::path engine_library_path() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  const fs::path beside = program.parent_path() / "libdstrain_engine.so";
  return fs::exists(beside, error) ? beside : tree_of(program) / kModules / beside.filename();
}

fs::path remembered_torch(const fs::path& tree) { return tree / kModules / "site-packages"; }

}  // namespace dstrain
