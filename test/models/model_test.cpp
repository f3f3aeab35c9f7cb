#include "engine/models/model.h"

#include <string>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/models/family.h"
#include "engine/models/vit/config.h"
#include "engine/models/vit/names.h"
#include "test/models/bind.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"

namespace dstrain {
namespace {

std::string error_of(const ModelConfig& config, int data_classes, ErrorKind kind) {
  try {
    (void)make_model(config, {.classes = data_classes});
  } catch (const Error& error) {
    CHECK(error.kind() == kind);
    return error.what();
  }
  return "no error";
}

ModelConfig named(const std::string& name) {
  ModelConfig config;
  config.name = name;
  return config;
}

std::int64_t num_parameters(const std::string& name, int classes) {
  Model model = make_model(named(name), {.classes = classes});
  std::int64_t count = 0;
  for (const auto& block : model.blocks) {
    for (const Parameter* parameter : block->parameters()) count += parameter->numel();
  }
  return count;
}

TEST_CASE("the named models have the parameter counts of the published ones", "[models]") {
  CHECK(num_parameters("google/vit-base-patch16-224", 1000) == 86'567'656);
  CHECK(num_parameters("vit-base", 1000) == 86'567'656);
  CHECK(num_parameters("vit-large-patch16-224", 1000) == 304'326'632);
  CHECK(num_parameters("vit-tiny", 1000) == 5'717'416);
  CHECK(num_parameters("google/vit-huge-patch14-224-in21k", 1000) == 632'045'800);
}

TEST_CASE("recipe sizes override the name's", "[models]") {
  ModelConfig config = named("vit-tiny");
  config.image_size = 8;
  config.patch_size = 2;
  config.channels = 1;
  config.layers = 2;
  config.classes = 12;
  Model model = make_model(config, {.classes = 10});
  CHECK(model.family->name == "vit");
  CHECK(model.blocks.size() == 4);
  CHECK(model.image_size == 8);
  CHECK(model.channels == 1);
  CHECK(model.classes == 12);
  CHECK(test::parameter_named(model, "vit.embeddings.position_embeddings").shape ==
        std::vector<std::int64_t>{1, 17, 192});
  CHECK(model.blocks[2]->name() == "vit.encoder.layer.1");
}

TEST_CASE("sizes that do not fit are all named at once", "[models]") {
  CHECK(error_of(named("vit-bsae"), 10, ErrorKind::usage) ==
        "model.name: 'vit-bsae' is no model that dstrain knows");
  ModelConfig config = named("vit-tiny");
  config.image_size = 30;
  config.heads = 7;
  config.classes = 5;
  CHECK(error_of(config, 10, ErrorKind::usage) ==
        "model.classes: 5 are too few for the 10 classes of the data");
  config.classes = 10;
  CHECK(error_of(config, 10, ErrorKind::usage) ==
        "model.image_size: 30 is not a multiple of model.patch_size (16)\n"
        "model.width: 192 is not a multiple of model.heads (7)");
  config.layers = -1;
  CHECK(error_of(config, 10, ErrorKind::usage) == "model.layers: -1 is not between 1 and 4096");
  CHECK(error_of(named("vit-tiny"), 0, ErrorKind::usage) ==
        "model.classes: 0 is not a number of classes from 1 to 1048576");
}

TEST_CASE("config.json gives the sizes and the recipe must agree", "[models]") {
  const test::TempDir folder;
  const std::string path = (folder / "config.json").string();
  write_file_atomically(
      path, R"({"model_type":"vit","hidden_size":16,"num_hidden_layers":1,"num_attention_heads":2,
    "intermediate_size":32,"image_size":[8,8],"patch_size":4,"num_channels":1,"layer_norm_eps":1e-6,
    "id2label":{"0":"cat","1":"dog","2":"eel"}})");
  ModelConfig config;
  config.weights = folder.path().string();
  const VitConfig vit = vit_config(config, *family_of("vit"), kVit, 0);
  CHECK(vit.width == 16);
  CHECK(kVit.tokens(vit) == 5);
  CHECK(vit.norm_eps == 1e-6);
  CHECK(vit.classes == 3);
  CHECK(vit.labels == std::vector<std::string>{"cat", "dog", "eel"});
  CHECK(vit_config(config, *family_of("vit"), kVit, 2).classes == 2);
  CHECK(vit_config(config, *family_of("vit"), kVit, 2).labels.empty());

