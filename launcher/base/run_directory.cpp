#include "launcher/base/run_directory.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "engine/base/disk_error.h"
#include "engine/base/error.h"
#include "engine/base/input_file.h"
#include "engine/base/run_layout.h"
#include "engine/base/run_lock.h"

namespace dstrain::launcher {
namespace {

namespace fs = std::filesystem;

/// `from`: what a run starts from that has no checkpoint of its own yet; empty: nothing.
ChosenRun choose_named(const fs::path& output, const std::string& name, Resume::Mode resume,
                       const fs::path& from) {
  const bool plain = name.find('/') == std::string::npos && !name.starts_with('.');
  if (!plain) {
    throw Error(ErrorKind::usage, fmt::format("--run-name {}: not a plain folder name", name),
                "the parent folder is run.output of the recipe");
  }
  ChosenRun run{.path = fs::absolute(output / name).lexically_normal()};
  if (!has_checkpoint(run.path)) {
    run.resume_from = from.string();
    return run;
  }
  if (resume == Resume::Mode::never) {
    throw Error(ErrorKind::usage, fmt::format("{} holds a run with checkpoints", run.path.string()),
                "go on with it by --resume auto, or choose another --run-name");
  }
  if (from.parent_path().parent_path() == run.path) {
    throw Error(ErrorKind::usage,
                fmt::format("--run-name {}: --resume {} is a checkpoint of that run itself", name,
                            from.string()),
                "choose another --run-name for a run that starts from it");
  }
  run.continued = true;
  run.resume_from = run.path.string();
  if (from != run.path) run.left_aside = from.string();
  return run;
}

/// Whether it was not there.
bool make_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder.parent_path(), error);
  const bool made = !error && fs::create_directory(folder, error);
  if (error) {
    throw Error(ErrorKind::usage,
                fmt::format("cannot make {}: {}", folder.string(), error.message()),
                "choose a folder that can be written, with --set run.output=DIR");
  }
  return made;
}

/// Removes those of a launcher that was killed; the one that holds the lock has none yet.
void remove_tokens(const fs::path& run) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(run, ignored)) {
    if (entry.path().filename().string().starts_with(kTokenPrefix))
      fs::remove(entry.path(), ignored);
  }
}

}  // namespace

Resume resume_from(const std::string& text) {
  if (text.empty() || text == "never") return {};
  if (text == "auto") return {.mode = Resume::Mode::newest};
  return {.mode = Resume::Mode::path, .path = text};
}

bool has_checkpoint(const fs::path& directory) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(RunLayout(directory).checkpoints(), error)) {
    if (parse_checkpoint_name(entry.path()) && is_checkpoint(entry.path())) return true;
  }
  return false;
}

NewestRun find_newest_run(const fs::path& output, const std::string& recipe, std::time_t now) {
  constexpr std::time_t kClocksApart = 24 * 3600;  // of hosts
  const std::string latest = fmt::format("{:%Y%m%dT%H%M%SZ}", fmt::gmtime(now + kClocksApart));
  NewestRun newest;
  std::vector<std::pair<std::string, fs::path>> runs;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(output, error)) {
    const std::string time = time_in_name(entry.path().filename().string(), recipe);
    if (time.empty() || !has_checkpoint(entry.path())) continue;
    if (time > latest) {
      newest.of_the_future.push_back(entry.path());
    } else {
      runs.emplace_back(time, entry.path());
    }
  }
  if (!runs.empty()) newest.run = std::ranges::max_element(runs)->second;
  std::ranges::sort(newest.of_the_future);
  return newest;
}

fs::path resume_source(const std::string& path) {
  fs::path given = fs::absolute(path).lexically_normal();
  if (!given.has_filename()) given = given.parent_path();  // "step-00000020/"
  const char* hint = "give a run directory, one of its checkpoints/step-* folders, auto or never";
  if (path_kind(given, ErrorKind::usage) != PathKind::folder)
    throw Error(ErrorKind::usage, fmt::format("--resume {}: no such directory", path), hint);
  if (!has_checkpoint(given) && !is_checkpoint(given)) {
    throw Error(ErrorKind::usage, fmt::format("--resume {}: holds no complete checkpoint", path),
                hint);
  }
  return given;
}

ChosenRun choose_run(const fs::path& output, const std::string& recipe, const Resume& resume,
                     std::time_t now, const std::string& name) {
  const fs::path given = resume.mode == Resume::Mode::path ? resume_source(resume.path) : "";
  if (!name.empty()) return choose_named(output, name, resume.mode, given);
  ChosenRun run;
  if (resume.mode == Resume::Mode::newest) {
    NewestRun newest = find_newest_run(output, recipe, now);
    if (newest.run) run.path = fs::absolute(*newest.run).lexically_normal();
    run.of_the_future = std::move(newest.of_the_future);
  } else if (is_checkpoint(given)) {
    run.resume_from = given.string();
  } else {
    run.path = given;
  }
  run.continued = !run.path.empty();
  if (run.continued) run.resume_from = run.path.string();
  return run;
}

std::string short_path(const fs::path& path) {
  std::error_code error;
  const fs::path relative = fs::proximate(path, error);
  return error || relative.empty() || *relative.begin() == ".." ? path.string() : relative.string();
}

std::vector<std::string> remarks(const ChosenRun& run, const Resume& resume) {
  std::vector<std::string> lines;
  if (resume.mode == Resume::Mode::newest && !run.continued)
    lines.emplace_back(
        "--resume auto: no checkpoint of this recipe yet, starting from the beginning");
  for (const fs::path& future : run.of_the_future)
    lines.push_back(fmt::format(
        "--resume auto: {} is left out, its name gives a time that has not come yet; --resume {} "
        "goes on with it",
        short_path(future), short_path(future)));
  if (!run.left_aside.empty())
    lines.push_back(
        fmt::format("--resume {}: the run {} has checkpoints of its own and goes on from these",
                    short_path(run.left_aside), run.path.filename().string()));
  return lines;
}

RunDirectory open_run_directory(const fs::path& output, const std::string& recipe,
                                const Resume& resume, std::time_t now, const std::string& name) {
  RunDirectory run{choose_run(output, recipe, resume, now, name), /*made=*/false, UniqueFd()};
  if (run.path.empty()) {
    run.path = make_dated_directory(fs::absolute(output).lexically_normal(), recipe, now);
    run.made = true;
  } else {
    run.made = make_folder(run.path);
  }
  run.lock = lock_run(run.path);
  remove_tokens(run.path);
  std::error_code error;
  fs::create_directories(RunLayout(run.path).ranks(), error);
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
