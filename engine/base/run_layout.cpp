#include "engine/base/run_layout.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <random>
#include <string_view>

#include "engine/base/disk_error.h"
#include "engine/base/error.h"
#include "engine/base/input_file.h"
#include "engine/base/make_folder.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kCheckpointPrefix = "step-";
constexpr std::size_t kMinStepDigits = 8;
constexpr std::size_t kMaxStepDigits = 18;  ///< fits 64 bits

std::string utc(std::time_t now) {
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y%m%dT%H%M%SZ", &parts);
  return text.data();
}

std::string short_id() {
  std::random_device random;
  return fmt::format("{:06x}", random() & 0xffffffu);
}

}  // namespace

fs::path RunLayout::rank_log(int rank) const {
  return ranks() / fmt::format("rank{:04d}.log", rank);
}

fs::path RunLayout::rank_lines(int rank) const {
  return ranks() / fmt::format("rank{:04d}.jsonl", rank);
}

void RunLayout::make_folders() const {
  for (const fs::path& folder : {ranks(), traces(), checkpoints()}) make_folder(folder);
}

fs::path make_dated_directory(const fs::path& parent, const std::string& stem, std::time_t now) {
  std::error_code error;
  fs::create_directories(parent, error);
  for (int attempt = 0; !error && attempt < 100; ++attempt) {
    const fs::path path = parent / fmt::format("{}-{}-{}", stem, utc(now), short_id());
    // false without an error: another process has just made this very name.
    if (fs::create_directory(path, error)) return path;
  }
  throw Error(refusal_kind(error),
              fmt::format("cannot make a run directory in {}: {}", parent.string(),
                          error ? error.message() : "no free name"),
              "choose a folder that can be written, with --set run.output=DIR");
}

std::string time_in_name(const std::string& name, const std::string& stem) {
  constexpr std::string_view kShape = "-ddddddddTddddddZ-xxxxxx";
  if (!name.starts_with(stem) || name.size() != stem.size() + kShape.size()) return {};
  const std::string rest = name.substr(stem.size());
  const std::string_view hex = "0123456789abcdef";
  for (std::size_t i = 0; i < kShape.size(); ++i) {
    const bool fits = kShape[i] == 'd'   ? rest[i] >= '0' && rest[i] <= '9'
                      : kShape[i] == 'x' ? hex.find(rest[i]) != std::string_view::npos
                                         : rest[i] == kShape[i];
    if (!fits) return {};
  }
  return rest.substr(1, 16);
}

std::string checkpoint_name(std::int64_t step) {
  return fmt::format("{}{:0{}d}", kCheckpointPrefix, step, kMinStepDigits);
}

std::string temporary_checkpoint_name(std::int64_t step, const std::string& attempt) {
  return fmt::format("{}.tmp-{}", checkpoint_name(step), attempt);
}

std::optional<std::int64_t> parse_checkpoint_name(const fs::path& path) {
  // "runs/x/step-00000100/" has an empty last component.
  const std::string name = (path.has_filename() ? path : path.parent_path()).filename().string();
  if (!name.starts_with(kCheckpointPrefix)) return std::nullopt;
  const std::string_view digits = std::string_view(name).substr(kCheckpointPrefix.size());
  if (digits.size() < kMinStepDigits || digits.size() > kMaxStepDigits) return std::nullopt;
  std::int64_t step = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  // One spelling per step: what checkpoint_name() writes, and no sign.
  if (error != std::errc{} || end != digits.data() + digits.size() || step < 0 ||
      checkpoint_name(step) != name) {
    return std::nullopt;
  }
  return step;
}

bool is_temporary_checkpoint(const fs::path& path) {
  const std::string name = path.filename().string();
  const std::size_t dot = name.find(".tmp-");
  return dot != std::string::npos && parse_checkpoint_name(name.substr(0, dot)).has_value();
}

bool is_checkpoint(const fs::path& directory) {
  std::error_code error;
  return fs::is_regular_file(directory / run_file::kManifest, error);
}

fs::path find_checkpoints_folder(const fs::path& path) {
  if (path_kind(path, ErrorKind::usage) != PathKind::folder) {
    throw Error(ErrorKind::usage, fmt::format("{} is not a directory", path.string()),
                "name a run directory or its checkpoints folder");
  }
  const fs::path inner = RunLayout(path).checkpoints();
  return path_kind(inner, ErrorKind::usage) == PathKind::folder ? inner : path;
}

}  // namespace dstrain
