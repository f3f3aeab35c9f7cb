#include "engine/infer/finished_model.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/input_file.h"
#include "engine/base/json.h"
#include "engine/device/device_limits.h"
#include "engine/infer/adapter_settings.h"
#include "engine/infer/cached_model.h"
#include "engine/infer/saved_weights.h"
#include "engine/models/family.h"
#include "engine/models/gpu_sizes.h"
#include "engine/models/peft.h"
#include "engine/models/trainable.h"
#include "engine/models/weights.h"
#include "engine/nn/block_state.h"
#include "engine/recipe/load.h"
#include "engine/weights/weight_folder.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

/// Gives every weight its value, a tensor of a file at a time.
void load_values(Model& model, const TensorReader& read, const FinishedModelOptions& options) {
  for (Parameter* parameter : all_parameters(model)) {
    const auto kind = at::TensorOptions().dtype(options.dtype).device(options.device);
    parameter->value = at::empty(parameter->shape, kind);
    at::Tensor flat = parameter->value.flatten();
    std::int64_t begin = 0;
    for (const Piece& part : parameter->parts) {
      std::vector<float> values = read(part);
      const auto count = static_cast<std::int64_t>(values.size());
      flat.narrow(0, begin, count).copy_(at::from_blob(values.data(), {count}, at::kFloat));
      begin += count;
    }
    parameter->trainable = false;
  }
}

/// The same of what no gradient changes; `read` gives stored values, or nothing where the tensor
/// has its first value.
void load_states(Model& model,
                 const std::function<std::optional<std::vector<float>>(const BlockState&)>& read,
                 c10::Device device) {
  for (BlockState* state : all_states(model)) {
    const std::optional<std::vector<float>> values = read(*state);
    const at::Tensor host = values ? from_stored(*state, *values)
                                   : at::full(state->part.shape, state->initial, state->type);
    state->value = host.to(device);
  }
}

/// max_position_embeddings or n_positions of config.json.
int positions_of(const Model& model) {
  const nlohmann::json json = parse_json(model.config_json, "config.json");
  for (const char* key : {"max_position_embeddings", "n_positions"}) {
    const auto found = json.find(key);
    if (found != json.end() && found->is_number_integer() && *found > 0) return found->get<int>();
  }
  return 0;
}

void require_modality(const Model& model, const FinishedModelOptions& options,
                      const std::string& what) {
  if (model.is_language() == (options.modality == Modality::text)) return;
  if (model.is_language())
    throw Error(ErrorKind::usage, what + " is a model of text: it knows no classes of images",
                "`dstrain generate` lets it answer");
  throw Error(ErrorKind::usage, what + " is a model of images: it writes no text",
              "`dstrain classify` says what images show");
}

/// Error{usage} where a GPU does not take the sizes of `model`, whose samples have tokens.
void require_sizes(const ModelConfig& config, Model& model, const FinishedModelOptions& options) {
  if (!options.device.is_cuda()) return;
  ModelCost cost =
      model_cost(model, {.micro_batch = 1,
                         .compute_bytes = static_cast<int>(c10::elementSize(options.dtype)),
                         .limits = limits_of_device(options.device.index())});
  if (options.modality == Modality::text) {
    if (const auto misfit = CachedModel::misfit(model)) cost.blocks[0].misfits.push_back(*misfit);
  }
  require_gpu_sizes(config, cost, "--cpu computes on the CPU");
}

/// Such a folder is a beginning of training: the head would be drawn at random.
void require_classifier(const fs::path& folder, const Model& model) {
  if (model.family->classifier.empty()) return;
  const std::string name = std::string(model.family->classifier) + ".weight";
  if (WeightFolder(folder).find(model.family->file_names(name))) return;
  throw Error(ErrorKind::data,
              fmt::format("{} has no classifier ({}): it names no classes", folder.string(), name),
              "give a model with a head for classes, or a run that has trained one");
}

/// A recipe that begins with the folder of a model of images: its size of images and constants of
/// norms stand in files that a recipe reads. How images are prepared is given, so not read.
Recipe recipe_on(const fs::path& folder) {
  const std::string text = fmt::format(
      "model: {{ weights: {} }}\n"
      "data: {{ name: images, path: ., resize: crop, interpolation: bilinear, normalize: {{ scale: "
      "1, mean: [0], std: [1] }} }}\n"
      "batch: {{ global: 1, micro: 1 }}\n"
      "optimizer: {{ name: sgd, lr: 1 }}\n"
      "run: {{ steps: 1, evaluate: never }}\n",
      nlohmann::json(folder.string()).dump());
  return parse_recipe(text, folder.string()).recipe;
}

