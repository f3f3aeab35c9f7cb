#include "cmd/auto_layout.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <filesystem>

#include "cmd/overrides.h"
#include "engine/base/program_output.h"
#include "engine/base/error.h"
#include "engine/base/json.h"
#include "engine/base/output.h"

namespace dstrain {

LoadedRecipe with_auto_layout(const std::string& recipe, const std::vector<std::string>& overrides,
                              int ranks) {
  // The search needs models, and with them LibTorch, which this process does not load.
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  std::vector<std::string> command = {
      self, "plan", recipe, "--auto", "--ranks", fmt::to_string(ranks), "--top", "1", "--json"};
  for (const std::string& override : overrides) command.insert(command.end(), {"--set", override});
  constexpr double kLongest = 120;  // seconds
  const auto text = output_of(command, kLongest, STDERR_FILENO);
  const nlohmann::json plan = text ? json_or_null(*text) : nlohmann::json();
  if (!plan.is_object() || !plan.contains("rows") || plan["rows"].empty()) {
    throw Error(ErrorKind::usage, fmt::format("--auto found no layout of {} ranks", ranks),
                fmt::format("dstrain plan {} --auto --ranks {} says why", recipe, ranks));
  }
  const nlohmann::json& row = plan["rows"].front();
  const auto chosen = row["settings"].get<std::vector<std::string>>();
  print_error("--auto: {}; predicted {:.1f} ms a step\n", fmt::join(chosen, " "),
              row["step_s"].get<double>() * 1e3);
  return with_settings(recipe, overrides, chosen, "--auto");
}

}  // namespace dstrain
