#include "recipes/import/short_form.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "engine/base/error.h"
#include "recipes/schema/load.h"
#include "recipes/schema/text.h"

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

[[noreturn]] void refuse(std::string_view what, const std::string& word,
                         std::vector<std::string_view> known) {
  const std::string_view near = nearest(word, known);
  throw Error(ErrorKind::usage, fmt::format("{} '{}' is not known", what, shown(word)),
              fmt::format("{}known: {}", near.empty() ? "" : fmt::format("did you mean {}? ", near),
                          fmt::join(known, ", ")));
}

const Strategy& strategy_of(const std::string& word) {
  std::vector<std::string_view> names;
  for (const Strategy& one : kStrategies) {
    if (one.name == word) return one;
    names.push_back(one.name);
  }
  refuse("strategy", word, names);
}

int count_of(std::string_view what, const std::string& word, int max) {
  const Number<long> read = read_integer(word);
  if (read.value && *read.value >= 1 && *read.value <= max) return static_cast<int>(*read.value);
  throw Error(
      ErrorKind::usage,
      fmt::format("{}: '{}' is not a whole number from 1 to {}", what, shown(word), max),
      "the short form is MODEL STRATEGY RANKS BATCH EPOCHS: dstrain launch vit-base zero2 8 64 10");
}

/// "vit-base" of "vit-base_cifar100_zero2".
std::string model_part(const fs::path& recipe) {
  const std::string stem = recipe.stem().string();
  return stem.substr(0, stem.find('_'));
}

/// "resnet" begins "resnet18_food101_ddp" and "mobilenet" "mobilenet-v2_...", but "vi" not
/// "vit-base".
bool begins_with(const std::string& stem, const std::string& word) {
  if (!stem.starts_with(word) || word.empty()) return false;
  const char next = stem.size() == word.size() ? '_' : stem[word.size()];
  return !(next >= 'a' && next <= 'z');
}

fs::path choose(const std::string& word, const std::string& ending,
                const std::vector<fs::path>& recipes) {
  using Order = std::tuple<bool, bool, bool, std::ptrdiff_t, std::string>;
  std::vector<std::pair<Order, fs::path>> found;
  for (const fs::path& recipe : recipes) {
    const std::string stem = recipe.stem().string();
    if (!begins_with(stem, word)) continue;
    found.push_back({{model_part(recipe) != word, stem.find("_random") != std::string::npos,
                      !stem.ends_with("_" + ending), std::ranges::count(stem, '_'), stem},
                     recipe});
  }
  if (!found.empty()) return std::ranges::min(found, {}, &std::pair<Order, fs::path>::first).second;
  std::set<std::string> models;
  for (const fs::path& recipe : recipes) models.insert(model_part(recipe));
  refuse("model", word, {models.begin(), models.end()});
}

}  // namespace

ShortForm read_short_form(const std::vector<std::string>& words,
                          const std::vector<fs::path>& recipes) {
  if (words.size() != 5) {
    throw Error(ErrorKind::usage,
                fmt::format("{} words; a launch takes a recipe, or five words", words.size()),
                "MODEL STRATEGY RANKS BATCH EPOCHS: dstrain launch vit-base zero2 8 64 10");
  }
  const Strategy& strategy = strategy_of(words[1]);
  const std::string ending = strategy.codes        ? "zeropp"
                             : strategy.stage == 0 ? "ddp"
                                                   : fmt::format("zero{}", strategy.stage);
  ShortForm form = {.recipe = choose(words[0], ending, recipes),
                    .overrides = {},
                    .ranks = count_of("RANKS", words[2], 1 << 20)};
  const int micro = count_of("BATCH", words[3], 1 << 20);
  const int epochs = count_of("EPOCHS", words[4], 10'000'000);
  const ParallelConfig parallel = load_recipe(form.recipe).recipe.parallel;
  const int others = parallel.tensor * parallel.sequence * parallel.pipeline;
  if (form.ranks % others != 0) {
    throw Error(ErrorKind::usage,
                fmt::format("{} cuts the model over {} ranks, which do not divide {}",
                            form.recipe.string(), others, form.ranks),
                fmt::format("use a multiple of {} ranks", others));
  }
  const std::int64_t global = std::int64_t{micro} * (form.ranks / others);
  form.overrides = {fmt::format("parallel.zero.stage={}", strategy.stage),
                    fmt::format("batch.micro={}", micro), fmt::format("batch.global={}", global),
                    "run.steps=0", fmt::format("run.epochs={}", epochs)};
  if (strategy.codes)
    form.overrides.insert(form.overrides.begin() + 1,
                          {"precision.gather=int8", "precision.reduce=int4"});
  return form;
}

std::vector<fs::path> recipes_below(const fs::path& folder) {
  std::vector<fs::path> recipes;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.path().extension() == ".yaml") recipes.push_back(entry.path());
  }
  std::ranges::sort(recipes);
  return recipes;
}

}  // namespace dstrain::importing
