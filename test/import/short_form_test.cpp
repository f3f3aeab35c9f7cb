#include "engine/import/short_form.h"

#include "engine/base/error.h"
#include "engine/recipe/load.h"
#include "test/support/catch.h"

namespace dstrain::importing {
namespace {

std::string mistake(const std::vector<std::string>& words) {
  try {
    (void)read_short_form(words, recipes_below("recipes"));
    return "ok";
  } catch (const Error& error) {
    return std::string(error.what()) + "; " + error.hint();
  }
}

}  // namespace

TEST_CASE("five words are a recipe with strategy, batch and length", "[import]") {
  const ShortForm form =
      read_short_form({"vit-base", "fsdp_stage2", "8", "64", "10"}, recipes_below("recipes"));
  CHECK(form.recipe == "recipes/vit/vit-base_cifar100_zero2.yaml");
  CHECK(form.ranks == 8);
  const Recipe recipe = load_recipe(form.recipe, form.overrides).recipe;
  CHECK(recipe.parallel.zero.stage == 2);
  CHECK(recipe.batch == BatchConfig{512, 64});
  CHECK(recipe.run.epochs == 10);
}

TEST_CASE("six words say nodes and the ranks of each", "[import]") {
  const ShortForm form =
      read_short_form({"vit-huge", "zero++", "2", "4", "8", "3"}, recipes_below("recipes"));
  CHECK(form.recipe == "recipes/vit/vit-huge_food101_zeropp.yaml");
  CHECK(form.ranks == 8);
  CHECK(form.nodes == 2);
  CHECK(form.per_node == 4);
  const Recipe recipe = load_recipe(form.recipe, form.overrides).recipe;
  CHECK(recipe.batch == BatchConfig{64, 8});
  CHECK(recipe.parallel.zero.second_shard == 4);  // a copy of the parameters in each node
  // On one node all ranks send codes to each other.
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"vit-huge", "zeropp", "2", "8", "3"},
        {"vit-huge", "zeropp", "1", "2", "8", "3"}}) {
    const ShortForm one = read_short_form(words, recipes_below("recipes"));
    CHECK(load_recipe(one.recipe, one.overrides).recipe.parallel.zero.second_shard == 0);
  }
}

TEST_CASE("a model's name, other name, family or beginning is the recipe", "[import]") {
  struct Row {
    const char* model;
    const char* strategy;
    const char* recipe;  ///< below recipes/
  };
  constexpr Row kRows[] = {
      {"mobilenet", "fsdp_stage2", "cnn/mobilenet-v2_food101_zero2.yaml"},
      {"mobilenet_v2", "DDP", "cnn/mobilenet-v2_food101_ddp.yaml"},
      {"mobilenet-v3", "ZeRO-2", "cnn/mobilenet-v3-large_food101_zero2.yaml"},
      {"mobilenet_finetuned", "zero1", "cnn/mobilenet-v2_food101_finetune.yaml"},
      {"basic_cnn", "ddp", "cnn/cnn-basic_digits.yaml"},
      {"cnn-basic", "zero1", "cnn/cnn-basic_digits.yaml"},
      {"CNN_LSTM", "zero2", "cnn/cnn-lstm_ucf101_zero2.yaml"},
      {"resnet", "ddp", "cnn/resnet50_food101_ddp.yaml"},
      {"vgg", "zero3", "cnn/vgg16_food101_zero3.yaml"},
      {"vit-base", "ddp", "vit/vit-base_cifar100_ddp.yaml"},
      {"vit-base_food101", "zero2", "vit/vit-base_food101_zero2.yaml"},
      {"google/vit-base-patch16-224", "zero3", "vit/vit-base_cifar100_zero3.yaml"},
      {"vit-huge_random_ddp", "zero3", "vit/vit-huge_random_ddp.yaml"},
      // A whole name is that model, not one whose name goes on.
      {"qwen2.5-3b", "zero3", "qwen/qwen2.5-3b_metamathqa.yaml"},
      {"Qwen/Qwen2.5-3B", "zero2", "qwen/qwen2.5-3b_metamathqa.yaml"},
      {"qwen2.5-3b-moe", "zero1", "qwen/qwen2.5-3b-moe_metamathqa.yaml"},
      {"qwen3", "zero2", "qwen/qwen3-1.7b_metamathqa.yaml"},
      {"llama", "zero2", "llama/llama-3.2-1b_squad.yaml"},
      {"gpt2", "zero2", "gpt2/gpt2_squad.yaml"},
      {"pythia", "zero2", "pythia/pythia-160m_squad.yaml"},
      {"smollm2", "zero2", "smollm/smollm2-135m_squad.yaml"},
      {"mistral", "zero1", "mistral/mistral-7b-v0.3_squad_lora.yaml"},
      {"olmo2", "zero2", "olmo/olmo2-1b_squad.yaml"},
      {"gemma-3", "zero2", "gemma/gemma-3-270m_squad.yaml"},
      {"gemma-2", "zero1", "gemma/gemma-2-2b_squad_lora.yaml"},
      {"phi-4-mini", "zero1", "phi/phi-4-mini_squad_lora.yaml"},
      {"quickstart", "zero3", "quickstart.yaml"},
      {"recipes/cnn/vgg16_random_ddp.yaml", "zero3", "cnn/vgg16_random_ddp.yaml"}};
  const auto recipes = recipes_below("recipes");
  for (const Row& row : kRows) {
    CAPTURE(row.model, row.strategy);
    const std::string epochs = row.model == std::string("mobilenet_finetuned") ? "3" : "1";
    const ShortForm form = read_short_form({row.model, row.strategy, "2", "4", epochs}, recipes);
    CHECK(form.recipe == std::string("recipes/") + row.recipe);
  }
}

