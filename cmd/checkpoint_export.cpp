#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cmd/command.h"
#include "cmd/input_path.h"
#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/input_file.h"
#include "engine/base/output.h"
#include "engine/base/run_layout.h"
#include "engine/checkpoint/base_weights.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/data/dataset.h"
#include "engine/models/family.h"
#include "engine/models/model.h"
#include "engine/models/peft.h"
#include "engine/models/trainable.h"
#include "engine/models/weights.h"
#include "engine/recipe/image_processor.h"
#include "engine/recipe/load.h"
#include "engine/recipe/phases.h"
#include "launcher/base/words.h"

namespace dstrain {
namespace {

struct ExportArguments {
  std::string source;
  std::string output;
  std::string dtype = "f32";
  std::string names;
  bool merge = false;
  bool ema = false;
};

std::filesystem::path checkpoint_of(const std::string& source) {
  if (parse_checkpoint_name(source)) return source;
  std::vector<std::string> problems;
  const auto newest = newest_valid(find_checkpoints_folder(source), problems);
  if (!newest) {
    throw Error(ErrorKind::checkpoint,
                fmt::format("{} holds no valid checkpoint{}", source,
                            problems.empty() ? "" : ": " + problems.front()),
                "look with `dstrain checkpoint list`");
  }
  return newest->path;
}

/// The run's model; a head that is in the checkpoint says the number of classes.
Model model_of(const CheckpointReader& reader, const Recipe& recipe) {
  ModelInputs inputs{.sequence = recipe.data.sequence, .class_names = reader.state().class_names};
  const std::string bias = std::string(find_family(recipe.model).classifier) + ".bias";
  for (const Piece& tensor : reader.tensors()) {
    if (tensor.name == bias) inputs.classes = static_cast<int>(tensor.numel());
  }
  return make_trainable_model(recipe, inputs);
}

/// Weights of the checkpoint, and for those that it leaves out the run's base.
class Weights {
 public:
  /// `average`: of the weights over the steps, in their place.
  Weights(const CheckpointReader& reader, std::filesystem::path path, const Recipe& recipe,
          Model& model, bool average)
      : reader_(reader), path_(std::move(path)), recipe_(recipe), model_(model), average_(average) {
    recipe_.lora.weights.clear();  // what it started from stands in the checkpoint
    for (const Piece& tensor : reader.tensors()) saved_.insert(tensor.name);
  }

  std::vector<float> read(const Piece& part) {
    Piece whole(part.name, part.shape);
    std::vector<float> values(static_cast<std::size_t>(whole.numel()));
    // Frozen weights are their own average.
    if (average_ && saved_.contains(average_name(part.name))) whole.name = average_name(part.name);
    if (saved_.contains(whole.name)) {
      reader_.read(whole, values);
    } else {
      read_base(part, values);
    }
    return values;
  }

 private:
  void read_base(const Piece& part, std::span<float> values) {
    if (!base_) {
      check_base(path_, reader_.state().base, base_reference(recipe_));
      std::vector<std::string> notes;
      base_ = first_weights(recipe_, model_, notes);
    }
    for (const Parameter* parameter : all_parameters(model_)) {
      for (const Piece& own : parameter->parts) {
        if (own.name == part.name) return base_->read_whole(*parameter, own, 0, values);
      }
    }
    throw Error(ErrorKind::checkpoint,
                fmt::format("{}: no tensor '{}'", path_.string(), part.name));
  }

