#include "cmd/fitting_memory.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "cmd/engine_library.h"
#include "cmd/overrides.h"
#include "engine/base/error.h"
#include "engine/base/json.h"
#include "engine/base/output.h"
#include "engine/base/program_output.h"
#include "launcher/hosts/machine.h"

namespace dstrain {
namespace {

/// The answer of `fits --memory`; null where it gave none: the ranks then say what is wrong.
nlohmann::json asked_fit(const JobOptions& options, int ranks, bool on_cpu) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  std::vector<std::string> command = {
      self, "fits", options.recipe, "--ranks", fmt::to_string(ranks), "--memory"};
  if (!options.machine.empty()) command.insert(command.end(), {"--machine", options.machine});
  for (const std::string& override : options.overrides)
    command.insert(command.end(), {"--set", override});
  if (on_cpu && options.machine.empty())
    command.insert(command.end(), {"--set", "parallel.backend=gloo"});
  constexpr double kLongest = 60;  // seconds
  const auto text = output_of(command, kLongest);
  return text ? json_or_null(*text) : nlohmann::json();
}

}  // namespace

LoadedRecipe with_fitting_memory(LoadedRecipe loaded, const JobOptions& options, int ranks,
                                 bool elsewhere) {
  if (!options.rank_arguments.empty() || !has_engine_library()) return loaded;
  const bool on_cpu = loaded.recipe.parallel.backend == Backend::gloo ||
                      (!elsewhere && launcher::probe_machine().gpus == 0);
  const bool known = loaded.recipe.memory.limit > 0 || !options.machine.empty();
  const auto unknown = [&](const std::string& what) {
    if (options.fit)
      throw Error(ErrorKind::usage, fmt::format("--fit: {}", what),
                  "--machine NAME says which cards they have, memory.limit how much memory");
    return loaded;
  };
  if (!known && elsewhere) return unknown("the GPUs of other hosts are not known here");
  if (!known && on_cpu) return unknown("ranks on the CPU share the memory of their host");
  const nlohmann::json answer = asked_fit(options, ranks, on_cpu);
  if (!answer.is_object()) return loaded;
  if (answer.contains("refused"))
    throw Error(ErrorKind::usage, answer["refused"].get<std::string>(),
                answer["hint"].get<std::string>());
  if (answer.contains("unknown")) return unknown(answer["unknown"].get<std::string>());
  if (answer["fits"].get<bool>()) return loaded;
  const auto settings = answer["settings"].get<std::vector<std::string>>();
  if (!options.fit || settings.empty()) {
    throw Error(ErrorKind::usage, answer["misfit"].get<std::string>() + "; no rank was started",
                answer["proposals"].get<std::string>() +
                    (settings.empty() ? "" : "\n    --fit takes the first of them"));
  }
  print_error("--fit: {}; planned {:.2f} GiB a rank, {:.1f} ms a step\n", fmt::join(settings, " "),
              answer["bytes"].get<double>() / (1 << 30),
              answer["fitting_step_s"].get<double>() * 1e3);
  return with_settings(options.recipe, options.overrides, settings, "--fit");
}

}  // namespace dstrain
