#include "cmd/word_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "cmd/recipe_words.h"
#include "engine/base/error.h"
#include "engine/base/output.h"
#include "engine/base/printable.h"
#include "engine/recipe/load.h"
#include "launcher/hosts/allocation.h"

namespace dstrain {
namespace {

using importing::ShortForm;

/// The ranks fill the hosts one after the other, so hosts with more slots would take more of them.
void check_hosts(const ShortForm& form, launcher::HostRequest request, bool cpu_ranks) {
  launcher::Machine machine = launcher::probe_machine();
  if (cpu_ranks) machine.gpus = 0;
  request.cpu_ranks = cpu_ranks;
  request.ranks = form.nodes == 1 ? form.per_node : 0;  // this machine alone takes as many
  const std::vector<launcher::Host> hosts =
      launcher::allocate(request, machine, [](const char* name) {
        return std::getenv(name);
      }).hosts;
  const auto nodes = static_cast<std::size_t>(form.nodes);
  if (hosts.size() < nodes) {
    throw Error(ErrorKind::usage,
                hosts.size() == 1
                    ? fmt::format("NODES: {}, and here is 1 host", form.nodes)
                    : fmt::format("NODES: {}, and here are {} hosts", form.nodes, hosts.size()),
                fmt::format("name them: --hosts n1:{0},n2:{0} or --hostfile FILE; or --slurm",
                            form.per_node));
  }
  for (std::size_t i = 0; i < nodes; ++i) {
    const launcher::Host& host = hosts[i];
    if (host.slots == form.per_node || (i + 1 == nodes && host.slots > form.per_node)) continue;
    throw Error(
        ErrorKind::usage,
        fmt::format("PER_NODE: {}, but host {} has {} slots", form.per_node, host.name, host.slots),
        fmt::format("give it {} slots, with --hosts {}:{} or in the hostfile", form.per_node,
                    host.name, form.per_node));
  }
}

void ask_slurm(const ShortForm& form, launcher::SubmitOptions& options) {
  if (form.nodes > 0) {
    if (options.nodes > 1 && options.nodes != form.nodes) {
      throw Error(ErrorKind::usage,
                  fmt::format("--nodes {} beside NODES: {}", options.nodes, form.nodes),
                  "leave --nodes out");
    }
    options.nodes = form.nodes;
  }
  const int per_node = form.ranks / std::max(1, options.nodes);
  if (per_node * options.nodes != form.ranks) {
    throw Error(
        ErrorKind::usage,
        fmt::format("RANKS: {} are no equal parts of --nodes {}", form.ranks, options.nodes),
        fmt::format("use a multiple of {}", options.nodes));
  }
  if (options.gpus_per_node == 0 && options.ranks_per_node == 0) options.gpus_per_node = per_node;
}

}  // namespace

void take_words(const std::vector<std::string>& more, JobOptions& job,
                launcher::SubmitOptions* submit) {
  if (more.empty()) return refuse_unknown_name(job.recipe);
  if (job.launch.request.ranks > 0)
    throw Error(ErrorKind::usage, "the number of ranks is given twice", "leave --ranks out");
  std::vector<std::string> words = {job.recipe};
  words.insert(words.end(), more.begin(), more.end());
  if (!importing::is_short_form(words)) {
    throw Error(ErrorKind::usage, fmt::format("one word too many, '{}'", shown(more.front())),
                "a job is a recipe, or the words MODEL STRATEGY RANKS BATCH EPOCHS");
  }
  const ShortForm form = read_words(words);
  job.recipe = form.recipe.string();
  job.overrides.insert(job.overrides.begin(), form.overrides.begin(), form.overrides.end());
  job.launch.request.ranks = form.ranks;
  if (submit != nullptr) {
    ask_slurm(form, *submit);
  } else if (form.nodes > 0) {
    const LoadedRecipe loaded = load_recipe(job.recipe, job.overrides);
    check_hosts(form, job.launch.request, loaded.recipe.parallel.backend == Backend::gloo);
  }
  if (job.launch.dry_run && submit == nullptr)
    print_text(resolved_yaml(load_recipe(job.recipe, job.overrides)));
}

}  // namespace dstrain
