#include <fmt/format.h>

#include <memory>

#include "cmd/command.h"
#include "engine/base/output.h"
#include "engine/recipe/render.h"

namespace dstrain {
namespace {

struct SchemaOptions {
  bool json = false;
  bool reference = false;
};

}  // namespace

Command add_recipe_schema(CLI::App& root) {
  auto options = std::make_shared<SchemaOptions>();
  CLI::App* app = root.add_subcommand(
      "schema",
      "Print what a recipe may say. Default: the reference for people (Markdown).\n"
      "Example: dstrain recipe schema --json > recipe.schema.json");
  CLI::Option* reference =
      app->add_flag("--reference", options->reference,
                    "Print the reference: every key with type, default, limits and meaning.");
  app->add_flag("--json", options->json,
                "Print a JSON schema, by which editors complete and check recipes.")
      ->excludes(reference);
  return {app, [options] {
            print_text(options->json ? json_schema() : reference_markdown());
            return 0;
          }};
}

}  // namespace dstrain
