#include "engine/train/session/resume.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "engine/base/error.h"
#include "engine/base/input_file.h"
#include "engine/base/job_environment.h"
#include "engine/base/json.h"
#include "engine/base/log.h"
#include "engine/base/run_layout.h"
#include "engine/base/run_lock.h"
#include "engine/checkpoint/base_weights.h"
#include "engine/checkpoint/checkpoint_choice.h"
#include "engine/recipe/phases.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

/// Checkpoints that `resume` may mean, the best first; Error{usage} when there is no such folder.
std::vector<fs::path> candidates(const std::string& resume) {
  if (resume == "never") return {};
  if (path_kind(resume, ErrorKind::usage) != PathKind::folder) {
    throw Error(ErrorKind::usage, fmt::format("--resume {}: no such directory", resume),
                "give a run directory, a checkpoint directory or never");
  }
  if (parse_checkpoint_name(resume)) return {resume};
  return checkpoints_by_name(find_checkpoints_folder(resume));
}

/// Rank 0 says what was left out; Error{checkpoint} when nothing is left.
void report_choice(const CheckpointChoice& choice, const std::string& resume) {
  for (const std::string& problem : choice.problems)
    log_warning("skipped a checkpoint: {}", problem);
  if (choice.reader || resume == "never") return;
  throw Error(
      ErrorKind::checkpoint,
      fmt::format("--resume {}: no valid checkpoint ({})", resume,
                  choice.problems.empty() ? "the folder is empty" : choice.problems.front()),
      "look with `dstrain checkpoint list`, or start anew with --resume never");
}

std::string random_id() {
  std::random_device device;
  return fmt::format("{:08x}", device());
}

/// Not as JSON text: paths are bytes, which need not be UTF-8.
std::string to_bytes(const nlohmann::json& value) {
  std::string bytes;
  nlohmann::json::to_msgpack(value, bytes);
  return bytes;
}

/// Locks the run directory of `resume` where this process has to: before checkpoints are looked
/// for, since another job may be between two of them.
UniqueFd lock_of(const std::string& resume) {
  if (std::getenv(job_environment::kRunDirectory) != nullptr || resume == "never" ||
      path_kind(resume, ErrorKind::usage) != PathKind::folder) {
    return {};
  }
  const RunLayout run(resume);
  if (path_kind(run.checkpoints(), ErrorKind::usage) != PathKind::folder) return {};
  return lock_run(run.root());
}

/// `lock` is of the run directory, where this process has to take it.
nlohmann::json decide(const Recipe& recipe, const std::string& name, const std::string& resume,
                      const CheckpointChoice& choice, UniqueFd& lock) {
  const char* given = std::getenv(job_environment::kRunDirectory);
  report_choice(choice, resume);
  const fs::path& checkpoint = choice.path;
  if (choice.reader) {
    const CheckpointState& state = choice.reader->state();
    if (state.phase >= num_phases(recipe)) {
      throw Error(ErrorKind::usage,
                  fmt::format("{} is of phase {}, the recipe has {}", checkpoint.string(),
                              state.phase + 1, num_phases(recipe)),
                  "resume with the phases of the run that saved it");
    }
    check_base(checkpoint, state.base, base_reference(phase_recipe(recipe, state.phase)));
  }
  RunLayout directory{fs::path(given == nullptr ? "" : given)};
  if (given == nullptr) {
    const bool goes_on = !checkpoint.empty() && !parse_checkpoint_name(resume);
    directory = goes_on
                    ? RunLayout::around(checkpoint)
                    : RunLayout(make_dated_directory(recipe.run.output, name, std::time(nullptr)));
  }
  if (given == nullptr && !lock) lock = lock_run(directory.root());  // else the launcher holds it
  directory.make_folders();
  std::error_code ignored;
  return {{"directory", directory.root().string()},
          {"attempt", random_id()},
          {"resumes_here", fs::equivalent(checkpoint / "..", directory.checkpoints(), ignored)}};
}

/// Others say where a run writes, what it shows, or how fast it reads.
bool changes_numbers(std::string_view path) {
  constexpr std::string_view kOthers[] = {"run.output",   "run.checkpoint.", "metrics.",  "trace.",
                                          "data.workers", "data.prefetch",   "data.cache"};
  return std::ranges::none_of(kOthers,
                              [&](std::string_view other) { return path.starts_with(other); });
}

}  // namespace

std::vector<std::string> changes_since(const CheckpointState& state, const LoadedRecipe& loaded,
                                       std::int64_t train_size) {
  std::vector<std::string> lines;
  std::map<std::string, std::string> before;
  try {
    for (const Origin& origin : parse_recipe(state.recipe, "the checkpoint's recipe").origins)
      before.emplace(origin.path, origin.value);
  } catch (const Error& error) {
    lines.push_back(
        fmt::format("changes of the recipe since the checkpoint are not known: {}", error.what()));
  }
  for (const Origin& now : loaded.origins) {
    const auto old = before.find(now.path);
    if (old != before.end() && old->second != now.value && changes_numbers(now.path))
      lines.push_back(fmt::format("changed since the checkpoint: {}: {}, was {}", now.path,
                                  shown_text(now.value), shown_text(old->second)));
  }
  if (state.train_samples > 0 && state.train_samples != train_size) {
    lines.push_back(fmt::format(
        "changed since the checkpoint: {} training samples, were {}: the rest of this epoch has "
        "another order, in which samples that were seen may come again",
        train_size, state.train_samples));
  }
  return lines;
}

RunPlace agree_on_place(const World& world, RankRecordFile& record, const Recipe& recipe,
                        const std::string& name, const std::string& resume) {
  UniqueFd lock;
  CheckpointChoice choice = [&] {
    const CollectiveScope scope(&record, "choose a checkpoint", world.size);
    return choose_checkpoint(*world.store, world.rank, world.size, [&] {
      lock = lock_of(resume);
      return candidates(resume);
    });
  }();
  // The others must learn of a failure, or they would wait for the decision until their time is up.
  const std::string key = "run/place";
  if (world.rank == 0) {
    try {
      world.store->set(key, to_bytes(decide(recipe, name, resume, choice, lock)));
    } catch (const std::exception& error) {
      world.store->set(key, to_bytes({{"error", error.what()}}));
      throw;
    }
  }
  const auto place = [&] {
    const CollectiveScope scope(&record, "agree", world.size);
    return nlohmann::json::from_msgpack(world.store->get(key, std::chrono::minutes(10)));
  }();
  if (place.contains("error")) {
    throw Error(ErrorKind::again,
                "rank 0 could not start the run: " + place["error"].get<std::string>());
  }
  return {.directory = RunLayout(place["directory"].get<std::string>()),
          .attempt = place["attempt"].get<std::string>(),
          .resume = std::move(choice.reader),
          .checkpoint = std::move(choice.path),
          .resumes_here = place["resumes_here"].get<bool>(),
          .lock = std::move(lock)};
}

}  // namespace dstrain