  config.width = 16;
  config.image_size = 16;
  config.layers = 2;
  CHECK(error_of(config, 0, ErrorKind::usage) ==
        "model.image_size: 16 in the recipe, but " + path +
            " has image_size 8; dstrain does not interpolate position "
            "embeddings\nmodel.layers: 2 in the recipe, but " +
            path + " has num_hidden_layers 1");
  config = {};
  config.weights = folder.path().string();
  config.name = "vit-tiny";
  CHECK(error_of(config, 0, ErrorKind::usage) ==
        "model.name: vit-tiny means patch_size 16, but " + path +
            " has patch_size 4\n"
            "model.name: vit-tiny means channels 3, but " +
            path +
            " has num_channels 1\n"
            "model.name: vit-tiny means width 192, but " +
            path +
            " has hidden_size 16\n"
            "model.name: vit-tiny means layers 12, but " +
            path +
            " has num_hidden_layers 1\n"
            "model.name: vit-tiny means heads 3, but " +
            path +
            " has num_attention_heads 2\n"
            "model.name: vit-tiny means mlp_width 768, but " +
            path + " has intermediate_size 32");
}

TEST_CASE("a config.json that dstrain cannot honour is refused with every reason", "[models]") {
  const test::TempDir folder;
  const std::string path = (folder / "config.json").string();
  ModelConfig config;
  config.weights = folder.path().string();
  const auto error = [&](const std::string& json) {
    write_file_atomically(path, json);
    return error_of(config, 10, ErrorKind::data);
  };
  CHECK(error("{") == path +
                          ":1:2: not JSON: syntax error while parsing object key - unexpected end "
                          "of input; expected string literal");
  CHECK(error("[1]") == path + ": holds array, not an object");
  CHECK(error(R"({"model_type":"bert"})") == path + ": model_type is 'bert'");
  CHECK(
      error(
          R"({"model_type":"vit","hidden_act":"gelu_new","qkv_bias":false,"hidden_dropout_prob":0.1,
                  "hidden_size":1e30,"image_size":[8,9],"layer_norm_eps":"x"})") ==
      path + ": image_size is [8,9]; it must be a whole number from 1 to 16384\n" + path +
          ": hidden_size is 1e+30; it must be a whole number from 1 to 65536\n" + path +
          ": layer_norm_eps is \"x\"; it must be a number\n" + path +
          ": hidden_act is \"gelu_new\"; it must be \"gelu\", \"gelu_pytorch_tanh\" or "
          "\"quick_gelu\"\n" +
          path + ": qkv_bias is false; it must be true\n" + path +
          ": hidden_dropout_prob is 0.1; it must be 0; dstrain has no dropout for ViT");
}

TEST_CASE("what a vision tower's config.json may not say is refused by its object's name",
          "[models]") {
  const test::TempDir folder;
  const std::string path = (folder / "config.json").string();
  ModelConfig config;
  config.weights = folder.path().string();
  const auto error = [&](const std::string& json, ErrorKind kind = ErrorKind::data) {
    write_file_atomically(path, json);
    return error_of(config, 10, kind);
  };
  CHECK(
      error(R"({"model_type":"clip","vision_config":{"hidden_act":"relu","attention_dropout":0.1,
                  "hidden_size":0}})") ==
      path + ": vision_config: hidden_size is 0; it must be a whole number from 1 to 65536\n" +
          path +
          ": vision_config: hidden_act is \"relu\"; it must be \"gelu\", \"gelu_pytorch_tanh\" or "
          "\"quick_gelu\"\n" +
          path +
          ": vision_config: attention_dropout is 0.1; it must be 0; dstrain has no dropout "
          "for CLIP");
  // transformers goes by vision_config_dict where that is there.
  CHECK(
      error(R"({"model_type":"clip","vision_config":{},"vision_config_dict":{"patch_size":0}})") ==
      path + ": vision_config_dict: patch_size is 0; it must be a whole number from 1 to 1024");
  CHECK(error(R"({"model_type":"siglip","vision_config":3})") ==
        path + ": vision_config is no object");
  CHECK(error(R"({"model_type":"dinov2","mlp_ratio":0,"use_swiglu_ffn":1,"drop_path_rate":0.1})") ==
        path + ": mlp_ratio is 0; it must be a number from 0.01 to 64\n" + path +
            ": use_swiglu_ffn is 1; it must be true or false\n" + path +
            ": drop_path_rate is 0.1; it must be 0; the recipe has model.drop_path");
  CHECK(error(R"({"model_type":"dinov2_with_registers"})") ==
        path + ": model_type is 'dinov2_with_registers'");
  config.image_size = 30;
  CHECK(error(R"({"model_type":"dinov2","image_size":42})", ErrorKind::usage) ==
        "model.image_size: 30 is not a multiple of model.patch_size (14)");
  config.image_size = 28;
  write_file_atomically(path, R"({"model_type":"dinov2","image_size":42,"num_hidden_layers":1})");
  const Model model = make_model(config, {.classes = 10});
  CHECK(model.image_size == 28);
  CHECK(model.tokens == 5);
  CHECK(test::parameter_named(model, "dinov2.embeddings.position_embeddings").shape ==
        std::vector<std::int64_t>{1, 10, 768});
}

