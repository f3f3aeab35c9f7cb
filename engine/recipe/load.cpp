#include "engine/recipe/load.h"

#include <fmt/format.h>

#include <map>
#include <system_error>
#include <utility>

#include "engine/base/file.h"
#include "engine/base/input_file.h"
#include "engine/recipe/from_folder.h"
#include "engine/recipe/hub_words.h"
#include "engine/recipe/optimizers.h"
#include "engine/recipe/reader.h"
#include "engine/recipe/rules.h"
#include "engine/recipe/tree.h"
#include "engine/recipe/value.h"
#include "engine/recipe/variants.h"

namespace dstrain {
namespace {

/// Lists every field with its value and where that came from.
class Origins final : public Visitor {
 public:
  Origins(const YamlReader& reader, const Diagnostics& diagnostics,
          std::map<std::string, std::string, std::less<>> taken)
      : reader_(reader), diagnostics_(diagnostics), taken_(std::move(taken)) {}

  std::vector<Origin> list(Recipe recipe) {
    describe(recipe, *this);
    return std::move(origins_);
  }
  /// Those that list() has met.
  [[nodiscard]] const std::vector<std::string>& variables() const { return variables_; }

 private:
  void enter(std::string_view name, std::string_view) override {
    prefix_ += std::string(name) + ".";
  }
  void leave() override {
    prefix_.pop_back();
    prefix_.erase(prefix_.rfind('.') + 1);  // npos + 1 is 0
  }
  void visit_list(std::string_view name, const ListSlot& list, std::string_view) override {
    const std::size_t size = list.size(list.at);
    if (size == 0) {
      const std::string path = prefix_ + std::string(name);
      const Place* place = reader_.given(path);
      origins_.push_back({path, "[]", diagnostics_.origin(place == nullptr ? Place{} : *place)});
    }
    for (std::size_t i = 0; i < size; ++i) {
      enter(name, {});
      enter(std::to_string(i), {});
      list.describe(list.at, i, *this);
      leave();
      leave();
    }
  }
  void visit(std::string_view name, const Slot& slot, const Field&) override {
    const std::string path = prefix_ + std::string(name);
    const Place* place = reader_.given(path);
    std::string origin = diagnostics_.origin(place == nullptr ? Place{} : *place);
    if (const auto file = taken_.find(path); file != taken_.end()) origin = file->second;
    if (const std::vector<std::string>* variables = reader_.variables(path)) {
      origin += fmt::format(" with ${{{}}}", fmt::join(*variables, "}, ${"));
      variables_.insert(variables_.end(), variables->begin(), variables->end());
    }
    origins_.push_back({path, yaml_value(slot), std::move(origin)});
  }

