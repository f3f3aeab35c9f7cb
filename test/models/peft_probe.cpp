#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/base/error.h"
#include "engine/base/json.h"
#include "engine/kernels/optimizer/optimizer.h"
#include "engine/models/language_head.h"
#include "engine/models/peft.h"
#include "engine/models/trainable.h"
#include "engine/models/vit/model.h"
#include "engine/nn/block_state.h"
#include "test/models/bind.h"
#include "test/models/run_blocks.h"
#include "test/models/serve.h"

/// peft_probe FOLDER: fine-tunes the model in FOLDER/base with the adapter in FOLDER/start by AdamW
/// in fp32, one step on each batch of FOLDER/input.safetensors. FOLDER/options.json has rank,
/// alpha, targets, also_train, lr, weight_decay; the batches are images [N, B, C, H, W] and labels
/// [N, B], or tokens [N, B, T], labels and weights [N, B * T], all as fp32. Writes losses, and
/// logits of the first batch before and after, to FOLDER/output.safetensors, the adapter to
/// FOLDER/adapter, and base and adapter merged to FOLDER/merged.
namespace dstrain {
namespace {

namespace fs = std::filesystem;

Recipe recipe_of(const fs::path& folder) {
  const nlohmann::json options = read_json_object(folder / "options.json");
  Recipe recipe;
  recipe.model.weights = (folder / "base").string();
  recipe.lora = {.rank = options.at("rank").get<int>(),
                 .alpha = options.at("alpha").get<double>(),
                 .targets = options.at("targets").get<std::vector<std::string>>(),
                 .also_train = options.at("also_train").get<std::vector<std::string>>(),
                 .weights = (folder / "start").string()};
  recipe.optimizer.lr = options.at("lr").get<double>();
  recipe.optimizer.weight_decay = options.at("weight_decay").get<double>();
  return recipe;
}

class Batches {
 public:
  explicit Batches(const fs::path& path) : file_(path) {}

  [[nodiscard]] bool are_text() const { return file_.entries().contains("tokens"); }
  [[nodiscard]] std::int64_t size() const { return first("labels")[0]; }
  [[nodiscard]] int sequence() const {
    return are_text() ? static_cast<int>(first("tokens")[2]) : 0;
  }
  [[nodiscard]] Batch at(std::int64_t index) const {
    if (are_text()) {
      return {.tokens = read("tokens", index).to(at::kLong),
              .labels = read("labels", index).to(at::kLong),
              .weights = read("weights", index)};
    }
    const at::Tensor labels = read("labels", index).to(at::kLong);
    return {.images = read("images", index), .labels = labels, .weights = at::ones(labels.sizes())};
  }

 private:
  [[nodiscard]] const std::vector<std::int64_t>& first(const std::string& name) const {
    return file_.entries().at(name).shape;
  }
  [[nodiscard]] at::Tensor read(const std::string& name, std::int64_t index) const {
    const std::vector<std::int64_t>& shape = first(name);
    const at::Tensor tensor = at::empty(at::IntArrayRef(shape).slice(1), at::kFloat);
    file_.read(name, index * tensor.numel(), test::floats(tensor));
    return tensor;
  }

  SafetensorsFile file_;
};

at::Tensor logits_of(Model& model, const Batch& batch) {
  const at::NoGradGuard no_gradients;
  Tensors state;
  for (std::size_t i = 0; i + 1 < model.blocks.size(); ++i)
    state = model.blocks[i]->forward(state, batch, {});
  Block& head = *model.blocks.back();
  return model.is_language() ? dynamic_cast<LanguageHead&>(head).logits(state)
                             : dynamic_cast<VitHead&>(head).logits(state);
}

/// Loss of each batch, with an optimizer step after it.
std::vector<float> train(Model& model, const Batches& batches, const OptimizerConfig& config) {
  std::vector<Parameter*> trained;
  for (Parameter* parameter : all_parameters(model)) {
    if (parameter->trainable) trained.push_back(parameter);
  }
  Tensors first_moments, second_moments;
  for (const Parameter* parameter : trained) {
    first_moments.push_back(at::zeros_like(parameter->gradient.flatten()));
    second_moments.push_back(at::zeros_like(parameter->gradient.flatten()));
  }
  const at::Tensor control = at::zeros({optimizer::kControlSize});
  control[optimizer::kLossScale] = 1;
  std::vector<float> losses;
  for (std::int64_t i = 0; i < batches.size(); ++i) {
    const Batch batch = batches.at(i);
    const at::Tensor totals = at::zeros({kNumTotals}), squares = at::zeros({1});
    (void)test::run_model(model.blocks, batch, {.totals = totals},
                          batch.weights.sum().reciprocal());
    losses.push_back((totals[0] / totals[3]).item<float>());
    for (const Parameter* parameter : trained)
      optimizer::add_squares(parameter->gradient.flatten(), 1, squares);
    optimizer::finish_gradients(control, squares, {});
    for (std::size_t p = 0; p < trained.size(); ++p) {
      optimizer::update(
          {.master = trained[p]->value.flatten(),
           .moments = {first_moments[p], second_moments[p]},
           .gradient = trained[p]->gradient.flatten(),
           .compute = {},
           .rule = optimizer::AdamW{.lr = config.lr, .weight_decay = config.weight_decay}},
          control);
      trained[p]->gradient.zero_();
    }
  }
  return losses;
}

void probe(const fs::path& folder) {
  const Recipe recipe = recipe_of(folder);
  const Batches batches(folder / "input.safetensors");
  const ModelInputs inputs{.classes = 0, .sequence = batches.sequence()};
  Model model = make_trainable_model(recipe, inputs);
  std::vector<std::string> notes;
  const std::unique_ptr<WeightSource> source = first_weights(recipe, model, notes);
  test::bind_parameters(model, *source);
  for (const std::string& note : notes) fmt::print("note: {}\n", note);
  // Frozen weights have nowhere to put a gradient.
  for (Parameter* parameter : all_parameters(model)) {
    if (!parameter->trainable) parameter->gradient.reset();
  }

  const at::Tensor before = logits_of(model, batches.at(0));
  const at::Tensor losses = at::tensor(train(model, batches, recipe.optimizer));
  const at::Tensor after = logits_of(model, batches.at(0));
  std::vector<SafetensorsTensor> tensors;
  for (const auto& [name, tensor] :
       {std::pair{"losses", losses}, {"before", before}, {"after", after}}) {
    tensors.push_back({.name = name,
                       .shape = tensor.sizes().vec(),
                       .dtype = DType::f32,
                       .values = test::floats(tensor)});
  }
  write_safetensors(folder / "output.safetensors", tensors, {});

  auto values = test::part_values(model, &Parameter::value);
  for (const BlockState* state : all_states(model)) {
    std::vector<float>& value = values[state->part.name];
    value.resize(static_cast<std::size_t>(state->part.numel()));
    (void)source->read_state(*state, value);
  }
  export_adapter(folder / "adapter", model, recipe.lora, test::reader_of(values),
                 {.base = recipe.model.weights});
  export_weights(folder / "merged", make_model(recipe.model, inputs),
                 merged(model, recipe.lora, test::reader_of(values)), {});
}

}  // namespace
}  // namespace dstrain

static int answer(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: peft_probe FOLDER\n", stderr);
    return 64;
  }
  try {
    dstrain::probe(argv[1]);
  } catch (const dstrain::Error& error) {
    fmt::print(stderr, "error: {}\nhint: {}\n", error.what(), error.hint());
    return dstrain::exit_code(error.kind());
  }
  return 0;
}

int main(int argc, char** argv) { return dstrain::test::serve(argc, argv, &answer); }
