#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string_view>

#include "engine/base/error.h"
#include "engine/models/vit/model.h"
#include "engine/models/weights.h"
#include "engine/nn/block_state.h"
#include "test/models/bind.h"
#include "test/models/run_blocks.h"
#include "test/models/serve.h"

/// vit_probe WEIGHTS INPUT OUTPUT EXPORT [answers]: loads the folder WEIGHTS, runs forward and
/// backward of the mean loss in fp32 on INPUT's pixel_values and labels (as fp32), writes logits,
/// loss and gradients to OUTPUT and the weights to folder EXPORT; with `answers` logits alone, of a
/// model that is not trained.
namespace dstrain {
namespace {

using Values = std::map<std::string, std::vector<float>>;

at::Tensor read_tensor(const SafetensorsFile& file, const std::string& name) {
  at::Tensor tensor = at::empty(file.entries().at(name).shape, at::kFloat);
  file.read(name, 0, test::floats(tensor));
  return tensor;
}

/// Logits by a forward pass of their own.
at::Tensor logits_of(Model& model, const Batch& batch) {
  Tensors state;
  for (std::size_t i = 0; i + 1 < model.blocks.size(); ++i)
    state = model.blocks[i]->forward(state, batch, {});
  return dynamic_cast<VitHead&>(*model.blocks.back()).logits(state).detach();
}

void probe(const std::filesystem::path& weights, const std::filesystem::path& input,
           const std::filesystem::path& output, const std::filesystem::path& exported,
           bool answers) {
  const SafetensorsFile file(input);
  ModelConfig config;
  config.weights = weights.string();
  // Positions of some families are interpolated to the images that come.
  const std::int64_t pixels = file.entries().at("pixel_values").shape.at(3);
  if (file.entries().contains("resized")) config.image_size = static_cast<int>(pixels);
  Model model = make_model(config, {.answers = answers});
  std::vector<std::string> notes;
  const std::unique_ptr<WeightSource> source = open_weights(weights, model, 0, notes);
  test::bind_parameters(model, *source);
  for (const std::string& note : model.notes) fmt::print("note: {}\n", note);
  for (const std::string& note : notes) fmt::print("note: {}\n", note);

  Batch batch{.images = read_tensor(file, "pixel_values"),
              .labels = read_tensor(file, "labels").to(at::kLong),
              .weights = {}};
  const std::int64_t size = batch.images.size(0);
  batch.weights = at::ones({size});
  const at::Tensor logits = logits_of(model, batch);
  if (answers) {
    write_safetensors(output,
                      {{.name = "logits",
                        .shape = logits.sizes().vec(),
                        .dtype = DType::f32,
                        .values = test::floats(logits)}},
                      {});
    return;
  }
  const at::Tensor factor = at::full({}, 1.0 / static_cast<double>(size));
  const at::Tensor loss =
      test::run_model(model.blocks, batch, {.totals = at::zeros({kNumTotals})}, factor).mul(factor);

  const Values gradients = test::part_values(model, &Parameter::gradient);
  std::vector<SafetensorsTensor> tensors = {
      {.name = "logits",
       .shape = logits.sizes().vec(),
       .dtype = DType::f32,
       .values = test::floats(logits)},
      {.name = "loss", .shape = {}, .dtype = DType::f32, .values = test::floats(loss)}};
  for (const auto& block : model.blocks) {
    for (const Parameter* parameter : block->parameters()) {
      for (const Piece& part : parameter->parts) {
        tensors.push_back({.name = part.name,
                           .shape = part.shape,
                           .dtype = DType::f32,
                           .values = gradients.at(part.name)});
      }
    }
  }
  write_safetensors(output, tensors, {});
  Values values = test::part_values(model, &Parameter::value);
  for (const BlockState* state : all_states(model)) {
    std::vector<float>& value = values[state->part.name];
    value.resize(static_cast<std::size_t>(state->part.numel()));
    (void)source->read_state(*state, value);
  }
  export_weights(exported, model, test::reader_of(values), {});
}

}  // namespace
}  // namespace dstrain

static int answer(int argc, char** argv) {
  const bool answers = argc == 6 && std::string_view(argv[5]) == "answers";
  if (argc != 5 && !answers) {
    std::fputs("usage: vit_probe WEIGHTS INPUT OUTPUT EXPORT [answers]\n", stderr);
    return 64;
  }
  try {
    dstrain::probe(argv[1], argv[2], argv[3], argv[4], answers);
  } catch (const dstrain::Error& error) {
    fmt::print(stderr, "error: {}\nhint: {}\n", error.what(), error.hint());
    return dstrain::exit_code(error.kind());
  }
  return 0;
}

int main(int argc, char** argv) { return dstrain::test::serve(argc, argv, &answer); }
