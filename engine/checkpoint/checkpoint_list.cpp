#include <fmt/format.h>

#include <algorithm>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/run_layout.h"
#include "engine/checkpoint/checkpoint.h"

namespace dstrain {
namespace {

struct Found {
  std::int64_t step;
  std::filesystem::path path;
};

std::vector<Found> find_checkpoints(const std::filesystem::path& root) {
  std::vector<Found> found;
  std::error_code error;
  std::filesystem::directory_iterator entries(root, error);
  if (error == std::errc::no_such_file_or_directory) return found;
  if (error) {
    throw Error(ErrorKind::checkpoint,
                fmt::format("cannot list {}: {}", root.string(), error.message()));
  }
  for (const auto& entry : entries) {
    const auto step = parse_checkpoint_name(entry.path());
    if (step && entry.is_directory(error) && !entry.is_symlink(error))
      found.push_back({*step, entry.path()});
  }
  std::ranges::sort(found, std::ranges::greater{}, &Found::step);
  return found;
}

}  // namespace

std::vector<CheckpointInfo> list_checkpoints(const std::filesystem::path& root, bool full) {
  std::vector<CheckpointInfo> infos;
  for (const Found& found : find_checkpoints(root))
    infos.push_back(inspect_checkpoint(found.path, full));
  return infos;
}

std::vector<std::filesystem::path> checkpoints_by_name(const std::filesystem::path& root) {
  std::vector<std::filesystem::path> paths;
  for (const Found& found : find_checkpoints(root)) paths.push_back(found.path);
  return paths;
}

std::optional<CheckpointInfo> newest_valid(const std::filesystem::path& root,
                                           std::vector<std::string>& problems) {
  for (const Found& found : find_checkpoints(root)) {
    CheckpointInfo info = inspect_checkpoint(found.path, true);
    if (info.valid) return info;
    problems.push_back(fmt::format("{}: {}", found.path.filename().string(), info.problem));
  }
  return std::nullopt;
}

std::vector<CheckpointInfo> beyond_newest(const std::vector<CheckpointInfo>& newest_first,
                                          int keep) {
  std::vector<CheckpointInfo> beyond;
  int num_valid = 0;
  for (const CheckpointInfo& info : newest_first) {
    if (info.valid && num_valid >= keep) beyond.push_back(info);
    if (info.valid && info.damage.empty()) ++num_valid;
  }
  return beyond;
}

void remove_checkpoint(const std::filesystem::path& path) {
  const std::filesystem::path doomed = path.string() + ".tmp-removed";
  std::error_code error;
  std::filesystem::remove_all(doomed, error);  // left by a crash
  std::filesystem::rename(path, doomed, error);
  if (!error) std::filesystem::remove_all(doomed, error);
  if (error) {
    throw Error(ErrorKind::checkpoint,
                fmt::format("cannot remove {}: {}", path.string(), error.message()));
  }
}

}  // namespace dstrain
