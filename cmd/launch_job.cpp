#include "cmd/launch_job.h"

#include <fmt/format.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>

#include "cmd/auto_layout.h"
#include "cmd/engine_library.h"
#include "cmd/fitting_memory.h"
#include "cmd/host_options.h"
#include "cmd/hub_names.h"
#include "cmd/merge_run_traces.h"
#include "cmd/needed_files.h"
#include "cmd/number_option.h"
#include "cmd/overrides.h"
#include "cmd/recipe_words.h"
#include "cmd/version.h"
#include "engine/base/open_files.h"
#include "engine/base/output.h"
#include "engine/recipe/load.h"
#include "launcher/base/standard_output.h"
#include "launcher/hosts/slurm_allocation.h"
#include "launcher/job/agent.h"
#include "launcher/job/launch.h"
#include "launcher/job/recipe_files.h"
#include "launcher/protocol/protocol.h"
#include "launcher/transport/joined.h"

namespace dstrain {
namespace {

std::vector<std::string> own_command_line() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  return words;
}

}  // namespace

void add_job_options(CLI::App& app, JobOptions& options) {
  add_recipe(app, options.recipe, Words::yes);
  add_overrides(app, options.overrides);
  app.add_option_function<int>(
         "--trace",
         [&options](int steps) {
           options.overrides.push_back(fmt::format("trace.steps={}", steps));
         },
         "Record so many steps of all ranks, from the fourth on (trace.first): the first two make "
         "handles and plans, the third\n"
         "runs with the profiler on. Same as --set trace.steps=N.")
      ->check(number_in(1, 100));
  add_host_options(app, options.launch);
}

int launch_job(const JobOptions& options) {
  ::signal(SIGPIPE, SIG_IGN);
  require_open_files(32, "a launch");
  launcher::fill_standard_streams();
  const auto joined = launcher::join(
      launcher::probe_machine(), ::getenv,
      [](launcher::UniqueFd socket) {
        return launcher::run_dialled_agent(std::move(socket), kVersion);
      },
      [](const std::string& line) { print_error("{}\n", line); });
  if (joined && joined->exit_code) return *joined->exit_code;
  const launcher::HostRequest& request = options.launch.request;
  const bool elsewhere = joined || !request.hosts.empty() || !request.hostfile.empty() ||
                         launcher::in_slurm_allocation(::getenv);
  // Before signals are caught, so that Ctrl-C ends it.
  bring_named(options.recipe, options.overrides,
              options.launch.dry_run ? Bring::nothing
              : elsewhere            ? Bring::all
                                     : Bring::all_and_data);
  launcher::Interrupts interrupts({SIGINT, SIGTERM, SIGHUP, SIGUSR1});
  const LoadedRecipe loaded = load_recipe(options.recipe, options.overrides);
  for (const Diagnostic& warning : loaded.warnings) {
    print_error("{}\n", format(warning));
  }
  look_for_files(loaded, {.ranks_here = !elsewhere && !options.launch.dry_run,
                          .resumes = options.launch.resume.mode != launcher::Resume::Mode::never});
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  std::vector<std::string> rank_command = {self, "engine"};
  rank_command.insert(rank_command.end(), options.rank_arguments.begin(),
                      options.rank_arguments.end());
  launcher::StandardOutput output(STDOUT_FILENO);
  launcher::LaunchOptions launch = options.launch;
  launch.recipe_name = loaded.name;
  launch.recipe_variables = loaded.variables;
  int ranks = 0;
  launch.files = [&](int world_size) {
    ranks = world_size;
    if (!options.search)
      return launcher::recipe_files(with_fitting_memory(loaded, options, world_size, elsewhere),
                                    world_size);
    return launcher::recipe_files(with_auto_layout(options.recipe, options.overrides, world_size),
                                  world_size);
  };
  // A search finds another layout, and says what it predicts.
  if (!options.search)
    launch.price = [&loaded](int before, int now) {
      return launcher::price_of_ranks(loaded.recipe, before, now);
    };
  launch.output = loaded.recipe.run.output;
  launch.cpu_ranks = loaded.recipe.parallel.backend == Backend::gloo;
  launch.agent_command = {self, "agent"};
  launch.rank_command = rank_command;
  launch.joined = joined ? joined->controller : nullptr;
  launch.build = kVersion;
  launch.command_line = own_command_line();
  // Without trace.steps, too: a running job can be asked for a trace.
  if (const TraceConfig& trace = loaded.recipe.trace; trace.merge)
    launch.finished = [trace](const std::filesystem::path& run) { merge_run_traces(trace, run); };
  const int code = launcher::launch(launch, output.sink(), interrupts);
  // The ranks of a job say so themselves; a search finds what fits.
  const bool asks = launch.dry_run && !options.search && code == 0 && ranks > 0;
  if (asks && !recipe_fits(options.recipe, options.overrides, ranks))
    return exit_code(ErrorKind::usage);
  return code;
}

}  // namespace dstrain
