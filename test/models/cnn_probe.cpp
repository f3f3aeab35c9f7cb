#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string_view>

#include "engine/base/error.h"
#include "engine/base/json.h"
#include "engine/models/cnn_lstm/blocks.h"
#include "engine/models/family.h"
#include "engine/models/image/head.h"
#include "engine/models/weights.h"
#include "engine/nn/block_state.h"
#include "engine/nn/call.h"
#include "engine/train/state/running_states.h"
#include "test/models/bind.h"
#include "test/models/run_blocks.h"
#include "test/models/serve.h"

/// cnn_probe list MODEL...: config.json of each MODEL for 1000 classes, and its tensors, one a
/// line: the model and its config.json, or the model, our name, timm's, and their shapes.
///
/// cnn_probe run MODEL IMAGE_SIZE CLASSES WEIGHTS INPUT OUTPUT EXPORT EXPORT_TIMM: reads the folder
/// WEIGHTS; INPUT has images [steps, B, C, H, W] and labels [steps, B], both fp32. Writes to OUTPUT
/// the logits of the first batch in evaluation and in training, the loss and all gradients of the
/// latter, and the running statistics after as many steps as there are batches, without updates of
/// the weights. Then writes all tensors under both sets of names.
/// MODEL may be cnn-lstm:TRUNK; then images are clips [steps, B, T, C, H, W].
namespace dstrain {
namespace {

using Values = std::map<std::string, std::vector<float>>;

at::Tensor read_tensor(const SafetensorsFile& file, const std::string& name) {
  at::Tensor tensor = at::empty(file.entries().at(name).shape, at::kFloat);
  file.read(name, 0, test::floats(tensor));
  return tensor;
}

/// Frames of a clip, 1 where the input has single images.
int frames_of(const std::string& input) {
  const std::vector<std::int64_t> shape = SafetensorsFile(input).entries().at("images").shape;
  return shape.size() == 6 ? static_cast<int>(shape[2]) : 1;
}

Model model_of(const std::string& name, int image_size, int classes, const std::string& weights,
               int frames) {
  ModelConfig config;
  config.name = name.substr(0, name.find(':'));
  if (config.name != name) {
    // A CNN-LSTM; its clips have `frames` frames.
    config.trunk = name.substr(config.name.size() + 1);
    config.width = 24;
    config.layers = 2;
  }
  config.image_size = image_size;
  config.channels = 3;
  config.classes = classes;
  config.weights = weights;
  return make_model(config, {.frames = frames});
}

FileTensor timms(const Model& model, const FileTensor& ours) {
  return model.family->timm_tensor == nullptr ? ours : model.family->timm_tensor(ours);
}

void list(const std::string& name) {
  const Model model = model_of(name, 224, 1000, "", 1);
  fmt::print("{} {}\n", name, parse_json(model.config_json, name).dump());
  const auto print = [&](const Piece& part) {
    const FileTensor theirs = timms(model, {part.name, part.shape});
    const auto shape = [](const std::vector<std::int64_t>& sizes) {
      return fmt::format("{}", fmt::join(sizes, ","));
    };
    fmt::print("{} {} {} [{}] [{}]\n", name, part.name, theirs.name, shape(part.shape),
               shape(theirs.shape));
  };
  for (const Parameter* parameter : all_parameters(model)) {
    for (const Piece& part : parameter->parts) print(part);
  }
  for (const BlockState* state : all_states(model)) print(state->part);
}

void bind_states(const Model& model, const WeightSource& source) {
  for (BlockState* state : all_states(model)) {
    state->value = at::full(state->part.shape, state->initial, state->type);
    if (state->type == at::kFloat) (void)source.read_state(*state, test::floats(state->value));
  }
}

at::Tensor logits_of(Model& model, const Batch& batch, Mode mode) {
  const at::NoGradGuard no_gradient;
  const BlockContext context{.mode = mode};
  Tensors state;
  for (std::size_t i = 0; i + 1 < model.blocks.size(); ++i)
    state = model.blocks[i]->forward(state, batch, context);
  Block& head = *model.blocks.back();
  LayerPass pass{.call = Call::of(batch, context)};
  const Features x{.tensor = state.at(0)};
  if (auto* lstm = dynamic_cast<LstmHead*>(&head)) return lstm->run_logits(pass, x).tensor;
  return dynamic_cast<ImageHead&>(head).run_logits(pass, x).tensor;
}

void probe(Model model, const std::string& weights, const std::string& input,
           const std::string& output, const std::string& exported, const std::string& timm_export) {
  std::vector<std::string> notes;
  const auto source = open_weights(weights, model, 0, notes);
  for (const std::string& note : notes) fmt::print("note: {}\n", note);
  test::bind_parameters(model, *source);
  bind_states(model, *source);
  const std::vector<BlockState*> states = all_states(model);
  at::Tensor sums = at::zeros({step_sum_elements(states)});
  const RunningStates running(states, sums);

  const SafetensorsFile file(input);
  const at::Tensor images = read_tensor(file, "images"), labels = read_tensor(file, "labels");
  const std::int64_t size = images.size(1);
  const auto batch_of = [&](std::int64_t step) {
    at::Tensor own = images[step];
    if (own.dim() == 5) own = own.flatten(0, 1);
    return Batch{.images = own.contiguous(),
                 .labels = labels[step].to(at::kLong),
                 .weights = at::ones({size})};
  };
  std::vector<SafetensorsTensor> tensors;
  std::vector<at::Tensor> kept;
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    kept.push_back(tensor.detach().to(at::kFloat).clone());
    tensors.push_back({.name = name,
                       .shape = tensor.sizes().vec(),
                       .dtype = DType::f32,
                       .values = test::floats(kept.back())});
  };
  const Batch first = batch_of(0);
  add("eval", logits_of(model, first, Mode::evaluate));
  add("train", logits_of(model, first, Mode::recompute));
  const at::Tensor factor = at::full({}, 1.0 / static_cast<double>(size));
  const BlockContext context{.totals = at::zeros({kNumTotals})};
  add("loss", test::run_model(model.blocks, first, context, factor).mul(factor));
  for (const Parameter* parameter : all_parameters(model))
    add(parameter->parts.front().name, parameter->gradient.view(parameter->parts.front().shape));
  const at::Tensor no_skip = at::zeros({});
  running.apply(no_skip, size * model.frames);
  for (std::int64_t step = 1; step < images.size(0); ++step) {
    sums.zero_();
    (void)logits_of(model, batch_of(step), Mode::train);
    running.apply(no_skip, size * model.frames);
  }
  for (const BlockState* state : states) add(state->part.name, state->value);
  write_safetensors(output, tensors, {});