TEST_CASE("tensor ranks do not cut gate and up in one matrix", "[models]") {
  ModelConfig config = named("dinov2-giant");
  try {
    (void)make_model(config, {.classes = 10, .splits = {.tensor = {.index = 0, .count = 2}}});
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(std::string(error.what()) ==
          "parallel.tensor: 2, but files of this DINOv2 have gate and up of an MLP in one tensor, "
          "which dstrain does not cut");
  }
}

std::int64_t num_elements_of(const std::string& name) {
  const Model model = make_model(named(name), {.classes = 1000});
  std::int64_t elements = 0;
  for (const Parameter* parameter : all_parameters(model)) elements += parameter->numel();
  return elements;
}

TEST_CASE("the named Vision Transformers have the parameters of the published ones", "[models]") {
  // transformers' classes of 1000 labels without what no classifier reads: DINOv2's mask token,
  // CLIP's norm behind the layers, SigLIP's pooling head.
  CHECK(num_elements_of("deit-tiny") == 5'717'800);
  CHECK(num_elements_of("deit-small") == 22'051'432);
  CHECK(num_elements_of("facebook/deit-base-distilled-patch16-224") == 86'569'192);
  CHECK(num_elements_of("dinov2-small") == 22'825'192);
  CHECK(num_elements_of("facebook/dinov2-base") == 88'116'712);
  CHECK(num_elements_of("dinov2-large") == 306'416'616);
  CHECK(num_elements_of("dinov2-giant") == 1'139'552'232);
  CHECK(num_elements_of("clip-vit-base-patch32") == 88'223'464);
  CHECK(num_elements_of("openai/clip-vit-base-patch16") == 86'566'888);
  CHECK(num_elements_of("clip-vit-large-patch14") == 304'202'728);
  CHECK(num_elements_of("clip-vit-large-patch14-336") == 304'530'408);
  CHECK(num_elements_of("siglip-base-patch16-224") == 86'566'120);
  CHECK(num_elements_of("siglip-large-patch16-256") == 304'386'024);
  CHECK(num_elements_of("google/siglip2-so400m-patch14-384") == 414'140'248);
  CHECK(num_elements_of("siglip2-giant-opt-patch16-256") == 1'136'375'272);
}

TEST_CASE("files of both transformers generations and without prefix are known", "[models]") {
  CHECK(vit_file_names("vit.encoder.layer.11.attention.output.dense.weight") ==
        std::vector<std::string>{"vit.encoder.layer.11.attention.output.dense.weight",
                                 "vit.layers.11.attention.o_proj.weight",
                                 "layers.11.attention.o_proj.weight",
                                 "encoder.layer.11.attention.output.dense.weight"});
  CHECK(vit_file_names("vit.encoder.layer.0.output.dense.bias")[1] == "vit.layers.0.mlp.fc2.bias");
  CHECK(vit_file_names("vit.encoder.layer.0.layernorm_after.bias")[1] ==
        "vit.layers.0.layernorm_after.bias");
  CHECK(vit_file_names("vit.layernorm.bias") ==
        std::vector<std::string>{"vit.layernorm.bias", "layernorm.bias"});
  CHECK(vit_file_names("classifier.weight") == std::vector<std::string>{"classifier.weight"});
}

}  // namespace
}  // namespace dstrain
