#include <algorithm>
#include <filesystem>
#include <limits>
#include <numeric>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/models/vit/names.h"
#include "engine/models/weights.h"
#include "test/models/bind.h"
#include "test/models/small_model.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"
#include "test/support/torch_file.h"

namespace dstrain {
namespace {

using test::small_model;

/// The tensors of a file, to change before they are written.
struct Content {
  std::map<std::string, std::pair<std::vector<std::int64_t>, std::vector<float>>> tensors;

  /// Every tensor of the small model, each filled with its own numbers.
  static Content of(Model& model) {
    Content content;
    float next = 0;
    for (const auto& block : model.blocks) {
      for (const Parameter* parameter : block->parameters()) {
        for (const Piece& part : parameter->parts) content.add(part.name, part.shape, next++);
      }
    }
    return content;
  }
  void add(const std::string& name, const std::vector<std::int64_t>& shape, float first) {
    std::int64_t size = 1;
    for (const std::int64_t dim : shape) size *= dim;
    std::vector<float> values(static_cast<std::size_t>(size));
    std::iota(values.begin(), values.end(), first * 1000);
    tensors[name] = {shape, std::move(values)};
  }
  void rename(const std::string& from, const std::string& to) {
    auto node = tensors.extract(from);
    node.key() = to;
    tensors.insert(std::move(node));
  }
  void write(const std::filesystem::path& path) const {
    std::vector<SafetensorsTensor> list;
    for (const auto& [name, tensor] : tensors) {
      list.push_back(
          {.name = name, .shape = tensor.first, .dtype = DType::f32, .values = tensor.second});
    }
    write_safetensors(path, list, {});
  }
};

std::string error_of(const std::filesystem::path& folder, Model& model) {
  std::vector<std::string> notes;
  try {
    (void)open_weights(folder, model, 1, notes);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::data);
    return error.what();
  }
  return "no error";
}

std::vector<float> read_all(const WeightSource& source, const Parameter& parameter) {
  std::vector<float> values(static_cast<std::size_t>(parameter.numel()));
  source.read(parameter, {0, parameter.numel()}, values);
  return values;
}

/// query, key and value of the first layer, stacked.
Parameter& first_qkv(Model& model) {
  return test::parameter_named(model, "vit.encoder.layer.0.attention.attention.query.weight");
}

TEST_CASE("weights of a folder are read under their names, any range of them",
          "[models][weights]") {
  const test::TempDir folder;
  Model model = small_model(3);
  const Content content = Content::of(model);
  content.write(folder / "model.safetensors");
  std::vector<std::string> notes;
  const auto source = open_weights(folder.path(), model, 1, notes);
  CHECK(notes.empty());

  const Parameter& qkv = first_qkv(model);
  REQUIRE(qkv.parts.size() == 3);
  std::vector<float> expected;
  for (const Piece& part : qkv.parts) {
    const auto& values = content.tensors.at(part.name).second;
    expected.insert(expected.end(), values.begin(), values.end());
  }
  CHECK(read_all(*source, qkv) == expected);
  std::vector<float> piece(300);
  source->read(qkv, {250, 550}, piece);
  CHECK(std::equal(piece.begin(), piece.end(), expected.begin() + 250));
}

TEST_CASE("a box of a tensor is read from a file that holds it whole", "[models][weights]") {
  const test::TempDir folder;
  Model model = small_model(3);
  const Content content = Content::of(model);
  content.write(folder / "model.safetensors");
  Parameter& qkv = first_qkv(model);
  const std::vector<Piece> whole = qkv.parts;
  const Range columns = GENERATE(Range{0, 16}, Range{3, 9});
  std::vector<Piece> parts;
  std::vector<float> expected;
  for (const Piece& part : whole) {
    parts.emplace_back(part.name, part.shape, Range{5, 11}, columns);
    const auto& values = content.tensors.at(part.name).second;
    for (std::int64_t row = 5; row < 11; ++row) {
      expected.insert(expected.end(), values.begin() + 16 * row + columns.begin,
                      values.begin() + 16 * row + columns.end);
    }
  }
  qkv.hold(std::move(parts));
  std::vector<std::string> notes;
  const auto source = open_weights(folder.path(), model, 1, notes);
  CHECK(read_all(*source, qkv) == expected);
}

TEST_CASE("weights in shards are found through the index", "[models][weights]") {
  const test::TempDir folder;
  Model model = small_model(3);
  Content rest = Content::of(model);
  const auto whole = rest.tensors;
  Content first;
  first.tensors.insert(rest.tensors.extract("vit.layernorm.weight"));
  first.write(folder / "model-00001-of-00002.safetensors");
  rest.write(folder / "model-00002-of-00002.safetensors");
  std::string map;
  for (const auto& [name, tensor] : whole) {
    map += (map.empty() ? "" : ",") + ("\"" + name + "\":\"model-0000") +
           (name == "vit.layernorm.weight" ? "1" : "2") + "-of-00002.safetensors\"";
  }
  write_file_atomically(folder / "model.safetensors.index.json", R"({"weight_map":{)" + map + "}}");
  std::vector<std::string> notes;
  const auto source = open_weights(folder.path(), model, 1, notes);
  CHECK(read_all(*source, test::parameter_named(model, "vit.layernorm.weight")) ==
        whole.at("vit.layernorm.weight").second);
  CHECK(read_all(*source, test::parameter_named(model, "vit.layernorm.bias")) ==
        whole.at("vit.layernorm.bias").second);
}

TEST_CASE("weights that are not finite are named by file and tensor", "[models][weights]") {
  const test::TempDir folder;
  Model model = small_model(3);
  Content content = Content::of(model);
  const std::string name = "vit.encoder.layer.0.attention.attention.key.weight";
  content.tensors.at(name).second[2] = std::numeric_limits<float>::quiet_NaN();
  content.write(folder / "model.safetensors");
  std::vector<std::string> notes;
  const auto source = open_weights(folder.path(), model, 1, notes);
  CHECK_THROWS_WITH(
      read_all(*source, first_qkv(model)),
      (folder / "model.safetensors").string() + ": tensor '" + name + "' holds nan at element 2");
}

TEST_CASE("a broken index is refused", "[models][weights]") {
  const test::TempDir folder;
  Model model = small_model(3);
  const std::string index = (folder / "model.safetensors.index.json").string();
  Content one;
  one.add("a", {1}, 0);
  one.write(folder / "one.safetensors");
  write_file_atomically(index, R"({"metadata":{}})");
  CHECK(error_of(folder.path(), model) == index + ": no weight_map");
  write_file_atomically(index, R"({"weight_map":{"a":"../one.safetensors"}})");
  CHECK(error_of(folder.path(), model) ==
        index + ": tensor 'a' is in \"../one.safetensors\", which is no file name of this folder");
  write_file_atomically(index, R"({"weight_map":{"a":"one.safetensors","b":"one.safetensors"}})");
  CHECK(error_of(folder.path(), model) == index + ": tensor 'b' is not in one.safetensors");
  write_file_atomically(index, R"({"weight_map":{"a":"two.safetensors"}})");
  CHECK(error_of(folder.path(), model) ==
        "cannot read " + (folder / "two.safetensors").string() + ": No such file or directory");
}

TEST_CASE("missing and misshapen tensors are listed together", "[models][weights]") {
  const test::TempDir folder;
  Model model = small_model(3);
  CHECK(error_of(folder.path(), model) ==
        folder.path().string() +
            ": neither model.safetensors nor model.safetensors.index.json is there, nor "
            "pytorch_model.bin");
  Content content = Content::of(model);
  content.tensors.erase("vit.embeddings.cls_token");
  content.tensors.erase("vit.encoder.layer.1.attention.attention.key.bias");
  content.add("vit.layernorm.weight", {17}, 0);
  content.write(folder / "model.safetensors");
  const std::string file = (folder / "model.safetensors").string();
  CHECK(error_of(folder.path(), model) ==
        folder.path().string() +
            ": no tensor 'vit.embeddings.cls_token' [1, 1, 16], and 1 more are missing\n" + file +
            ": tensor 'vit.layernorm.weight' is [17], the model needs [16]");
}

TEST_CASE("another class count gives a new head and a note", "[models][weights]") {
  const test::TempDir folder;
  Model wide = small_model(7);
  Content::of(wide).write(folder / "model.safetensors");
  Model model = small_model(3);
  std::vector<std::string> notes;
  const auto source = open_weights(folder.path(), model, 5, notes);
  REQUIRE(notes.size() == 1);
  CHECK(notes[0] == folder.path().string() +
                        " has a classifier for 7 classes, the model 3; a new head "
                        "(classifier.weight, classifier.bias) is drawn at random");
  const Parameter& weight = test::parameter_named(model, "classifier.weight");
  CHECK(read_all(*source, weight) == read_all(*make_random_weights(5), weight));
}

TEST_CASE("a model without head but with a pooler loads with notes", "[models][weights]") {
  const test::TempDir folder;
  Model model = small_model(3);
  Content content = Content::of(model);
  const auto whole = content.tensors;
  for (const auto& [name, tensor] : whole) {
    if (name.starts_with("vit.")) content.rename(name, name.substr(4));
  }
  content.tensors.erase("classifier.weight");
  content.tensors.erase("classifier.bias");
  content.add("pooler.dense.bias", {16}, 0);
  content.add("pooler.dense.weight", {16, 16}, 0);
  content.write(folder / "model.safetensors");
  std::vector<std::string> notes;
  const auto source = open_weights(folder.path(), model, 5, notes);
  CHECK(notes == std::vector<std::string>{
                     folder.path().string() +
                         " has no classifier; a new head for 3 classes is drawn at random",
                     folder.path().string() +
                         ": not used by this model: pooler.dense.bias, pooler.dense.weight"});
  CHECK(read_all(*source, test::parameter_named(model, "vit.layernorm.weight")) ==
        whole.at("vit.layernorm.weight").second);

  // The same file under a config.json that promises a classifier is broken.
  write_file_atomically(folder / "config.json",
                        R"({"architectures":["ViTForImageClassification"]})");
  CHECK(error_of(folder.path(), model) ==
        folder.path().string() + ": no tensor 'classifier.weight' [3, 16], and 1 more are missing");
}

TEST_CASE("published BLOOM files load without prefix and with a second head", "[models][weights]") {
  const test::TempDir folder;
  Model model = make_model(test::small_bloom_config(), {});
  Content content = Content::of(model);
  const auto whole = content.tensors;
  for (const auto& [name, tensor] : whole)
    content.rename(name, name.substr(std::string("transformer.").size()));
  content.tensors["lm_head.weight"] = content.tensors.at("word_embeddings.weight");
  content.write(folder / "model.safetensors");
  std::vector<std::string> notes;
  const auto source = open_weights(folder.path(), model, 5, notes);
  CHECK(notes.empty());
  const std::string name = "transformer.h.1.self_attention.query_key_value.bias";
  CHECK(read_all(*source, test::parameter_named(model, name)) == whole.at(name).second);
}

TEST_CASE("files for another vocabulary are refused, naming both", "[models][weights]") {
  const test::TempDir folder;
  Model model = make_model(test::small_qwen2_config(), {});
  Content content = Content::of(model);
  content.add("model.embed_tokens.weight", {60, 16}, 0);
  content.write(folder / "model.safetensors");
  CHECK(error_of(folder.path(), model) ==
        (folder / "model.safetensors").string() +
            ": tensor 'model.embed_tokens.weight' is for a vocabulary of 60 tokens, the model has "
            "50");
}

TEST_CASE("a file under another name is named, with what would do", "[models][weights]") {
  const test::TempDir folder;
  Model model = small_model(3);
  const auto hint = [&](const std::filesystem::path& path) {
    std::vector<std::string> notes;
    try {
      (void)open_weights(path, model, 1, notes);
    } catch (const Error& error) {
      return error.hint();
    }
    return std::string("no error");
  };
  CHECK(hint(folder.path()).find("save_pretrained") != std::string::npos);
  write_file_atomically(folder / "mobilenet_v2-7ebf99e0.pth", "");
  CHECK(hint(folder.path()) ==
        "rename mobilenet_v2-7ebf99e0.pth there: files of torch.save are read "
        "under the name pytorch_model.bin");
  CHECK(
      hint(folder / "mobilenet_v2-7ebf99e0.pth").find("move mobilenet_v2-7ebf99e0.pth into one") !=
      std::string::npos);
}

TEST_CASE("weights of another multiplier of the widths are named by file and tensor",
          "[models][weights]") {
  const test::TempDir folder;
  ModelConfig config;
  config.name = "mobilenet-v2";
  Model model = make_model(config, {});
  Content content;
  for (const Parameter* parameter : all_parameters(model)) {
    for (const Piece& part : parameter->parts) {
      std::vector<std::int64_t> shape = part.shape;
      if (shape.size() > 1) shape[0] = std::max<std::int64_t>(1, shape[0] / 2);
      content.add(part.name, shape, 0);
    }
  }
  content.write(folder / "model.safetensors");
  std::vector<std::string> notes;
  try {
    (void)open_weights(folder.path(), model, 1, notes);
    FAIL("weights of half the width load");
  } catch (const Error& error) {
    CHECK(std::string(error.what())
              .find((folder / "model.safetensors").string() +
                    ": tensor 'features.0.0.weight' is [16, 3, 3, 3], the "
                    "model needs [32, 3, 3, 3], and ") != std::string::npos);
    CHECK(error.hint().find("another multiplier of its widths") != std::string::npos);
  }
}

TEST_CASE("weights of torch.save load as those of safetensors", "[models][weights]") {
  const test::TempDir folder;
  Model model = small_model(3);
  std::string dict = "}(";
  std::vector<test::ZipRecord> records(1);
  for (const Parameter* parameter : all_parameters(model)) {
    for (const Piece& part : parameter->parts) {
      const std::string key = std::to_string(records.size());
      std::vector<std::int64_t> strides(part.shape.size(), 1);
      for (std::size_t d = strides.size(); d-- > 1;) strides[d - 1] = strides[d] * part.shape[d];
      dict += test::pickled(part.name) +
              test::pickled_tensor(key, part.shape, strides, 0, part.numel());
      const std::vector<float> values(static_cast<std::size_t>(part.numel()), 0.5F);
      std::string bytes(4 * values.size(), '\0');
      std::memcpy(bytes.data(), values.data(), bytes.size());
      records.push_back({.name = "pytorch_model/data/" + key, .data = std::move(bytes)});
    }
  }
  records[0] = {.name = "pytorch_model/data.pkl", .data = test::program_of(dict + "u")};
  write_file_atomically(folder / "pytorch_model.bin", test::zip_of(records));
  std::vector<std::string> notes;
  const auto source = open_weights(folder.path(), model, 1, notes);
  CHECK(notes.empty());
  for (const Parameter* parameter : all_parameters(model)) {
    std::vector<float> values(static_cast<std::size_t>(parameter->parts[0].numel()));
    source->read_whole(*parameter, parameter->parts[0], 0, values);
    CHECK(std::ranges::count(values, 0.5F) == std::ssize(values));
  }
}

TEST_CASE("names of transformers 5 in memory load as well", "[models][weights]") {
  const test::TempDir folder;
  Model model = small_model(3);
  Content content = Content::of(model);
  const auto whole = content.tensors;
  for (const auto& [name, tensor] : whole) {
    const auto names = vit_file_names(name);
    if (names.size() == 4) content.rename(name, names[1]);
  }
  content.write(folder / "model.safetensors");
  std::vector<std::string> notes;
  const auto source = open_weights(folder.path(), model, 5, notes);
  CHECK(notes.empty());
  CHECK(read_all(*source, test::parameter_named(
                              model, "vit.encoder.layer.0.attention.output.dense.weight")) ==
        whole.at("vit.encoder.layer.0.attention.output.dense.weight").second);
}

}  // namespace
}  // namespace dstrain
