#include "launcher/base/run_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/random.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <vector>

#include "engine/base/disk_error.h"
#include "engine/base/error.h"
#include "engine/base/input_file.h"

namespace dstrain::launcher {
namespace {

namespace fs = std::filesystem;

std::string utc(std::time_t now) {
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y%m%dT%H%M%SZ", &parts);
  return text.data();
}

std::string short_id() {
  std::array<std::uint8_t, 3> bytes{};
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    fail_system("draw a run id");
  }
  return fmt::format("{:02x}{:02x}{:02x}", bytes[0], bytes[1], bytes[2]);
}

/// "<recipe>-20261121T101500Z-0a1b2c": returns the time, or empty for another name.
std::string time_of(const std::string& name, const std::string& recipe) {
  constexpr std::string_view kShape = "-ddddddddTddddddZ-xxxxxx";
  if (!name.starts_with(recipe) || name.size() != recipe.size() + kShape.size()) return {};
  const std::string rest = name.substr(recipe.size());
  const std::string_view hex = "0123456789abcdef";
  for (std::size_t i = 0; i < kShape.size(); ++i) {
    const bool fits = kShape[i] == 'd'   ? rest[i] >= '0' && rest[i] <= '9'
                      : kShape[i] == 'x' ? hex.find(rest[i]) != std::string_view::npos
                                         : rest[i] == kShape[i];
    if (!fits) return {};
  }
  return rest.substr(1, 16);
}

RunDirectory make_new(const fs::path& output, const std::string& recipe, std::time_t now) {
  RunDirectory run;
  run.path = make_dated_directory(output, recipe, now);
  run.made = true;
  return run;
}

RunDirectory open_named(const fs::path& output, const std::string& name, Resume::Mode resume) {
  const bool plain = name.find('/') == std::string::npos && !name.starts_with('.');
  if (!plain) {
    throw Error(ErrorKind::usage, fmt::format("--run-name {}: not a plain folder name", name),
                "the parent folder is run.output of the recipe");
  }
  RunDirectory run;
  run.path = fs::absolute(output / name).lexically_normal();
  std::error_code error;
  fs::create_directories(run.path.parent_path(), error);
  if (!error) run.made = fs::create_directory(run.path, error);
  if (error) {
    throw Error(ErrorKind::usage,
                fmt::format("cannot make {}: {}", run.path.string(), error.message()),
                "choose a folder that can be written, with --set run.output=DIR");
  }
  if (has_checkpoint(run.path)) {
    if (resume == Resume::Mode::never) {
      throw Error(ErrorKind::usage,
                  fmt::format("{} holds a run with checkpoints", run.path.string()),
                  "go on with it by --resume auto, or choose another --run-name");
    }
    run.continued = true;
    run.resume_from = run.path.string();
  }
  return run;
}

void lock(RunDirectory& run) {
  run.lock = UniqueFd(::open(run.path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!run.lock) fail_system(fmt::format("open {}", run.path.string()));
  if (::flock(run.lock.get(), LOCK_EX | LOCK_NB) == 0) return;
  // File systems without locks exist; only "somebody holds it" is a reason to refuse.
  if (errno == EWOULDBLOCK) {
    throw Error(ErrorKind::usage, fmt::format("{} is in use by another job", run.path.string()),
                "wait for it, or start a new run with --resume never");
  }
}

}  // namespace

Resume resume_from(const std::string& text) {
  if (text.empty() || text == "never") return {};
  if (text == "auto") return {.mode = Resume::Mode::newest};
  return {.mode = Resume::Mode::path, .path = text};
}

std::string to_text(const Resume& resume) {
  switch (resume.mode) {
    case Resume::Mode::never:
      return "never";
    case Resume::Mode::newest:
      return "auto";
    case Resume::Mode::path:
      return resume.path;
  }
  return {};
}

fs::path make_dated_directory(const fs::path& output, const std::string& stem, std::time_t now) {
  const fs::path parent = fs::absolute(output).lexically_normal();
  std::error_code error;
  fs::create_directories(parent, error);
  for (int attempt = 0; !error && attempt < 100; ++attempt) {
    const fs::path path = parent / fmt::format("{}-{}-{}", stem, utc(now), short_id());
    // false without an error: somebody else has just made this very name.
    if (fs::create_directory(path, error)) return path;
  }
  throw Error(refusal_kind(error),
              fmt::format("cannot make a run directory in {}: {}", parent.string(),
                          error ? error.message() : "no free name"),
              "choose a folder that can be written, with --set run.output=DIR");
}

bool is_checkpoint(const fs::path& directory) {
  std::error_code error;
  return fs::is_regular_file(directory / "MANIFEST.json", error);
}

bool has_checkpoint(const fs::path& directory) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory / "checkpoints", error)) {
    const std::string name = entry.path().filename().string();
    // A dot marks what a save left behind or moved aside.
    if (name.starts_with("step-") && name.find('.') == std::string::npos &&
        is_checkpoint(entry.path()))
      return true;
  }
  return false;
}

