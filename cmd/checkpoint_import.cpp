#include <ATen/ops/full.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cmd/command.h"
#include "cmd/input_path.h"
#include "cmd/overrides.h"
#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/input_file.h"
#include "engine/base/output.h"
#include "engine/base/run_layout.h"
#include "engine/base/units.h"
#include "engine/checkpoint/base_weights.h"
#include "engine/checkpoint/import.h"
#include "engine/data/dataset.h"
#include "engine/models/family.h"
#include "engine/models/groups.h"
#include "engine/models/language_head.h"
#include "engine/models/registration_order.h"
#include "engine/models/trainable.h"
#include "engine/models/weights.h"
#include "engine/nn/block_state.h"
#include "engine/recipe/load.h"
#include "engine/recipe/optimizers.h"

namespace dstrain {
namespace {

struct ImportArguments {
  std::string source, run, recipe;
  std::vector<std::string> set, accept;
  bool weights_only = false, dry_run = false;
};

std::vector<std::string> texts(std::span<const std::string_view> views) {
  return {views.begin(), views.end()};
}

/// The tensors that the recipe's model has, as an importer looks for them.
class Wanted {
 public:
  Wanted(const Recipe& recipe, Model& model) : recipe_(recipe), model_(model) {
    const OptimizerRow& row = optimizer_row(recipe.optimizer.name);
    const OptimizerRow& others = row.others ? optimizer_row(*row.others) : row;
    const Parameter* tied = tied_table(model_);
    for (const Parameter* parameter : all_parameters(model_)) {
      for (const Piece& part : parameter->parts) {
        WantedTensor tensor{.name = part.name,
                            .shape = part.shape,
                            .file_names = model.family->file_names(part.name),
                            .turned = model.family->turned_in_file(part.name, part.shape),
                            .trained = parameter->trainable,
                            .decay = parameter->decay};
        if (parameter == tied) tensor.ties.emplace_back(kLanguageHeadWeight);
        if (parameter->trainable)
          tensor.moments = texts((parameter->hidden_matrix ? row : others).moments);
        if (!parameter->trainable) {
          tensor.base = [this, parameter, &part](std::int64_t begin, std::span<float> out) {
            base().read_whole(*parameter, part, begin, out);
          };
        }
        tensors.push_back(std::move(tensor));
      }
    }
    for (BlockState* state : all_states(model_)) {
      state->value = at::full(state->part.shape, state->initial, state->type);
      states.push_back({.stored = stored_part(*state),
                        .file_names = model.family->file_names(state->part.name),
                        .initial = stored_values(*state),
                        .is_float = state->type == at::kFloat});
    }
  }

  [[nodiscard]] ForeignHints hints(bool weights_only) const {
    using enum ForeignHints::Moments;
    ForeignHints hints{.order = registration_order(model_), .moments = weights_only ? none : all};
    for (const WantedTensor& tensor : tensors) {
      if (tensor.trained) hints.trained.insert(tensor.file_names.begin(), tensor.file_names.end());
    }
    return hints;
  }

  std::vector<WantedTensor> tensors;
  std::vector<WantedState> states;

 private:
  const WeightSource& base() {
    std::vector<std::string> notes;
    if (base_ == nullptr) base_ = first_weights(recipe_, model_, notes);
    return *base_;
  }