  const CheckpointReader& reader_;
  std::filesystem::path path_;
  Recipe recipe_;
  Model& model_;
  bool average_;
  std::set<std::string> saved_;
  std::unique_ptr<WeightSource> base_;
};

/// The files beside the weights that transformers reads, with what training used.
void write_companions(const Recipe& recipe, const Model& model, const std::string& output) {
  if (!model.is_language()) {
    const int stored = stored_shape(recipe.data, model.image_size).height;
    if (model.family->recipe().by_name) {
      const std::filesystem::path config = std::filesystem::path(output) / "config.json";
      write_file_atomically(config, with_pretrained_cfg(read_file(config), recipe.data, stored,
                                                        model.image_size, model.channels));
      return;
    }
    write_file_atomically(
        std::filesystem::path(output) / "preprocessor_config.json",
        image_processor_json(recipe.data, stored, model.image_size, model.channels));
    return;
  }
  const std::string& weights = recipe.model.weights;
  const std::string& tokenizer = recipe.data.tokenizer.empty() ? weights : recipe.data.tokenizer;
  if (path_kind(tokenizer) == PathKind::folder) copy_tokenizer_files(tokenizer, output);
  if (path_kind(weights) == PathKind::folder) copy_generation_file(weights, output);
}

/// "timm" or "torchvision": as asked for, else as in the folder that the run began from.
std::string names_of(const ExportArguments& options, const Recipe& recipe, const Model& model) {
  if (!options.names.empty()) return options.names;
  const std::string& weights = recipe.model.weights;
  if (model.family->timm_tensor == nullptr || weights.empty()) return "torchvision";
  if (path_kind(weights) != PathKind::folder) {
    print_error("note: {} is not there, the names of tensors are torchvision's (--names)\n",
                weights);
    return "torchvision";
  }
  return has_timm_names(weights, model) ? "timm" : "torchvision";
}

int export_checkpoint(const ExportArguments& options) {
  const std::filesystem::path path = checkpoint_of(options.source);
  const auto reader = CheckpointReader::open(path, /*verify=*/true);
  LoadedRecipe loaded = parse_recipe(reader->state().recipe, (path / "recipe").string());
  const Recipe recipe = phase_recipe(loaded.recipe, reader->state().phase);
  const bool adapted = recipe.lora.rank > 0;
  if (options.merge && !adapted) {
    throw Error(ErrorKind::usage, "--merge: the run has no adapters (lora.rank is 0)",
                "leave it out; all weights are exported");
  }
  Model model = model_of(*reader, recipe);
  if (options.ema && recipe.ema.decay == 0) {
    throw Error(ErrorKind::usage, "--ema: the run keeps no average of its weights (ema.decay is 0)",
                "leave it out; the weights themselves are exported");
  }
  Weights weights(*reader, path, recipe, model, options.ema);
  const TensorReader read = [&](const Piece& part) { return weights.read(part); };
  const DType dtype = options.dtype == "bf16" ? DType::bf16 : DType::f32;
  const std::string names = names_of(options, recipe, model);
  const auto timm = names == "timm" ? model.family->timm_tensor : nullptr;
  if (adapted && !options.merge) {
    export_adapter(options.output, model, recipe.lora, read,
                   {.base = recipe.model.weights, .dtype = dtype});
  } else if (adapted) {
    const Model plain = make_model(recipe.model, {.classes = model.classes,
                                                  .sequence = recipe.data.sequence,
                                                  .experts = recipe.experts,
                                                  .class_names = model.class_names});
    export_weights(options.output, plain, merged(model, recipe.lora, read), {.dtype = dtype});
  } else {
    export_weights(options.output, model, read, {.dtype = dtype, .tensor = timm});
  }
  write_companions(recipe, model, options.output);
  print_text("{}: step {}, {}{}\n", options.output, reader->state().step,
             options.ema ? "average over the steps, " : "",
             adapted && !options.merge        ? "adapter in PEFT's layout"
             : adapted                        ? "base and adapter merged in the Hugging Face layout"
             : model.family->recipe().by_name ? fmt::format("weights under the names of {}", names)
                                              : "weights in the Hugging Face layout");
  if (adapted && !options.merge && recipe.model.weights.empty()) {
    print_text("its base is in no folder ({}); --merge writes both together\n",
               reader->state().base);
  }
  print_text("share it: hf upload ORG/NAME {}\n", launcher::shell_quote(options.output));
  return 0;
}

}  // namespace

Command add_checkpoint_export(CLI::App& root) {
  auto options = std::make_shared<ExportArguments>();
  CLI::App* app = root.add_subcommand("export",
                                      "Write the weights of a checkpoint as config.json and "
                                      "model.safetensors that transformers loads; of a run with "
                                      "adapters, those, as PEFT loads them. The last line is the "
                                      "command that puts the folder on the Hub.\n"
                                      "  dstrain checkpoint export runs/quickstart-... exported");
  app->add_option("source", options->source,
                  "Run directory (its newest valid checkpoint) or checkpoint directory.")
      ->required()
      ->check(input_folder());
  app->add_option("output", options->output, "Folder to write; made if missing.")->required();
  app->add_option("--dtype", options->dtype, "f32 (default) or bf16.")
      ->check(CLI::IsMember({"f32", "bf16"}));
  app->add_option(
         "--names", options->names,
         "Of a convolutional model: whose names the tensors get, torchvision or timm, which "
         "opens the folder as local-dir:FOLDER. Default: as in model.weights, else "
         "torchvision.")
      ->check(CLI::IsMember({"torchvision", "timm"}));
  app->add_flag("--merge", options->merge,
                "Of a run with adapters: the whole model, with the adapters added to its weights.");
  app->add_flag("--ema", options->ema,
                "Of a run with ema.decay: the average of the weights over the steps.");
  return {app, [options] { return export_checkpoint(*options); }};
}

}  // namespace dstrain
