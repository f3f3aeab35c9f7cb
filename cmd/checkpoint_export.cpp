#include <fmt/format.h>

#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cmd/command.h"
#include "engine/base/error.h"
#include "engine/models/model.h"
#include "engine/models/weights.h"
#include "engine/train/checkpoint.h"
#include "engine/train/checkpoint_name.h"
#include "engine/train/run_directory.h"
#include "recipes/schema/load.h"

namespace dstrain {
namespace {

struct ExportOptions {
  std::string source;
  std::string output;
  std::string dtype = "f32";
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

int export_checkpoint(const ExportOptions& options) {
  const std::filesystem::path path = checkpoint_of(options.source);
  const auto reader = CheckpointReader::open(path, /*verify=*/true);
  LoadedRecipe loaded = parse_recipe(reader->state().recipe, (path / "recipe").string());
  std::map<std::string, std::vector<float>> tensors;
  std::int64_t classes = 0;
  for (const TensorSlice& tensor : reader->tensors()) {
    if (tensor.name.starts_with("optimizer.")) continue;
    auto& values = tensors[tensor.name];
    values.resize(static_cast<std::size_t>(tensor.range.size()));
    reader->read(tensor, values);
    if (tensor.name == "classifier.bias") classes = tensor.range.size();
  }
  Model model = make_model(loaded.recipe.model, static_cast<int>(classes));
  export_weights(options.output, model, tensors,
                 options.dtype == "bf16" ? DType::bf16 : DType::f32);
  fmt::print("{}: weights of step {} in the Hugging Face layout\n", options.output,
             reader->state().step);
  return 0;
}

}  // namespace

Command add_checkpoint_export(CLI::App& root) {
  auto options = std::make_shared<ExportOptions>();
  CLI::App* app = root.add_subcommand("export",
                                      "Write the weights of a checkpoint as config.json and "
                                      "model.safetensors that transformers loads.\n"
                                      "  dstrain checkpoint export runs/quickstart-... exported");
  app->add_option("source", options->source,
                  "Run directory (its newest valid checkpoint) or checkpoint directory.")
      ->required()
      ->check(CLI::ExistingDirectory);
  app->add_option("output", options->output, "Folder to write; made if missing.")->required();
  app->add_option("--dtype", options->dtype, "f32 (default) or bf16.")
      ->check(CLI::IsMember({"f32", "bf16"}));
  return {app, [options] { return export_checkpoint(*options); }};
}

}  // namespace dstrain
