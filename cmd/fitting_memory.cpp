#include "cmd/fitting_memory.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "cmd/engine_library.h"
#include "cmd/program_output.h"
#include "engine/base/error.h"
#include "engine/base/json.h"
#include "engine/base/output.h"
#include "launcher/hosts/machine.h"

namespace dstrain {
namespace {

constexpr double kLongStep = 60;  ///< seconds

/// The answer of `fits --memory`; null where it gave none: the ranks say then what is wrong.
nlohmann::json asked_fit(const JobOptions& options, int ranks, const std::string& machine) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  std::vector<std::string> command = {
      self, "fits", options.recipe, "--ranks", fmt::to_string(ranks), "--memory"};
  if (!machine.empty()) command.insert(command.end(), {"--machine", machine});
  for (const std::string& override : options.overrides)
    command.insert(command.end(), {"--set", override});
  constexpr double kLongest = 60;  // seconds
  const auto text = output_of(command, kLongest);
  return text ? json_or_null(*text) : nlohmann::json();
}

/// Of CPUs, where there is no GPU and the recipe does not ask for CPUs.
void refuse_long_step(const nlohmann::json& answer) {
  const double step_s = answer.value("step_s", 0.0);
  if (step_s <= kLongStep) return;
  throw Error(ErrorKind::usage,
              fmt::format("no GPU was seen, and a step on the CPU takes about {:.0f} minutes",
                          std::max(1.0, step_s / 60)),
              "`dstrain doctor` says why there is no GPU; --set parallel.backend=gloo trains on "
              "the CPU all the same");
}

}  // namespace

LoadedRecipe with_settings(const std::string& recipe, std::vector<std::string> overrides,
                           const std::vector<std::string>& settings, const std::string& origin) {
  overrides.insert(overrides.end(), settings.begin(), settings.end());
  LoadedRecipe loaded = load_recipe(recipe, overrides);
  for (Origin& key : loaded.origins) {
    const bool set = std::ranges::any_of(
        settings, [&](const std::string& setting) { return setting.starts_with(key.path + "="); });
    if (set) key.origin = origin;
  }
  return loaded;
}

LoadedRecipe with_fitting_memory(LoadedRecipe loaded, const JobOptions& options, int ranks,
                                 bool elsewhere) {
  if (options.any_memory || !options.rank_arguments.empty() || !has_engine_library()) return loaded;
  const launcher::Machine here = launcher::probe_machine();
  const bool asks_cpu = loaded.recipe.parallel.backend == Backend::gloo;
  const bool on_cpu = asks_cpu || (!elsewhere && here.gpus == 0);
  const bool unasked_cpu = on_cpu && !asks_cpu && !here.gpus_hidden && options.machine.empty();
  const bool limited = loaded.recipe.memory.limit > 0;
  if (unasked_cpu && options.launch.dry_run && !limited) return loaded;
  if (on_cpu && !unasked_cpu && !limited && options.machine.empty()) return loaded;
  if (elsewhere && options.machine.empty() && !limited) {
    print_error(
        "note: which GPUs the hosts have is not known here, their memory was not checked; "
        "--machine NAME checks it\n");
    return loaded;
  }
  const std::string machine = options.machine.empty() && on_cpu ? "cpu" : options.machine;
  const nlohmann::json answer = asked_fit(options, ranks, machine);
  if (!answer.is_object()) return loaded;
  if (answer.contains("unknown")) {
    print_error("note: {}; the memory of the GPUs was not checked\n",
                answer["unknown"].get<std::string>());
    return loaded;
  }
  if (unasked_cpu && !options.launch.dry_run) refuse_long_step(answer);
  // A CPU's memory is an estimate.
  if (answer["fits"].get<bool>() || (machine == "cpu" && !limited)) return loaded;
  const auto settings = answer["settings"].get<std::vector<std::string>>();
  if (!options.fit || settings.empty()) {
    throw Error(ErrorKind::usage, answer["misfit"].get<std::string>() + "; no rank was started",
                fmt::format("{}\n    {}--any-memory starts it all the same",
                            answer["proposals"].get<std::string>(),
                            settings.empty() ? "" : "--fit takes the first of them; "));
  }
  print_error("--fit: {}; planned {:.2f} GiB a rank, {:.1f} ms a step\n", fmt::join(settings, " "),
              answer["bytes"].get<double>() / (1 << 30),
              answer["fitting_step_s"].get<double>() * 1e3);
  return with_settings(options.recipe, options.overrides, settings, "--fit");
}

}  // namespace dstrain
