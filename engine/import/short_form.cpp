#include "engine/import/short_form.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <tuple>

#include "engine/base/error.h"
#include "engine/recipe/axes.h"
#include "engine/recipe/families.h"
#include "engine/recipe/load.h"
#include "engine/recipe/text.h"
#include "engine/recipe/variants.h"

namespace dstrain::importing {
namespace {

namespace fs = std::filesystem;

/// What a strategy sets, by the names that people know it by.
struct Strategy {
  std::string_view name;
  int stage;
  bool codes = false;  ///< ZeRO++: weights and gradients travel in 8 and 4 bits
};
constexpr Strategy kStrategies[] = {{"ddp", 0},
                                    {"zero1", 1},
                                    {"zero2", 2},
                                    {"zero3", 3},
                                    {"zeropp", 3, true},
                                    {"fsdp", 3},
                                    {"fsdp_stage2", 2},
                                    {"fsdp_stage3", 3},
                                    {"fsdp_full_shard", 3},
                                    {"fsdp_shard_grad_op", 2},
                                    {"deepspeed_stage1", 1},
                                    {"deepspeed_stage2", 2},
                                    {"deepspeed_stage3", 3}};

constexpr const char* kForms =
    "MODEL STRATEGY RANKS BATCH EPOCHS: vit-base zero2 8 64 10; on several nodes MODEL STRATEGY "
    "NODES PER_NODE BATCH EPOCHS: vit-base zero2 2 8 64 10";

/// Words for what no model is called.
struct OtherName {
  std::string_view name;     ///< as in_one_form() writes it
  std::string_view meaning;  ///< a model, or the beginning of a recipe's name
};
constexpr OtherName kOtherNames[] = {{"mobilenet", "mobilenet-v2"},
                                     {"mobilenet-finetuned", "mobilenet-v2-food101-finetune"}};

/// `further`: words that would do, too, but are not listed.
[[noreturn]] void refuse(std::string_view what, const std::string& word,
                         const std::vector<std::string_view>& known,
                         const std::vector<std::string_view>& further = {}) {
  std::vector<std::string_view> all = known;
  all.insert(all.end(), further.begin(), further.end());
  const std::string_view near = nearest(word, all);
  throw Error(ErrorKind::usage, fmt::format("{} '{}' is not known", what, shown(word)),
              fmt::format("{}known: {}", near.empty() ? "" : fmt::format("did you mean {}? ", near),
                          fmt::join(known, ", ")));
}

/// In lower case, with '-' for '_'.
std::string in_one_form(std::string_view word) {
  std::string text(word);
  for (char& c : text) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    if (c == '_') c = '-';
  }
  return text;
}

/// "ZeRO-2", "zero_2" and "zero2" are one; so are "zero++" and "zeropp".
std::string strategy_letters(std::string_view word) {
  std::string text = in_one_form(word);
  std::erase(text, '-');
  std::ranges::replace(text, '+', 'p');
  return text;
}

const Strategy* known_strategy(std::string_view word) {
  for (const Strategy& one : kStrategies) {
    if (strategy_letters(one.name) == strategy_letters(word)) return &one;
  }
  return nullptr;
}

const Strategy& strategy_of(const std::string& word) {
  if (const Strategy* found = known_strategy(word)) return *found;
  std::vector<std::string_view> names;
  for (const Strategy& one : kStrategies) names.push_back(one.name);
  refuse("strategy", word, names);
}

int count_of(std::string_view what, const std::string& word, int max) {
  const Number<long> read = read_integer(word);
  if (read.value && *read.value >= 1 && *read.value <= max) return static_cast<int>(*read.value);
  throw Error(ErrorKind::usage,
              fmt::format("{}: '{}' is not a whole number from 1 to {}", what, shown(word), max),
              kForms);
}

/// "vit-base" of "vit-base_cifar100_zero2".
std::string model_part(const fs::path& recipe) {
  const std::string stem = recipe.stem().string();
  return stem.substr(0, stem.find('_'));
}

/// Whether `name` goes on behind `word` with a further part, or with a number behind a part of
/// letters alone: "resnet" begins "resnet50" and "qwen" "qwen2.5-3b", but "vi" not "vit-base",
/// "qwen2.5-1" not "qwen2.5-14b" and "bloom-7b" not "bloom-7b1".
bool begins(std::string_view name, std::string_view word) {
  if (word.empty() || !name.starts_with(word)) return false;
  if (name.size() == word.size() || name[word.size()] == '-') return true;
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  const std::string_view last = word.substr(word.rfind('-') + 1);  // npos + 1 is 0
  return digit(name[word.size()]) && std::ranges::none_of(last, digit);
}

fs::path choose(const std::string& word, const std::string& ending,
                const std::vector<fs::path>& recipes) {
  if (word.ends_with(".yaml")) return word;
  const std::vector<fs::path> found = recipes_meant(word, recipes);
  std::set<std::string> models;
  for (const fs::path& recipe : found) models.insert(model_part(recipe));
  if (models.empty()) {
    std::vector<std::string_view> further;
    for (const OtherName& other : kOtherNames) further.push_back(other.name);
    for (const fs::path& recipe : recipes) {
      const std::string model = model_part(recipe);
      models.insert(model);
      if (const ModelFamily* family = family_of(model)) further.push_back(family->name);
    }
    refuse("model", word, {models.begin(), models.end()}, further);
  }
  if (models.size() > 1) {
    throw Error(ErrorKind::usage,
                fmt::format("model '{}' can be {} of the recipes", shown(word),
                            one_of({models.begin(), models.end()})),
                "name one of them");
  }
  using Order = std::tuple<bool, bool, std::ptrdiff_t, std::string>;
  const auto order = [&](const fs::path& recipe) {
    const std::string stem = recipe.stem().string();
    return Order{stem.find("_random") != std::string::npos, !stem.ends_with("_" + ending),
                 std::ranges::count(stem, '_'), stem};
  };
  return std::ranges::min(found, {}, order);
}

/// The length of the run; of one with phases, of the last, so that all together have it.
std::vector<std::string> length_of(const Recipe& recipe, const fs::path& file, int epochs) {
  if (recipe.phases.empty()) return {"run.steps=0", fmt::format("run.epochs={}", epochs)};
  const std::size_t last = recipe.phases.size() - 1;
  int before = 0;
  for (std::size_t i = 0; i < last; ++i) {
    if (recipe.phases[i].epochs == 0) {
      throw Error(ErrorKind::usage,
                  fmt::format("EPOCHS: phase {} of {} is {} steps long", i + 1, file.string(),
                              recipe.phases[i].steps),
                  "launch the recipe itself, with --set phases.N.epochs=... for its lengths");
    }
    before += recipe.phases[i].epochs;
  }
  if (epochs <= before) {
    throw Error(ErrorKind::usage,
                fmt::format("EPOCHS: {}, but the phases before the last of {} have {}", epochs,
                            file.string(), before),
                fmt::format("use {} or more", before + 1));
  }
  return {fmt::format("phases.{}.steps=0", last),
          fmt::format("phases.{}.epochs={}", last, epochs - before)};
}

}  // namespace

