#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/error.h"
#include "engine/recipe/recipe.h"

namespace dstrain {

enum class Severity { error, warning };

/// One mistake in a recipe, printed as "file:line:column: error: path: what was found" and a hint
/// line.
struct Diagnostic {
  Severity severity = Severity::error;
  std::string file = {};
  int line = 0;  ///< from 1; 0 when the value came from --set or a default
  int column = 0;
  std::string path = {};     ///< "optimizer.lr"
  std::string message = {};  ///< what was found and which rule it breaks
  std::string hint = {};     ///< what to write instead
};
/// "file:line:column: error: path: message" and, where there is one, a line "  hint: ...".
[[nodiscard]] std::string format(const Diagnostic& diagnostic);

/// Every mistake found in one recipe; what() holds all formatted lines.
class RecipeError : public Error {
 public:
  explicit RecipeError(std::vector<Diagnostic> diagnostics);
  [[nodiscard]] const std::vector<Diagnostic>& diagnostics() const { return diagnostics_; }

 private:
  std::vector<Diagnostic> diagnostics_;
};

/// Where one resolved value came from: "recipes/quickstart.yaml:7", "--set",
/// "models/vit/config.json" (the folder model.weights), "default".
struct Origin {
  std::string path;
  std::string value;
  std::string origin;
};

struct LoadedRecipe {
  std::string file = {};  ///< as given
  std::string name = {};  ///< file name without folder and .yaml, with the variant
  Recipe recipe = {};
  std::vector<Origin> origins = {};         ///< every field, in schema order
  std::vector<std::string> variables = {};  ///< environment variables that values were made of
  std::vector<Diagnostic> warnings = {};
};

/// Reads, applies `--set` overrides ("path.to.key=value", in order) and checks everything.
/// Throws RecipeError with all mistakes of the run; never crashes, hangs or allocates without bound
/// on any input. A file X_V.yaml that is not there is variant V of X.yaml (variants.h); a recipe
/// with variants is read in each of them, too, where nothing is overridden.
[[nodiscard]] LoadedRecipe load_recipe(const std::filesystem::path& file,
                                       const std::vector<std::string>& overrides = {});
/// The same for text in memory; `file` is only named in messages. `variant` of the recipe's
/// `variants`; empty: none.
[[nodiscard]] LoadedRecipe parse_recipe(std::string_view text, const std::string& file,
                                        const std::vector<std::string>& overrides = {},
                                        const std::string& variant = {});

/// The fully resolved recipe, of the values in `loaded.recipe`, as YAML that `load_recipe` accepts
/// and that reproduces the run; one comment per value names its origin.
[[nodiscard]] std::string resolved_yaml(const LoadedRecipe& loaded);

}  // namespace dstrain
