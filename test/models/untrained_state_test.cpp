#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>

#include <cstring>
#include <limits>

#include "engine/base/error.h"
#include "engine/models/weights.h"
#include "engine/nn/block_state.h"
#include "test/models/bind.h"
#include "test/models/small_model.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"

// Untrained state of blocks in weight folders.

namespace dstrain {
namespace {

constexpr std::int64_t kLarge = std::numeric_limits<std::int64_t>::max() - 12345;

/// A block of nothing but state.
class Counters final : public Block {
 public:
  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] std::vector<Parameter*> parameters() override { return {}; }
  [[nodiscard]] std::vector<BlockState*> state() override { return {&mean, &count}; }
  [[nodiscard]] Tensors forward(const Tensors& input, const Batch&, const BlockContext&) override {
    return input;
  }
  [[nodiscard]] BlockCost cost(const BatchShape&) override { return {.name = name_, .groups = {}}; }

  BlockState mean{.part = {"norm.running_mean", {3}}, .initial = 0.5};
  BlockState count{.part = {"norm.counts", {2}}, .type = at::kLong};

 private:
  std::string name_ = "counters";
};

Model model_with_state() {
  Model model = make_model(test::small_qwen2_config(), {});
  model.blocks.push_back(std::make_unique<Counters>());
  return model;
}

Counters& counters(Model& model) { return dynamic_cast<Counters&>(*model.blocks.back()); }

/// Writes `model`, whose state has numbers of its own, as `dstrain checkpoint export` does.
void write(const std::filesystem::path& folder, Model& model) {
  test::bind_parameters(model, *make_random_weights(11));
  counters(model).mean.value = at::tensor({1.25F, -3.0F, 1e-3F});
  counters(model).count.value = at::tensor({std::int64_t{-7}, kLarge});
  const auto values = test::part_values(model, &Parameter::value);
  const TensorReader read = [&](const Piece& part) {
    for (const BlockState* state : all_states(model)) {
      if (part.name != state->part.name) continue;
      CHECK(part.shape == stored_part(*state).shape);
      return stored_values(*state);
    }
    return values.at(part.name);
  };
  export_weights(folder, model, read, {.dtype = DType::bf16});
}

std::vector<float> read_state(const WeightSource& source, const BlockState& state) {
  std::vector<float> values(3, -1);
  return source.read_state(state, values) ? values : std::vector<float>();
}

}  // namespace

TEST_CASE("exported state keeps its type and its values", "[models][weights]") {
  const test::TempDir folder;
  Model model = model_with_state();
  write(folder.path(), model);
  const SafetensorsFile file(folder / "model.safetensors");
  const auto same = [&](const BlockState& state, const std::string& dtype) {
    const SafetensorsFile::Entry& entry = file.entries().at(state.part.name);
    const auto bytes = file.bytes(entry);
    CHECK(entry.dtype == dtype);
    CHECK(entry.shape == state.part.shape);
    REQUIRE(bytes.size() == state.value.nbytes());
    CHECK(std::memcmp(bytes.data(), state.value.const_data_ptr(), bytes.size()) == 0);
  };
  same(counters(model).mean, "F32");
  same(counters(model).count, "I64");
  CHECK(file.entries().at("model.norm.weight").dtype == "BF16");
}

TEST_CASE("a folder's statistics are read, its counters are not", "[models][weights]") {
  const test::TempDir folder;
  Model model = model_with_state(), loaded = model_with_state();
  write(folder.path(), model);
  std::vector<std::string> notes;
  const auto source = open_weights(folder.path(), loaded, 0, notes);
  CHECK(notes.empty());
  CHECK(read_state(*source, counters(loaded).mean) == std::vector{1.25F, -3.0F, 1e-3F});
  CHECK(read_state(*source, counters(loaded).count).empty());
  CHECK(read_state(*make_random_weights(0), counters(loaded).mean).empty());
  // Without state the folder is not the model's.
  Model plain = make_model(test::small_qwen2_config(), {});
  test::bind_parameters(plain, *make_random_weights(11));
  const test::TempDir other;
  const auto values = test::part_values(plain, &Parameter::value);
  export_weights(other.path(), plain, test::reader_of(values), {});
  CHECK_THROWS_AS(open_weights(other.path(), loaded, 0, notes), Error);
}

TEST_CASE("integers are exact in checkpoints, which hold fp32", "[models][weights]") {
  BlockState state{.part = {"counts", {2, 4}}, .type = at::kLong};
  constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();
  state.value =
      at::tensor({std::int64_t{0}, std::int64_t{1}, std::int64_t{-1}, std::int64_t{1} << 24 | 1,
                  kLarge, kMin, kMin + 1, std::numeric_limits<std::int64_t>::max()})
          .view({2, 4});
  CHECK(stored_part(state).shape == std::vector<std::int64_t>{2, 4, 3});
  const std::vector<float> stored = stored_values(state);
  CHECK(stored.size() == 24);
  CHECK(from_stored(state, stored).equal(state.value));
  CHECK(state_bytes(state) == 64);
  CHECK_THROWS_AS(from_stored(state, std::span(stored).first(8)), Error);

  BlockState scalar{.part = {"samples", {}}, .type = at::kLong};
  scalar.value = at::full({}, kLarge, at::kLong);
  CHECK(from_stored(scalar, stored_values(scalar)).equal(scalar.value));
}

}  // namespace dstrain