  const YamlReader& reader_;
  const Diagnostics& diagnostics_;
  std::map<std::string, std::string, std::less<>> taken_;  ///< files of values out of the folder
  std::string prefix_;
  std::vector<Origin> origins_;
  std::vector<std::string> variables_;
};

/// Fills in what the recipe leaves open and the optimizer has a default of its own for.
void take_optimizer_defaults(OptimizerConfig& config, const YamlReader& reader) {
  const OptimizerRow& row = optimizer_row(config.name);
  const auto open = [&](std::string_view key) { return reader.given(key) == nullptr; };
  if (open("optimizer.betas")) config.betas = {row.betas[0], row.betas[1]};
  if (open("optimizer.momentum")) config.momentum = row.momentum;
  if (open("optimizer.nesterov")) config.nesterov = row.nesterov;
  if (open("optimizer.weight_decay")) config.weight_decay = row.weight_decay;
}

/// data.mixture says what data.name would.
void name_mixture(DataConfig& data, const YamlReader& reader) {
  if (reader.given("data.mixture") != nullptr && reader.given("data.name") == nullptr)
    data.name = DatasetName::mixture;
}

[[noreturn]] void fail(const std::string& file, std::string message, std::string hint) {
  throw RecipeError({{.file = file, .message = std::move(message), .hint = std::move(hint)}});
}

/// The text of a recipe file, and the variant that its name says.
struct RecipeText {
  VariantPath read;
  std::string text;
};
RecipeText read_text(const std::filesystem::path& file) {
  RecipeText found{.read = {.file = file, .variant = {}}, .text = {}};
  try {
    if (!path_exists(file)) found.read = meant_variant(file).value_or(found.read);
    if (path_exists(found.read.file)) {
      found.text = read_file(found.read.file, kMaxRecipeBytes);
      return found;
    }
  } catch (const Error& error) {
    fail(shown_path(file), error.what(),
         error.hint().empty() ? "give the path of a recipe (.yaml)" : error.hint());
  }
  fail(shown_path(file), "there is no such file",
       "dstrain recipe list names the recipes that come with it");
}

/// The tree with its variant and the overrides; nothing where there is none.
std::optional<Node> read_values(std::string_view text, const std::vector<std::string>& overrides,
                                const std::string& variant, Diagnostics& diagnostics,
                                std::vector<std::string>& variants) {
  std::optional<Node> root = read_tree(text, diagnostics);
  if (!root) return root;
  variants = take_variant(*root, variant, diagnostics);
  for (std::size_t i = 0; i < overrides.size(); ++i) {
    apply_override(*root, overrides[i], static_cast<int>(i), diagnostics);
  }
  return root;
}

}  // namespace

LoadedRecipe parse_recipe(std::string_view text, const std::string& file,
                          const std::vector<std::string>& overrides, const std::string& variant) {
  Diagnostics diagnostics(file, overrides);
  std::vector<std::string> variants;
  const std::optional<Node> root = read_values(text, overrides, variant, diagnostics, variants);
  if (!root) throw RecipeError(diagnostics.take(Severity::error));
  LoadedRecipe loaded = {.file = file, .name = std::filesystem::path(file).stem().string()};
  if (!variant.empty()) loaded.name += "_" + variant;
  YamlReader reader(*root, diagnostics);
  reader.read(loaded.recipe);
  name_mixture(loaded.recipe.data, reader);
  take_optimizer_defaults(loaded.recipe.optimizer, reader);
  loaded.recipe.data.pairs = loaded.recipe.preference.pairs();
  auto taken = take_cached(loaded.recipe, reader, diagnostics);
  taken.merge(take_from_folder(loaded.recipe, reader, diagnostics));
  check_rules(loaded.recipe, reader, diagnostics);
  if (diagnostics.num_errors() > 0) throw RecipeError(diagnostics.take(Severity::error));
  Origins origins(reader, diagnostics, std::move(taken));
  loaded.origins = origins.list(loaded.recipe);
  loaded.variables = origins.variables();
  loaded.warnings = diagnostics.take(Severity::warning);
  // Mistakes of a variant are found before it is asked for.
  if (variant.empty() && overrides.empty())
    for (const std::string& each : variants) (void)parse_recipe(text, file, {}, each);
  return loaded;
}

LoadedRecipe load_recipe(const std::filesystem::path& file,
                         const std::vector<std::string>& overrides) {
  const RecipeText found = read_text(file);
  return parse_recipe(found.text, found.read.file.string(), overrides, found.read.variant);
}

NamedThings named_things(const std::filesystem::path& file,
                         const std::vector<std::string>& overrides, bool with_data) {
  const RecipeText found = read_text(file);
  Diagnostics diagnostics(found.read.file.string(), overrides);
  std::vector<std::string> variants;
  const std::optional<Node> root =
      read_values(found.text, overrides, found.read.variant, diagnostics, variants);
  NamedThings named;
  if (!root) return named;
  YamlReader reader(*root, diagnostics);
  Recipe recipe;
  reader.read(recipe);
  name_mixture(recipe.data, reader);
  if (with_data) named.data = lacking_data_of(recipe);
  try {
    named.words = hub_words_of(recipe);
  } catch (const Error&) {  // load_recipe() says it with its place
  }
  return named;
}

}  // namespace dstrain
