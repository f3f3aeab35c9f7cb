#include "engine/base/run_layout.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <chrono>
#include <random>

#include "engine/base/disk_error.h"
#include "engine/base/error.h"
#include "engine/base/input_file.h"

namespace dstrain {
namespace fs = std::filesystem;

RunDirectory RunDirectory::create(const fs::path& parent, const std::string& name) {
  const auto now =
      std::chrono::time_point_cast<std::chrono::seconds>(std::chrono::system_clock::now());
  std::random_device random;
  std::error_code error;
  fs::create_directories(parent, error);
  // Two runs that start in one second differ by the id; should it be the same, the directory exists
  // and the next is tried.
  for (int i = 0; !error && i < 100; ++i) {
    const fs::path root =
        parent / fmt::format("{}-{:%Y%m%dT%H%M%SZ}-{:06x}", name,
                             fmt::gmtime(std::chrono::system_clock::to_time_t(now)),
                             random() & 0xffffffu);
    if (!fs::create_directory(root, error)) continue;
    const RunDirectory run(root);
    run.make_folders();
    return run;
  }
  throw Error(
      refusal_kind(error),
      fmt::format("cannot make a run directory in {}: {}", parent.string(), error.message()),
      "set run.output to a folder that can be written");
}

void RunDirectory::make_folders() const {
  for (const char* folder : {"ranks", "traces", "checkpoints"}) {
    std::error_code error;
    fs::create_directories(root_ / folder, error);
    if (error) {
      throw Error(refusal_kind(error),
                  fmt::format("cannot make {}: {}", (root_ / folder).string(), error.message()));
    }
  }
}

fs::path find_checkpoints_folder(const fs::path& path) {
  if (path_kind(path, ErrorKind::usage) != PathKind::folder) {
    throw Error(ErrorKind::usage, fmt::format("{} is not a directory", path.string()),
                "name a run directory or its checkpoints folder");
  }
  const fs::path inner = RunDirectory(path).checkpoints();
  return path_kind(inner, ErrorKind::usage) == PathKind::folder ? inner : path;
}

}  // namespace dstrain
