#include "engine/train/session/train.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>

#include "engine/base/error.h"
#include "engine/base/job_environment.h"
#include "engine/base/open_files.h"
#include "engine/comm/rendezvous.h"
#include "engine/recipe/compute.h"
#include "engine/recipe/load.h"
#include "engine/recipe/phases.h"
#include "engine/train/execute/memory_errors.h"
#include "engine/train/measure/measure_hosts.h"
#include "engine/train/session/agree.h"
#include "engine/train/session/evaluate.h"
#include "engine/train/session/stop_signal.h"
#include "engine/train/session/trainer.h"
#include "engine/train/session/verify.h"

namespace dstrain {
namespace {

RankRecordFile open_record() {
  const char* path = std::getenv(job_environment::kRankRecord);
  return path == nullptr ? RankRecordFile::anonymous() : RankRecordFile::open(path);
}

/// Keeps freed host memory for the next tensor of that size: on the CPU a step would else spend
/// most of its time in mapping fresh pages and zeroing them.
void keep_host_memory() {
  ::mallopt(M_MMAP_THRESHOLD, 32 << 20);
  ::mallopt(M_TRIM_THRESHOLD, 1 << 30);
}

/// The world of a phase: each session opens its communicators anew.
World world_of_phase(const World& world, int phase) {
  return phase == 0 ? world : again(world, fmt::format("phase {}", phase));
}

int run_verification(const LoadedRecipe& loaded, const World& world, int steps,
                     RankRecordFile& record) {
  const std::unique_ptr<Progress> progress = make_progress(world.rank);
  const auto note = [&](const std::string& text) { progress->note(text); };
  bool passed = true;
  for (int phase = 0; phase < num_phases(loaded.recipe); ++phase) {
    if (world.rank == 0 && !loaded.recipe.phases.empty())
      note(describe_phase(loaded.recipe, phase));
    const Recipe recipe = single_phase(loaded.recipe, phase);
    const std::vector<VerifyStep> result =
        verify_strategy(recipe, world_of_phase(world, phase), steps, record, note);
    if (world.rank != 0) continue;
    note(verify_report(result, recipe, world.size));
    passed = passed && std::ranges::all_of(result, &VerifyStep::passed);
  }
  return passed ? 0 : 1;
}

/// What this process says of itself when it fails, before anything is unwound: the agent gives a
/// slow end no time.
template <class Body>
void recording_failure(RankRecordFile& record, const Body& body) {
  try {
    with_memory_errors(body);
  } catch (const Error& error) {
    record.fail(error.what(), exit_code(error.kind()));
    throw;
  } catch (const c10::Error& error) {
    record.fail(error.what_without_backtrace());  // the log has the backtrace
    throw;
  } catch (const std::exception& error) {
    record.fail(error.what());
    throw;
  }
}

}  // namespace

int train(const TrainOptions& options) {
  const auto start = Trainer::Clock::now();
  ::signal(SIGPIPE,
           SIG_IGN);  // a peer or reader that is gone is an error to handle, not a reason to die
  keep_host_memory();
  RankRecordFile record = open_record();
  int code = 0;
  recording_failure(record, [&] {
    require_open_files(64, "a rank");
    record.enter(-1, "read recipe");
    LoadedRecipe loaded = load_recipe(options.recipe, options.overrides);
    record.enter(-1, "meet the other ranks");
    const World world = [&] {
      const CollectiveScope scope(&record, "connect", world_size_from_environment());
      return world_from_environment(loaded.recipe.parallel.backend);
    }();
    if (!options.measure.empty()) {
      measure_hosts(world, record, options.measure);
      leave(*world.store, {.rank = world.rank, .size = world.size});
      return;
    }
    const bool chosen = loaded.recipe.precision.compute == ComputeType::automatic;
    settle_compute(loaded, limits_on_all(world, record), world.device.name);
    if (!options.evaluate.empty()) {
      evaluate_finished(loaded, world, options.evaluate, record);
      leave(*world.store, {.rank = world.rank, .size = world.size});
      return;
    }
    if (options.verify_steps > 0) {
      code = run_verification(loaded, world, options.verify_steps, record);
      return;
    }
    // Before, there is nothing to save and a signal just ends the rank. The launcher answers
    // itself.
    install_stop_handler(/*speaks=*/world.rank == 0 &&
                         std::getenv(job_environment::kRunDirectory) == nullptr);
    RunPlace place = agree_on_place(world, record, loaded.recipe, loaded.name, options.resume);
    const UniqueFd lock = std::move(place.lock);  // of all phases
    // The launcher wrote what it knew, and a resume computes in the same format.
    if (chosen && world.rank == 0 && std::getenv(job_environment::kRunDirectory) != nullptr)
      note_compute(place.directory.recipe(), loaded.recipe.precision.compute);
    int phase = place.resume ? place.resume->state().phase : 0;
    for (bool more = true; more; ++phase) {
      const World own = world_of_phase(world, phase);
      const auto begin = place.new_phase ? Trainer::Clock::now() : start;
      Trainer trainer(loaded, phase, own, record, std::move(place), begin);
      recording_failure(record, [&] { trainer.run(); });
      more = !trainer.stopped() && phase + 1 < num_phases(loaded.recipe);
      if (more) place = trainer.next_place();
    }
    leave(*world.store, {.rank = world.rank, .size = world.size});
  });
  return code;
}

}  // namespace dstrain