FinishedModel open_folder(const fs::path& folder, const FinishedModelOptions& options) {
  if (options.average)
    throw Error(ErrorKind::usage, "--ema: a folder of a model has no average of its weights",
                "give the run or its checkpoint");
  Recipe recipe;
  recipe.model.weights = folder.string();
  if (options.modality == Modality::images && !is_language_model(recipe.model))
    recipe = recipe_on(folder);
  const ModelInputs inputs{.batch_norm = recipe.batch_norm,
                           .fp16 = options.dtype == at::kHalf,
                           .answers = options.adapter.empty()};
  FinishedModel found{
      .model = make_model(recipe.model, inputs), .tokenizer = folder, .what = folder.string()};
  require_modality(found.model, options, found.what);
  if (options.device.is_cuda()) {
    ModelInputs of_token = inputs;
    of_token.sequence = 1;
    Model sized = make_model(recipe.model, of_token);
    require_sizes(recipe.model, sized, options);
  }
  if (options.modality == Modality::images) require_classifier(folder, found.model);
  std::optional<Model> made;
  const auto make = [&] { made = make_trainable_model(recipe, inputs); };
  const bool has_adapter = !options.adapter.empty();
  if (has_adapter) {
    recipe.lora = adapter_settings(options.adapter, found.model);
    read_adapter(options.adapter, make);
  } else {
    make();
  }
  Model& whole = *made;
  std::vector<std::string> notes;
  std::unique_ptr<WeightSource> source = first_weights(recipe, whole, notes);
  if (has_adapter) {
    read_adapter(options.adapter, [&] {
      source = open_adapter(options.adapter, whole, recipe.lora, std::move(source));
    });
  }
  const TensorReader read = [&](const Piece& part) {
    if (auto values = read_tensor(*source, whole, part)) return *std::move(values);
    throw Error(ErrorKind::internal, "no tensor " + part.name);
  };
  load_values(found.model, recipe.lora.rank > 0 ? merged(whole, recipe.lora, read) : read, options);
  load_states(
      found.model,
      [&](const BlockState& state) -> std::optional<std::vector<float>> {
        if (state.type != at::kFloat) return std::nullopt;  // counters, which training reads
        std::vector<float> values(static_cast<std::size_t>(num_elements(state.part.shape)));
        if (!source->read_state(state, values)) return std::nullopt;
        return values;
      },
      options.device);
  if (recipe.lora.rank > 0) found.what += " with " + options.adapter.string();
  return found;
}

FinishedModel open_run(const fs::path& source, const FinishedModelOptions& options) {
  if (!options.adapter.empty())
    throw Error(ErrorKind::usage, "--adapter: a run has its own adapters",
                "leave it out, or give the folder of the base model");
  const fs::path checkpoint = checkpoint_in(source);
  SavedWeights weights(checkpoint, options.average);
  const Recipe& recipe = weights.recipe();
  FinishedModel found{
      .model = weights.plain_model(options.dtype == at::kHalf),
      .tokenizer = recipe.data.tokenizer.empty() ? recipe.model.weights : recipe.data.tokenizer,
      .what = fmt::format("{}, step {}", source.string(), weights.reader().state().step),
      .recipe = recipe};
  require_modality(found.model, options, found.what);
  require_sizes(recipe.model, found.model, options);
  const TensorReader read = [&](const Piece& part) { return weights.read(part); };
  load_values(found.model, recipe.lora.rank > 0 ? merged(weights.model(), recipe.lora, read) : read,
              options);
  load_states(
      found.model, [&](const BlockState& state) { return weights.read(stored_part(state)); },
      options.device);
  return found;
}

}  // namespace

FinishedModel open_finished_model(const fs::path& source, const FinishedModelOptions& options) {
  const bool is_folder = path_kind((source / "config.json").string()) == PathKind::file;
  if (!is_folder && path_kind((source / "adapter_config.json").string()) == PathKind::file)
    throw Error(ErrorKind::usage,
                source.string() + " is an adapter, without the model that it changes",
                "give the model's folder, and --adapter " + source.string());
  FinishedModel found = is_folder ? open_folder(source, options) : open_run(source, options);
  found.positions = positions_of(found.model);
  return found;
}

}  // namespace dstrain
