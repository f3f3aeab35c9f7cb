#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/recipe/image_processor.h"
#include "engine/recipe/load.h"
#include "test/recipe/recipes.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"

namespace dstrain {
namespace {

using Json = nlohmann::json;

const Json kVit = {{"model_type", "vit"}, {"hidden_size", 48},        {"num_hidden_layers", 3},
                   {"image_size", 32},    {"num_attention_heads", 3}, {"intermediate_size", 96},
                   {"patch_size", 8},     {"num_channels", 3}};
const Json kQwen2 = {{"model_type", "qwen2"},    {"hidden_size", 32},
                     {"num_hidden_layers", 2},   {"num_attention_heads", 4},
                     {"num_key_value_heads", 2}, {"intermediate_size", 64},
                     {"vocab_size", 300},        {"max_position_embeddings", 128}};

/// A folder with a config.json, and recipes that name it.
struct Folder {
  explicit Folder(const Json& config) { write("config.json", config); }
  void write(const std::string& name, const Json& json) const {
    std::ofstream(dir / name) << json.dump();
  }
  [[nodiscard]] std::string file(const std::string& name) const { return (dir / name).string(); }
  /// `model` and `data` are further keys, as ", width: 3".
  [[nodiscard]] std::string recipe(const std::string& model, const std::string& data) const {
    return "model: { weights: \"" + dir.path().string() + "\"" + model + " }\ndata: { " + data +
           " }\nbatch: { global: 8, micro: 8 }\noptimizer: { lr: 1 }\nrun: { steps: 1 }\n";
  }
  [[nodiscard]] LoadedRecipe load(const std::string& data, const std::string& model = {}) const {
    return parse_recipe(recipe(model, data), "r.yaml");
  }
  [[nodiscard]] std::string error(const std::string& data, const std::string& model = {}) const {
    try {
      (void)load(data, model);
    } catch (const RecipeError& error) {
      return error.what();
    }
    return "accepted";
  }