std::optional<fs::path> find_newest_run(const fs::path& output, const std::string& recipe) {
  std::vector<std::pair<std::string, fs::path>> runs;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(output, error)) {
    const std::string time = time_of(entry.path().filename().string(), recipe);
    if (!time.empty() && has_checkpoint(entry.path())) runs.emplace_back(time, entry.path());
  }
  if (runs.empty()) return std::nullopt;
  return std::max_element(runs.begin(), runs.end())->second;
}

RunDirectory open_run_directory(const fs::path& output, const std::string& recipe,
                                const Resume& resume, std::time_t now, const std::string& name) {
  RunDirectory run;
  std::optional<fs::path> continued;
  if (!name.empty() && resume.mode != Resume::Mode::path) {
    run = open_named(output, name, resume.mode);
  } else if (resume.mode == Resume::Mode::newest) {
    continued = find_newest_run(output, recipe);
  } else if (resume.mode == Resume::Mode::path) {
    fs::path given = fs::absolute(resume.path).lexically_normal();
    if (!given.has_filename()) given = given.parent_path();  // "step-00000020/"
    if (path_kind(given, ErrorKind::usage) != PathKind::folder) {
      throw Error(ErrorKind::usage, fmt::format("--resume {}: no such directory", resume.path),
                  "give a run directory, one of its checkpoints/step-* folders, auto or never");
    }
    if (has_checkpoint(given)) {
      continued = given;
    } else if (is_checkpoint(given)) {
      run = make_new(output, recipe, now);
      run.resume_from = given.string();
    } else {
      throw Error(ErrorKind::usage,
                  fmt::format("--resume {}: holds no complete checkpoint", resume.path),
                  "give a run directory, one of its checkpoints/step-* folders, auto or never");
    }
  }
  if (continued) {
    run.path = fs::absolute(*continued).lexically_normal();
    run.continued = true;
    run.resume_from = run.path.string();
  } else if (run.path.empty()) {
    run = make_new(output, recipe, now);
  }
  lock(run);
  std::error_code error;
  fs::create_directories(run.path / "ranks", error);
  if (error) {
    throw Error(refusal_kind(error),
                fmt::format("cannot write into {}: {}", run.path.string(), error.message()));
  }
  return run;
}

void remove_refused(const RunDirectory& run) {
  if (!run.made || has_checkpoint(run.path)) return;
  std::error_code error;
  fs::remove_all(run.path, error);
}

void keep_previous(const fs::path& file) {
  if (!fs::exists(file)) return;
  for (int number = 1;; ++number) {
    fs::path kept = file;
    kept.replace_filename(
        fmt::format("{}.{}{}", file.stem().string(), number, file.extension().string()));
    if (fs::exists(kept)) continue;
    fs::rename(file, kept);
    return;
  }
}

}  // namespace dstrain::launcher
