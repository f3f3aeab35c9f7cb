#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "engine/import/import.h"
#include "engine/recipe/load.h"

/// Any bytes give a recipe that reads, or an Error. Parts between NUL bytes: ds_config.json,
/// TrainingArguments, accelerate's file, a batch script, a command line.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view input(reinterpret_cast<const char*>(data), size);
  std::vector<std::string> parts;
  while (parts.size() < 5) {
    const std::size_t end = input.find('\0');
    parts.emplace_back(input.substr(0, end));
    if (end == std::string_view::npos) break;
    input.remove_prefix(end + 1);
  }
  parts.resize(5);
  dstrain::importing::ImportOptions options;
  const auto name = [&](std::size_t part) {
    return parts[part].empty() ? std::string() : std::to_string(part);
  };
  options.deepspeed = name(0);
  options.trainer = name(1);
  options.accelerate = name(2);
  options.sbatch = name(3);
  options.command = parts[4];
  options.ranks = 8;
  options.open = [&](const std::string& file) {
    const bool known = file.size() == 1 && file[0] >= '0' && file[0] <= '3';
    if (!known) throw dstrain::Error(dstrain::ErrorKind::usage, "no such file");
    return parts[static_cast<std::size_t>(file[0] - '0')];
  };
  try {
    const auto imported = dstrain::importing::import_settings(options);
    (void)dstrain::importing::report_markdown(imported, "r.yaml");
    (void)dstrain::importing::report_json(imported);
    if (imported.unsaid.empty()) (void)dstrain::parse_recipe(imported.recipe, "made.yaml");
  } catch (const dstrain::RecipeError& error) {
    if (error.diagnostics().empty()) std::abort();
  } catch (const dstrain::Error&) {
  }
  return 0;
}
