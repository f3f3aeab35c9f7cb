#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>

#include "cmd/command.h"
#include "cmd/input_path.h"
#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/input_file.h"
#include "engine/base/output.h"
#include "engine/data/dataset.h"
#include "engine/data/text/chat_encoder.h"
#include "engine/infer/saved_weights.h"
#include "engine/models/family.h"
#include "engine/models/model.h"
#include "engine/models/peft.h"
#include "engine/models/weights.h"
#include "engine/recipe/datasets.h"
#include "engine/recipe/image_processor.h"
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
  const std::vector<DataConfig> sets = sets_of(recipe.data);
  const auto chat = std::ranges::find(sets, DatasetName::chat, &DataConfig::name);
  if (chat != sets.end()) text::write_chat_files(*chat, weights, output);
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
  const std::filesystem::path path = checkpoint_in(options.source);
  SavedWeights weights(path, options.ema);
  const Recipe& recipe = weights.recipe();
  const bool adapted = recipe.lora.rank > 0;
  if (options.merge && !adapted) {
    throw Error(ErrorKind::usage, "--merge: the run has no adapters (lora.rank is 0)",
                "leave it out; all weights are exported");
  }
  refuse_foreign_weights(options.output, {recipe.model.weights, recipe.lora.weights});
  const Model& model = weights.model();
  const CheckpointState& state = weights.reader().state();
  const TensorReader read = [&](const Piece& part) { return weights.read(part); };
  const DType dtype = options.dtype == "bf16" ? DType::bf16 : DType::f32;
  const std::string names = names_of(options, recipe, model);
  const auto timm = names == "timm" ? model.family->timm_tensor : nullptr;
  if (adapted && !options.merge) {
    export_adapter(options.output, model, recipe.lora, read,
                   {.base = recipe.model.weights, .dtype = dtype});
  } else if (adapted) {
    const Model plain = weights.plain_model();
    export_weights(options.output, plain, merged(model, recipe.lora, read), {.dtype = dtype});
  } else {
    export_weights(options.output, model, read, {.dtype = dtype, .tensor = timm});
  }
  write_companions(recipe, model, options.output);
  print_text("{}: step {}, {}{}\n", options.output, state.step,
             options.ema ? "average over the steps, " : "",
             adapted && !options.merge        ? "adapter in PEFT's layout"
             : adapted                        ? "base and adapter merged in the Hugging Face layout"
             : model.family->recipe().by_name ? fmt::format("weights under the names of {}", names)
                                              : "weights in the Hugging Face layout");
  if (adapted && !options.merge && recipe.model.weights.empty()) {
    print_text("its base is in no folder ({}); --merge writes both together\n", state.base);
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