TEST_CASE("a word for several models is refused with their names", "[import]") {
  for (const auto& [word, models] : std::initializer_list<std::pair<const char*, const char*>>{
           {"qwen", "qwen2.5-14b, qwen2.5-3b, qwen2.5-3b-moe or qwen3-1.7b"},
           {"qwen2.5", "qwen2.5-14b, qwen2.5-3b or qwen2.5-3b-moe"},
           {"cnn", "cnn-basic or cnn-lstm"},
           {"vit", "vit-base or vit-huge"},
           {"bloom", "bloom-1b7, bloom-3b, bloom-560m or bloom-7b1"}}) {
    for (const char* strategy : {"ddp", "zero1", "zero2"}) {
      CAPTURE(word, strategy);
      CHECK(mistake({word, strategy, "2", "4", "1"}) == std::string("model '") + word +
                                                            "' can be " + models +
                                                            " of the recipes; name one of them");
    }
  }
}

TEST_CASE("epochs of a recipe with phases are those of all phases", "[import]") {
  const std::vector<std::string> words = {"mobilenet_finetuned", "zero1", "2", "4"};
  const auto with = [&](const char* epochs) {
    std::vector<std::string> all = words;
    all.emplace_back(epochs);
    return all;
  };
  const ShortForm form = read_short_form(with("12"), recipes_below("recipes"));
  const Recipe recipe = load_recipe(form.recipe, form.overrides).recipe;
  CHECK(recipe.phases.at(0).epochs == 2);
  CHECK(recipe.phases.at(1).epochs == 10);
  CHECK(mistake(with("2")).find("the phases before the last of") != std::string::npos);
}

TEST_CASE("words and recipes are told apart", "[import]") {
  CHECK(is_short_form({"vit-base", "zero2", "8", "64", "10"}));
  CHECK(is_short_form({"vit-base", "ZeRO-2", "8"}));
  CHECK(is_short_form({"vit-base", "zer2", "8", "64", "10"}));
  CHECK_FALSE(is_short_form({"a.yaml"}));
  CHECK_FALSE(is_short_form({"a.yaml", "b.yaml", "c.yaml", "d.yaml", "e.yaml"}));
}

TEST_CASE("every strategy fits every model whose recipes name it", "[import]") {
  const auto recipes = recipes_below("recipes");
  for (const char* model :
       {"vit-base", "vit-huge", "vit-huge_food101", "quickstart", "mobilenet", "vgg16"}) {
    for (const char* strategy :
         {"ddp", "zero1", "zero2", "zero3", "zeropp", "fsdp", "fsdp_stage3"}) {
      CAPTURE(model, strategy);
      const ShortForm form = read_short_form({model, strategy, "4", "2", "1"}, recipes);
      CHECK(form.recipe.string().find("_random") == std::string::npos);
      CHECK(load_recipe(form.recipe, form.overrides).recipe.batch == BatchConfig{8, 2});
    }
  }
}

TEST_CASE("words that are not known give the known ones, the nearest first", "[import]") {
  CHECK(mistake({"vi", "zero2", "8", "64", "10"}).find("is not known") != std::string::npos);
  for (const auto& [word, meant] :
       std::initializer_list<std::pair<const char*, const char*>>{{"vit-bose", "vit-base"},
                                                                  {"mobilnet", "mobilenet"},
                                                                  {"bloom-7b", "bloom-7b1"},
                                                                  {"resnet18", "resnet50"}}) {
    CAPTURE(word);
    CHECK(mistake({word, "zero2", "8", "64", "10"})
              .find(std::string("did you mean ") + meant + "? known: bloom-1b7") !=
          std::string::npos);
  }
  CHECK(mistake({"vit-base", "fsdp_stag2", "8", "64", "10"})
            .find("did you mean fsdp_stage2? known: ddp") != std::string::npos);
  CHECK(mistake({"vit-base", "zero2", "8", "x", "10"}).find("BATCH: 'x' is not a whole number") !=
        std::string::npos);
  CHECK(mistake({"vit-base", "zero2", "0", "1", "10"}).find("RANKS: '0'") != std::string::npos);
  CHECK(mistake({"vit-base", "zero2"}).find("2 words") != std::string::npos);
}

}  // namespace dstrain::importing