  const Recipe& recipe_;
  Model& model_;
  std::unique_ptr<WeightSource> base_;
};

/// Error{usage} where the run has checkpoints already.
void require_empty(const RunLayout& run) {
  if (path_kind(run.checkpoints(), ErrorKind::usage) != PathKind::folder) return;
  const std::vector<CheckpointInfo> found = list_checkpoints(run.checkpoints(), /*full=*/false);
  if (found.empty()) return;
  throw Error(ErrorKind::usage,
              fmt::format("{} has checkpoints, the newest of step {}", run.root().string(),
                          found.front().step),
              "import into a new directory, so that none of them is mixed with another run's");
}

int import(const ImportArguments& arguments) {
  LoadedRecipe loaded = load_recipe(arguments.recipe, arguments.set);
  const Recipe& recipe = loaded.recipe;
  if (recipe.lora.rank > 0) {
    throw Error(ErrorKind::usage, "lora.rank: adapters are not imported with their moments",
                "start from a PEFT folder with lora.weights, or import into a recipe without lora");
  }
  const DatasetFacts facts = dataset_facts(recipe.data, recipe.model.image_size);
  Model model =
      make_trainable_model(recipe, {.classes = facts.classes, .sequence = recipe.data.sequence});
  Wanted wanted(recipe, model);
  const RunLayout run{std::filesystem::path(arguments.run)};
  require_empty(run);
  const ForeignCheckpoint foreign =
      open_foreign(arguments.source, wanted.hints(arguments.weights_only));
  print_text("{}: {}{}\n", foreign.path.string(), foreign.layout,
             foreign.ranks > 1 ? fmt::format(", written by {} ranks", foreign.ranks) : "");
  const ImportRules rules{.weight_decay = recipe.optimizer.weight_decay,
                          .eps = recipe.optimizer.eps,
                          .momentum = recipe.optimizer.momentum,
                          .betas = recipe.optimizer.betas,
                          .batch = recipe.batch.global};
  const ImportResult result =
      import_checkpoint(foreign, wanted.tensors, wanted.states, rules,
                        {.root = run.checkpoints(),
                         .accept = {arguments.accept.begin(), arguments.accept.end()},
                         .weights_only = arguments.weights_only,
                         .dry_run = arguments.dry_run,
                         .base = base_reference(recipe),
                         .recipe = resolved_yaml(loaded),
                         .attempt = fmt::format("import-{}", static_cast<long>(::getpid()))});
  for (const std::string& note : result.notes) print_text("note: {}\n", note);
  const CheckpointState& state = result.state;
  print_text("step {} ({} updates, {} skipped), {} samples, loss scale {}\n", state.step,
             state.optimizer_steps, state.skipped_steps, state.samples, state.loss_scale);
  print_text("{} tensors, {} in {:.1f} s ({:.0f} MB/s): every one finite{}\n", result.tensors,
             format_bytes(result.bytes), result.seconds,
             static_cast<double>(result.bytes) / 1e6 / std::max(result.seconds, 1e-9),
             arguments.dry_run ? "; nothing written (--dry-run)" : "");
  print_text(
      "not taken: random states, and the place in the data: the samples of the rest of this "
      "epoch come in another order\n");
  if (arguments.dry_run) return 0;
  run.make_folders();
  if (!path_exists(run.recipe())) write_file_atomically(run.recipe(), resolved_yaml(loaded));
  print_text("{}\ngo on: dstrain launch {} --resume {}\n", result.path.string(), arguments.recipe,
             run.root().string());
  return 0;
}

}  // namespace

Command add_checkpoint_import(CLI::App& root) {
  auto arguments = std::make_shared<ImportArguments>();
  CLI::App* app = root.add_subcommand(
      "import",
      "Make a checkpoint of dstrain from one of DeepSpeed (ZeRO 0 to 3, universal), torch's FSDP2 "
      "(distributed checkpoint), whole FSDP states or a folder of transformers' Trainer, with "
      "weights, moments, step, samples, skipped steps and loss scale.\n"
      "Nothing of the files is executed. Master weights are held against the weights of the "
      "forward pass bit for bit; what does not fit is named, and then nothing is written. Any "
      "number of ranks goes on from it.\n"
      "Example: dstrain checkpoint import runs_of_deepspeed/global_step1000 runs/moved --recipe "
      "moved.yaml");
  app->add_option("source", arguments->source,
                  "Folder of the checkpoint, or the folder with the file `latest`.")
      ->required()
      ->check(input_folder());
  app->add_option("run", arguments->run,
                  "Run directory to make; `launch --resume` of it goes on from the checkpoint.")
      ->required();
  app->add_option("--recipe", arguments->recipe,
                  "The recipe that goes on: model, optimizer, batch.")
      ->required()
      ->check(input_file());
  add_overrides(*app, arguments->set);
  app->add_option("--accept", arguments->accept,
                  "Take a difference between the checkpoint and the recipe: optimizer.betas, "
                  "optimizer.eps, optimizer.weight_decay, optimizer.momentum, batch.global, or "
                  "step (a count of updates that does not fit the steps). Repeatable.")
      ->allow_extra_args(false)
      ->check(CLI::IsMember({"optimizer.betas", "optimizer.eps", "optimizer.weight_decay",
                             "optimizer.momentum", "batch.global", "step"}));
  app->add_flag("--weights-only", arguments->weights_only,
                "Weights alone: a checkpoint of step 0 with new moments.");
  app->add_flag("--dry-run", arguments->dry_run, "Read and check everything, write nothing.");
  return {app, [arguments] { return import(*arguments); }};
}

}  // namespace dstrain