bool is_short_form(const std::vector<std::string>& words) {
  if (words.size() < 2 || words[1].ends_with(".yaml")) return false;
  return known_strategy(words[1]) != nullptr || words.size() == 5 || words.size() == 6;
}

ShortForm read_short_form(const std::vector<std::string>& words,
                          const std::vector<fs::path>& recipes) {
  const bool on_nodes = words.size() == 6;
  if (words.size() != 5 && !on_nodes) {
    throw Error(ErrorKind::usage,
                fmt::format("{} words; a job is a recipe, or five or six words", words.size()),
                kForms);
  }
  const Strategy& strategy = strategy_of(words[1]);
  const std::string ending = strategy.codes        ? "zeropp"
                             : strategy.stage == 0 ? "ddp"
                                                   : fmt::format("zero{}", strategy.stage);
  ShortForm form = {.recipe = choose(words[0], ending, recipes), .overrides = {}};
  if (on_nodes) {
    form.nodes = count_of("NODES", words[2], 65536);
    form.per_node = count_of("PER_NODE", words[3], 1024);
    form.ranks = form.nodes * form.per_node;
  } else {
    form.ranks = count_of("RANKS", words[2], 1 << 20);
  }
  const int micro = count_of("BATCH", words[words.size() - 2], 1 << 20);
  const int epochs = count_of("EPOCHS", words.back(), 10'000'000);
  const Recipe recipe = load_recipe(form.recipe).recipe;
  const std::int64_t others = ranks_per_sample(recipe.parallel);
  if (form.ranks % others != 0) {
    throw Error(ErrorKind::usage,
                fmt::format("{} cuts the model over {} ranks, which do not divide {}",
                            form.recipe.string(), others, form.ranks),
                fmt::format("use a multiple of {} ranks", others));
  }
  const std::int64_t global = std::int64_t{micro} * (form.ranks / others);
  form.overrides = {fmt::format("parallel.zero.stage={}", strategy.stage),
                    fmt::format("batch.micro={}", micro), fmt::format("batch.global={}", global)};
  const std::vector<std::string> length = length_of(recipe, form.recipe, epochs);
  form.overrides.insert(form.overrides.end(), length.begin(), length.end());
  if (strategy.codes) {
    // Codes travel between nodes, each with a copy of the parameters; on one node between all
    // ranks.
    form.overrides.insert(
        form.overrides.begin() + 1,
        {fmt::format("parallel.zero.second_shard={}", form.nodes > 1 ? form.per_node : 0),
         "precision.gather=int8", "precision.reduce=int4"});
  }
  return form;
}

std::vector<fs::path> recipes_meant(const std::string& word, const std::vector<fs::path>& recipes) {
  std::string name = in_one_form(word);
  for (const OtherName& other : kOtherNames) {
    if (other.name == name) name = other.meaning;
  }
  const auto those = [&](const auto& fits) {
    std::vector<fs::path> found;
    std::ranges::copy_if(recipes, std::back_inserter(found), fits);
    return found;
  };
  const PublishedModel* published = published_model(word);
  const std::string own = in_one_form(published == nullptr ? name : published->name);
  std::vector<fs::path> found =
      those([&](const fs::path& recipe) { return in_one_form(model_part(recipe)) == own; });
  if (!found.empty()) return found;
  found = those([&](const fs::path& recipe) {
    const ModelFamily* family = family_of(model_part(recipe));
    return family != nullptr && in_one_form(family->name) == name;
  });
  // A family may have models of other names: SmolLM2 is a Llama, but "llama" means those called so.
  std::vector<fs::path> called_so;
  std::ranges::copy_if(found, std::back_inserter(called_so), [&](const fs::path& recipe) {
    return begins(in_one_form(model_part(recipe)), name);
  });
  if (!called_so.empty()) return called_so;
  if (!found.empty()) return found;
  return those(
      [&](const fs::path& recipe) { return begins(in_one_form(recipe.stem().string()), name); });
}

std::vector<fs::path> recipes_below(const fs::path& folder) {
  std::vector<fs::path> recipes;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.path().extension() != ".yaml") continue;
    for (fs::path& path : recipe_paths(entry.path())) recipes.push_back(std::move(path));
  }
  std::ranges::sort(recipes);
  return recipes;
}

}  // namespace dstrain::importing
