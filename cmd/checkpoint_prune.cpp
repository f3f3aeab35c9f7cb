#include <fmt/format.h>

#include <memory>
#include <string>

#include "cmd/command.h"
#include "cmd/number_option.h"
#include "engine/base/output.h"
#include "engine/base/run_layout.h"
#include "engine/base/units.h"
#include "engine/checkpoint/best_checkpoint.h"
#include "engine/checkpoint/checkpoint.h"

namespace dstrain {
namespace {

struct PruneOptions {
  std::string run;
  int keep = 0;
  bool dry_run = false;
};

int prune(const PruneOptions& options) {
  // Every byte is checked first: a checkpoint that is only seemingly good must not cost a good one.
  const std::filesystem::path folder = find_checkpoints_folder(options.run);
  const auto infos = list_checkpoints(folder, true);
  auto doomed = beyond_newest(infos, options.keep);
  if (const auto best = best_step(folder)) {
    const auto gone = std::erase_if(
        doomed, [&](const CheckpointInfo& info) { return info.step == best->step; });
    if (gone > 0) print_text("keeps   the best, {}\n", best->text);
  }
  for (const CheckpointInfo& info : infos) {
    if (!info.valid) print_text("keeps   {} (invalid: {})\n", info.path.string(), info.problem);
  }
  std::int64_t bytes = 0;
  for (const CheckpointInfo& info : doomed) {
    if (!options.dry_run) remove_checkpoint(info.path);
    bytes += info.bytes;
    print_text("{} {} ({})\n", options.dry_run ? "would remove" : "removed", info.path.string(),
               format_bytes(info.bytes));
  }
  print_text("{} {} of {} checkpoints, {}\n", options.dry_run ? "would remove" : "removed",
             doomed.size(), infos.size(), format_bytes(bytes));
  return 0;
}

}  // namespace

Command add_checkpoint_prune(CLI::App& root) {
  auto options = std::make_shared<PruneOptions>();
  CLI::App* app = root.add_subcommand(
      "prune",
      "Remove the older checkpoints of a run. Invalid ones are left for you to look at.\n"
      "Example: dstrain checkpoint prune runs/quickstart-20261121-101500-3fa2c1 --keep 1");
  app->add_option("run", options->run, "Run directory or its checkpoints folder.")->required();
  app->add_option("--keep", options->keep,
                  "How many of the newest valid checkpoints stay; at least 1.")
      ->required()
      ->check(number_in(1, 1'000'000));
  app->add_flag("--dry-run", options->dry_run, "Say what would go; remove nothing.");
  return {app, [options] { return prune(*options); }};
}

}  // namespace dstrain