  test::TempDir dir;
};

constexpr const char* kImages = "name: images, path: somewhere";
constexpr const char* kTokens = "name: random, sequence: 64";

}  // namespace

TEST_CASE("weights alone say family and sizes, and each says from which file", "[recipe][folder]") {
  const Folder vit(kVit);
  const LoadedRecipe loaded = vit.load(kImages);
  const ModelConfig& model = loaded.recipe.model;
  CHECK(model.name == "vit");
  CHECK(model.image_size == 32);
  CHECK(model.patch_size == 8);
  CHECK(model.width == 48);
  CHECK(model.layers == 3);
  CHECK(model.mlp_width == 96);
  CHECK(test::origin_of(loaded, "model.name") == vit.file("config.json"));
  CHECK(test::origin_of(loaded, "model.width") == vit.file("config.json"));
  CHECK(loaded.warnings.empty());

  const Folder qwen(kQwen2);
  const LoadedRecipe text = qwen.load(kTokens);
  CHECK(text.recipe.model.name == "qwen2");
  CHECK(text.recipe.model.kv_heads == 2);
  CHECK(text.recipe.model.vocab_size == 300);
  CHECK(text.recipe.model.image_size == 0);
}

TEST_CASE("what was taken from a folder reads back without it", "[recipe][folder]") {
  LoadedRecipe loaded;
  {
    Folder vit(kVit);
    vit.write("preprocessor_config.json", {{"size", 32}});
    loaded = vit.load(kImages);
    const LoadedRecipe again = parse_recipe(resolved_yaml(loaded), "resolved.yaml");
    CHECK(again.recipe == loaded.recipe);
    CHECK(again.warnings.empty());
  }
  CHECK(parse_recipe(resolved_yaml(loaded), "resolved.yaml").recipe == loaded.recipe);
}

TEST_CASE("a size that differs from the folder's is an error with both values",
          "[recipe][folder]") {
  const Folder vit(kVit);
  const std::string file = vit.file("config.json");
  CHECK(vit.error(kImages, ", width: 48, layers: 3") == "accepted");
  const std::string text = vit.error(kImages, ", width: 64, image_size: 64");
  CHECK(text.find("error: model.width: 64 in the recipe, but " + file + " has hidden_size 48") !=
        std::string::npos);
  CHECK(text.find("error: model.image_size: 64 in the recipe, but " + file +
                  " has image_size 32; dstrain does not interpolate") != std::string::npos);
  CHECK(vit.error(kTokens, ", name: qwen2.5-3b")
            .find("model.name: qwen2.5-3b is a qwen2, but " + file + " has model_type vit") !=
        std::string::npos);
}

TEST_CASE("without a folder the name says what the model is, or the recipe every size",
          "[recipe][folder]") {
  const test::TempDir empty;
  const std::string rest =
      "data: { name: digits }\nbatch: { global: 8, micro: 8 }\noptimizer: { lr: 1 }\n"
      "run: { steps: 1 }\n";
  const auto error = [&](const std::string& model) -> std::string {
    try {
      (void)parse_recipe("model: { " + model + " }\n" + rest, "r.yaml");
    } catch (const RecipeError& failure) {
      return failure.what();
    }
    return "accepted";
  };
  const std::string folder = empty.path().string();
  CHECK(error("weights: \"" + folder + "\"")
            .starts_with("r.yaml:1:19: error: model.weights: " + folder + " has no config.json"));
  CHECK(error("weights: \"\"").starts_with("r.yaml:1:1: error: model.name: missing"));
  CHECK(error("weights: nowhere, name: vit-tiny") == "accepted");
  const std::string sizes = error("name: vit, width: 48, heads: 3");
  CHECK(sizes.find("model.layers: missing; model.name vit says no sizes") != std::string::npos);
  CHECK(sizes.find("model.width") == std::string::npos);
  CHECK(
      error("name: vit, width: 48, heads: 3, layers: 1, mlp_width: 9, channels: 1, image_size: 8, "
            "patch_size: 4") == "accepted");
}

TEST_CASE("a folder that says what dstrain has not is refused by file and value",
          "[recipe][folder]") {
  Json config = kVit;
  config["model_type"] = "opt";
  CHECK(Folder(config).error(kImages).find("config.json: model_type is 'opt'") !=
        std::string::npos);
  config = kVit;
  config["hidden_size"] = "wide";
  CHECK(Folder(config).error(kImages).find(
            "hidden_size is \"wide\"; it must be a whole number from 1 to 65536") !=
        std::string::npos);
  const Folder broken(kVit);
  std::ofstream(broken.dir / "config.json") << "{ \"model_type\": ";
  CHECK(broken.error(kImages).starts_with("r.yaml:1:19: error: model.weights: " +
                                          broken.file("config.json")));
}

TEST_CASE("samples longer than the model's positions are refused", "[recipe][folder]") {
  const Folder qwen(kQwen2);
  CHECK(qwen.error("name: random, sequence: 128") == "accepted");
  CHECK(qwen.error("name: random, sequence: 129")
            .find("data.sequence: 129 tokens, but " + qwen.file("config.json") +
                  " has max_position_embeddings 128") != std::string::npos);
  // ALiBi has no last position.
  const Folder bloom({{"model_type", "bloom"},
                      {"hidden_size", 32},
                      {"n_layer", 2},
                      {"n_head", 4},
                      {"vocab_size", 300},
                      {"seq_length", 128}});
  CHECK(bloom.load("name: random, sequence: 128").warnings.empty());
  const LoadedRecipe longer = bloom.load("name: random, sequence: 129");
  REQUIRE(longer.warnings.size() == 1);
  CHECK(longer.warnings[0].message.find("129 tokens, but ") == 0);
}

TEST_CASE("the folder's image processor says how images are prepared", "[recipe][folder]") {
  Folder vit(kVit);
  vit.write("preprocessor_config.json", {{"do_normalize", true},
                                         {"do_resize", true},
                                         {"image_mean", {0.5, 0.5, 0.5}},
                                         {"image_std", {0.5, 0.25, 0.5}},
                                         {"resample", 3},
                                         {"size", 32}});
  const LoadedRecipe loaded = vit.load(kImages);
  const DataConfig& data = loaded.recipe.data;
  CHECK(data.resize == Fit::stretch);
  CHECK(data.resize_side == 32);
  CHECK(data.interpolation == Interpolation::bicubic);
  CHECK_FALSE(data.jpeg_scaling);
  CHECK(data.normalize.scale == 1.0 / 255);
  CHECK(data.normalize.mean == std::vector{0.5, 0.5, 0.5});
  CHECK(data.normalize.deviation == std::vector{0.5, 0.25, 0.5});
  CHECK(test::origin_of(loaded, "data.normalize.mean") == vit.file("preprocessor_config.json"));

  // What the recipe says holds.
  const DataConfig own = vit.load(std::string(kImages) +
                                  ", interpolation: bilinear, resize: crop, "
                                  "normalize: { mean: [0], std: [1] }")
                             .recipe.data;
  CHECK(own.interpolation == Interpolation::bilinear);
  CHECK(own.resize_side == 0);
  CHECK(own.normalize.mean == std::vector{0.0});
  CHECK(own.normalize.scale == 1.0 / 255);

  // One inside processor_config.json goes first, as in transformers.
  vit.write("processor_config.json", {{"image_processor",
                                       {{"image_processor_type", "CLIPImageProcessorFast"},
                                        {"size", {{"shortest_edge", 40}}},
                                        {"crop_size", {{"height", 32}, {"width", 32}}},
                                        {"do_normalize", false},
                                        {"do_rescale", false}}}});
  const DataConfig crop = vit.load(kImages).recipe.data;
  CHECK(crop.resize == Fit::crop_floor);
  CHECK(crop.resize_side == 40);
  CHECK(crop.normalize.scale == 1.0);
  CHECK(crop.normalize.mean == std::vector{0.0});
  // Images of a fixed size are not resized on the host.
  CHECK(vit.error("name: cifar10, path: x")
            .find("data.interpolation: bicubic, but images of data.name cifar10") !=
        std::string::npos);
  CHECK(vit.load("name: cifar10, path: x, interpolation: bilinear").recipe.data.resize_side == 0);
}

TEST_CASE("an image processor that dstrain has not is refused by name", "[recipe][folder]") {
  Folder vit(kVit);
  const auto error = [&](const Json& processor) {
    vit.write("preprocessor_config.json", processor);
    return vit.error(kImages);
  };
  CHECK(
      error({{"size", 32}, {"resample", 0}})
          .find("preprocessor_config.json: resample is 0; it must be 1 (lanczos), 2 (bilinear)") !=
      std::string::npos);
  CHECK(error({{"image_processor_type", "SamImageProcessor"}})
            .find("image_processor_type is \"SamImageProcessor\"; it must be ViT-") !=
        std::string::npos);
  CHECK(error({{"size", 48}}).find("makes images of 48 pixels, but the model takes 32") !=
        std::string::npos);
  CHECK(error(Json::object()).find("makes images of 224 pixels") != std::string::npos);
  CHECK(error({{"size", {{"height", 32}, {"width", 48}}}}).find("size is {") != std::string::npos);
  CHECK(error({{"size", {{"shortest_edge", 32}}}}).find("do_center_crop") != std::string::npos);
  CHECK(error({{"size", 32}, {"image_std", {0.5, 0, 0.5}}}).find("image_std is [0.5,0,0.5]") !=
        std::string::npos);
  CHECK(error({{"size", -1}}).find("size is -1") != std::string::npos);
  CHECK(error({{"size", 32}, {"crop_pct", 0.9}}).find("crop_pct") != std::string::npos);
  CHECK(error({{"size", 32}, {"do_resize", false}}).find("do_resize is false") !=
        std::string::npos);
}

TEST_CASE("what an export writes is read back as it was", "[recipe][folder]") {
  const Folder vit(kVit);
  const auto again = [&](const DataConfig& data, int stored) {
    vit.write("preprocessor_config.json", Json::parse(image_processor_json(data, stored, 32, 3)));
    return read_image_processor(vit.dir.path()).value();
  };
  DataConfig data;
  data.resize = Fit::stretch;
  data.interpolation = Interpolation::lanczos;
  data.normalize = {.scale = 0.5, .mean = {0.25}, .deviation = {0.5, 1, 2}};
  const ImageProcessor plain = again(data, 32);
  CHECK(plain.resize == Fit::stretch);
  CHECK(plain.resize_side == 32);
  CHECK(plain.image_size == 32);
  CHECK(plain.interpolation == Interpolation::lanczos);
  CHECK(plain.normalize.scale == 0.5);
  CHECK(plain.normalize.mean == std::vector{0.25, 0.25, 0.25});
  CHECK(plain.normalize.deviation == data.normalize.deviation);
  CHECK(again(data, 48).resize_side == 48);
  CHECK(again(data, 48).image_size == 32);
  data.resize = Fit::crop;
  CHECK(again(data, 40).resize == Fit::crop_floor);
  CHECK(again(data, 40).resize_side == 40);
  CHECK(again(data, 8).resize_side == 32);  // enlarged on the device
}

TEST_CASE("a folder as timm writes it says the name, the image and how it is prepared",
          "[recipe]") {
  const Folder folder({{"architecture", "mobilenetv2_100"},
                       {"num_classes", 7},
                       {"pretrained_cfg",
                        {{"input_size", {3, 160, 160}},
                         {"interpolation", "bicubic"},
                         {"crop_pct", 0.875},
                         {"mean", {0.5, 0.25, 0.125}},
                         {"std", {0.5, 0.5, 0.25}}}}});
  const LoadedRecipe loaded = folder.load(kImages);
  CHECK(loaded.recipe.model.name == "mobilenet-v2");
  CHECK(loaded.recipe.model.image_size == 160);
  CHECK(loaded.recipe.model.channels == 3);
  CHECK(loaded.recipe.data.interpolation == Interpolation::bicubic);
  CHECK(loaded.recipe.data.resize == Fit::crop);
  CHECK(loaded.recipe.data.resize_side == 182);
  CHECK(loaded.recipe.data.normalize.mean == std::vector<double>{0.5, 0.25, 0.125});
  CHECK(loaded.recipe.data.normalize.deviation == std::vector<double>{0.5, 0.5, 0.25});
  const auto with_mode = [](const char* mode) {
    return Folder({{"architecture", "mobilenetv2_100"},
                   {"pretrained_cfg",
                    {{"input_size", {3, 160, 160}},
                     {"crop_mode", mode},
                     {"mean", {0.5}},
                     {"std", {0.5}}}}});
  };
  CHECK(with_mode("squash").load(kImages).recipe.data.resize == Fit::stretch);
  CHECK(with_mode("center").load(kImages).recipe.data.resize == Fit::crop);
  CHECK(with_mode("border").error(kImages).find("crop_mode is \"border\"") != std::string::npos);
  // A convolutional model takes images of any size; the crop goes with it.
  const LoadedRecipe larger = folder.load(kImages, ", image_size: 224");
  CHECK(larger.recipe.model.image_size == 224);
  CHECK(larger.recipe.data.resize_side == 256);
  CHECK(folder.load(kImages, ", name: torchvision/mobilenet_v2").recipe.model.image_size == 160);
  CHECK(folder.error(kImages, ", name: resnet18")
            .find("model.name: resnet18, but " + folder.file("config.json") +
                  " has architecture mobilenetv2_100") != std::string::npos);
  CHECK(Folder(Json::object({{"architecture", "efficientnet_x"}}))
            .error(kImages)
            .find("config.json: architecture is 'efficientnet_x'") != std::string::npos);
}

TEST_CASE("a folder as timm writes it says the constants of batch norms", "[recipe]") {
  const auto folder = [](const char* architecture, const Json& args) {
    return Folder({{"architecture", architecture}, {"model_args", args}});
  };
  const Json torchvisions = {{"bn_eps", 0.001}, {"bn_momentum", 0.01}};
  const LoadedRecipe large = folder("mobilenetv3_large_100", torchvisions).load(kImages);
  CHECK(large.recipe.model.name == "mobilenet-v3-large");
  CHECK(large.recipe.batch_norm == BatchNormConfig{});  // the name says it
  const LoadedRecipe small = folder("mobilenetv3_small_100", Json::object()).load(kImages);
  CHECK(small.recipe.model.name == "timm-mobilenet-v3-small");
  CHECK(small.recipe.batch_norm == BatchNormConfig{});
  // Constants that no name has, and those of the folder under the other name.
  const Folder third = folder("mobilenetv3_large_100", {{"bn_eps", 0.001}});
  const LoadedRecipe mixed = third.load(kImages);
  CHECK(mixed.recipe.model.name == "timm-mobilenet-v3-large");
  CHECK(mixed.recipe.batch_norm.eps == 0.001);
  CHECK(mixed.recipe.batch_norm.momentum == 0);
  CHECK(test::origin_of(mixed, "batch_norm.eps") == third.file("config.json"));
  const LoadedRecipe named = third.load(kImages, ", name: mobilenet-v3-large");
  CHECK(named.recipe.batch_norm.eps == 0);
  CHECK(named.recipe.batch_norm.momentum == 0.1);
  CHECK(folder("mobilenetv3_large_100", {{"bn_eps", "small"}})
            .error(kImages)
            .find("config.json: bn_eps is \"small\"; it must be a number") != std::string::npos);
  CHECK(folder("mobilenetv3_large_100", 3)
            .error(kImages)
            .find("config.json: model_args is 3; it must be an object") != std::string::npos);
}

TEST_CASE("what an export for timm says of its images is read back", "[recipe]") {
  DataConfig data;
  data.normalize = {.scale = 1.0 / 255, .mean = {0.5}, .deviation = {0.25}};
  data.interpolation = Interpolation::bicubic;
  const Folder folder(Json::parse(with_pretrained_cfg(
      R"({"architecture": "resnet18", "pretrained_cfg": {"input_size": [3, 224, 224]}})", data, 256,
      224, 3)));
  const LoadedRecipe loaded = folder.load(kImages);
  CHECK(loaded.recipe.data.resize_side == 256);
  CHECK(loaded.recipe.data.interpolation == Interpolation::bicubic);
  CHECK(loaded.recipe.data.normalize.mean == std::vector<double>{0.5, 0.5, 0.5});
  CHECK(loaded.recipe.data.normalize.deviation == std::vector<double>{0.25, 0.25, 0.25});
  // 94 / (94.0 / 115) is below 115 in double.
  const Folder odd(Json::parse(with_pretrained_cfg(
      R"({"architecture": "resnet18", "pretrained_cfg": {"input_size": [3, 94, 94]}})", data, 115,
      94, 3)));
  CHECK(odd.load(kImages).recipe.data.resize_side == 115);
}

}  // namespace dstrain