  Values values = test::part_values(model, &Parameter::value);
  for (const BlockState* state : states) values[state->part.name] = stored_values(*state);
  export_weights(exported, model, test::reader_of(values), {});
  export_weights(timm_export, model, test::reader_of(values),
                 {.tensor = model.family->timm_tensor});
}

}  // namespace
}  // namespace dstrain

static int answer(int argc, char** argv) {
  const std::string_view what = argc > 1 ? argv[1] : "";
  try {
    if (what == "list" && argc > 2) {
      for (int i = 2; i < argc; ++i) dstrain::list(argv[i]);
      return 0;
    }
    if (what == "run" && argc == 10) {
      dstrain::probe(dstrain::model_of(argv[2], std::atoi(argv[3]), std::atoi(argv[4]), argv[5],
                                       dstrain::frames_of(argv[6])),
                     argv[5], argv[6], argv[7], argv[8], argv[9]);
      return 0;
    }
  } catch (const dstrain::Error& error) {
    fmt::print(stderr, "error: {}\nhint: {}\n", error.what(), error.hint());
    return dstrain::exit_code(error.kind());
  }
  std::fputs(
      "usage: cnn_probe list MODEL...\n       cnn_probe run MODEL IMAGE_SIZE CLASSES WEIGHTS INPUT "
      "OUTPUT EXPORT EXPORT_TIMM\n",
      stderr);
  return 64;
}

int main(int argc, char** argv) { return dstrain::test::serve(argc, argv, &answer); }
