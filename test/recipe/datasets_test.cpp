#include "engine/recipe/datasets.h"

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "test/support/catch.h"

namespace dstrain {
namespace {

/// Why the keys of `data` have no effect, by key.
std::set<std::string> without_effect(DatasetName name, Modality modality) {
  Recipe recipe;
  recipe.model.name = modality == Modality::images ? "vit-tiny" : "bloom-560m";
  recipe.data.name = name;
  std::set<std::string> lines;
  for (const Inactive& field : inactive_data_keys(recipe, modality))
    lines.insert(field.path + ": " + field.reason);
  return lines;
}

}  // namespace

TEST_CASE("a key of data has an effect where the data set's row lists it", "[recipe]") {
  using enum Modality;
  const auto keys_of = [](Modality modality) {
    return modality == images
               ? std::vector<std::string_view>{"data.augment", "data.resize", "data.interpolation"}
               : std::vector<std::string_view>{"data.sequence", "data.tokenizer", "data.prompt"};
  };
  for (const DatasetRow& row : datasets()) {
    for (const Modality modality : {images, text}) {
      if (!fits(row, modality)) continue;
      CAPTURE(row.spelling, modality == images);
      Recipe recipe;
      recipe.data.name = row.name;
      std::set<std::string, std::less<>> inactive;
      for (const Inactive& field : inactive_data_keys(recipe, modality))
        CHECK(inactive.insert(field.path).second);  // one reason each
      std::vector<std::string_view> keys = keys_of(modality);
      keys.insert(keys.end(), {"data.path", "data.samples"});
      for (const std::string_view key : keys) CHECK(inactive.contains(key) != reads(row, key));
      for (const std::string_view key : keys_of(modality == images ? text : images))
        CHECK(inactive.contains(key));
      CHECK((!row.needs_path || reads(row, "data.path")));
    }
  }
}

TEST_CASE("the reasons name the data set and what it lacks", "[recipe]") {
  const auto digits = without_effect(DatasetName::digits, Modality::images);
  CHECK(digits.contains("data.samples: only data.name random has it, here it is digits"));
  CHECK(digits.contains("data.resize_side: images of data.name digits have one size"));
  CHECK(digits.contains("data.prompt: model.name vit-tiny takes images"));
  CHECK(digits.contains("data.label: data.name digits has no choice of labels"));
  const auto drawn = without_effect(DatasetName::random, Modality::images);
  CHECK(drawn.contains("data.path: data.name random reads no files"));
  CHECK(drawn.contains("data.subset: of data.name random data.samples says how many"));
  CHECK(drawn.contains("data.interpolation: data.name random makes images of the model's size"));
  const auto tokens = without_effect(DatasetName::random, Modality::text);
  CHECK(tokens.contains("data.cache: data.name random has no text or image files"));
  CHECK(tokens.contains("data.response: only data.name jsonl has it, here it is random"));
  CHECK(tokens.contains("data.crop_padding: model.name bloom-560m takes text"));
}

TEST_CASE("a data set that does not fit the model is one error, which names those that fit",
          "[recipe]") {
  CHECK(datasets_of(Modality::text) == "squad, metamathqa, jsonl, chat, random, mixture or tokens");
  CHECK(datasets_of(Modality::images) ==
        "digits, cifar10, cifar100, images, food101, frames, random, mixture or webdataset");
  // The rest is said of data that fit.
  for (const std::string& line : without_effect(DatasetName::squad, Modality::images))
    CHECK((line.starts_with("data.samples") || line.ends_with("takes images") ||
           line.ends_with("is no mixture")));
}

}  // namespace dstrain
