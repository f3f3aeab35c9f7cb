#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/models/weights.h"
#include "test/models/bind.h"
#include "test/models/small_model.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"

namespace dstrain {
namespace {

TEST_CASE("exported weights load again, element for element", "[models][weights]") {
  const test::TempDir folder;
  Model model = test::small_model(3);
  test::bind_parameters(model, *make_random_weights(11));
  const auto values = test::part_values(model, &Parameter::value);
  export_weights(folder / "out", model, values, DType::f32);

  ModelConfig config;
  config.weights = (folder / "out").string();
  Model loaded = make_model(config, 0);
  CHECK(loaded.classes == 3);
  CHECK(loaded.config_json == model.config_json);
  std::vector<std::string> notes;
  test::bind_parameters(loaded, *open_weights(folder / "out", loaded, 0, notes));
  CHECK(notes.empty());
  CHECK(test::part_values(loaded, &Parameter::value) == values);
}

TEST_CASE("an export says its dtype and refuses a tensor too few", "[models][weights]") {
  const test::TempDir folder;
  Model model = test::small_model(3);
  test::bind_parameters(model, *make_random_weights(11));
  auto values = test::part_values(model, &Parameter::value);
  export_weights(folder.path(), model, values, DType::bf16);
  CHECK(read_file(folder / "config.json").find(R"("dtype": "bfloat16")") != std::string::npos);
  CHECK(SafetensorsFile(folder / "model.safetensors").entries().at("classifier.weight").dtype ==
        "BF16");
  values.erase("vit.layernorm.bias");
  CHECK_THROWS_WITH(export_weights(folder.path(), model, values, DType::f32),
                    Catch::Contains("export lacks tensor 'vit.layernorm.bias'"));
}

}  // namespace
}  // namespace dstrain
