#include "engine/models/trainable.h"

#include <fmt/format.h>

#include <cmath>
#include <map>
#include <utility>

#include "engine/base/error.h"
#include "engine/models/adapters.h"
#include "engine/models/four_bits.h"
#include "engine/models/groups.h"
#include "engine/models/peft.h"
#include "engine/models/upcycled_weights.h"
#include "engine/nn/linear.h"
#include "engine/recipe/datasets.h"
#include "engine/recipe/phases.h"

namespace dstrain {

namespace {

/// Embedding, head, first and last layer keep the compute dtype: their rounding would cost the
/// most.
void run_inner_layers_in_fp8(const Model& model) {
  constexpr std::size_t kOuter = 2;  // stem and first layer; last layer and head
  for (std::size_t b = kOuter; b + kOuter < model.blocks.size(); ++b) {
    for (Linear* linear : model.blocks[b]->linears()) linear->weight().fp8 = true;
  }
}

/// The maps of layers; those of stem and head are not listed.
void mark_hidden_matrices(const Model& model) {
  for (const auto& block : model.blocks) {
    for (Linear* linear : block->linears())
      linear->weight().hidden_matrix = linear->weight().shape.size() == 2;
  }
}

}  // namespace

Model make_trainable_model(const Recipe& recipe, const ModelInputs& inputs) {
  ModelInputs of_recipe = inputs;
  of_recipe.experts = recipe.experts;
  of_recipe.batch_norm = recipe.batch_norm;
  of_recipe.frames = frames_of(recipe);
  of_recipe.tile_rows = recipe.memory.tiles;
  of_recipe.pairs = recipe.preference.pairs();
  of_recipe.fp16 = recipe.precision.compute == ComputeType::fp16;
  // A group lies on one stage, and stages are cut between blocks.
  if (recipe.parallel.pipeline == 1)
    of_recipe.bucket = std::llround(std::ldexp(recipe.parallel.bucket, 20));
  Model model = make_model(recipe.model, of_recipe);
  mark_hidden_matrices(model);
  freeze(model, recipe.model.frozen,
         recipe.phases.empty() ? "model.frozen" : "model.frozen or phases.frozen");
  if (recipe.lora.rank > 0) add_adapters(model, recipe.lora);
  if (recipe.lora.base == LoraBase::nf4) rest_in_four_bits(model, recipe.lora.double_coded);
  if (recipe.precision.compute == ComputeType::fp8) run_inner_layers_in_fp8(model);
  exempt_from_decay(model, recipe.optimizer.no_decay, "optimizer.no_decay");
  if (!recipe.optimizer.decay_vectors) exempt_vectors_from_decay(model);
  return model;
}

void check_phases(const Recipe& recipe, const ModelInputs& inputs) {
  struct Kind {
    std::vector<std::int64_t> shape;
    bool trained = false;
  };
  std::map<std::string, Kind> before;
  for (int p = 0; p < static_cast<int>(recipe.phases.size()); ++p) {
    const Model model = make_trainable_model(phase_recipe(recipe, p), inputs);
    std::map<std::string, Kind> now;
    for (const Parameter* parameter : all_parameters(model)) {
      for (const Piece& part : parameter->parts)
        now[part.name] = {part.shape, parameter->trainable};
    }
    for (const auto& [name, kind] : before) {
      const auto found = now.find(name);
      if (found == now.end() || found->second.shape != kind.shape) {
        throw Error(ErrorKind::usage,
                    fmt::format("phases.{}.image_size: the weights {} have another shape than in "
                                "the phase before",
                                p, name),
                    "leave image_size out of the phases of this model");
      }
      if (kind.trained && !found->second.trained) {
        throw Error(ErrorKind::usage,
                    fmt::format("phases.{}.frozen: {} was trained in the phase before", p, name),
                    "a phase may free tensors of the one before, not freeze others");
      }
    }
    before = std::move(now);
  }
}

std::unique_ptr<WeightSource> first_weights(const Recipe& recipe, Model& model,
                                            std::vector<std::string>& notes) {
  notes.insert(notes.end(), model.notes.begin(), model.notes.end());
  const auto base = [&]() -> std::unique_ptr<WeightSource> {
    if (recipe.model.weights.empty()) return make_random_weights(recipe.run.seed);
    if (recipe.experts.upcycle)
      return open_upcycled_weights(recipe.model, model, recipe.run.seed, notes);
    return open_weights(recipe.model.weights, model, recipe.run.seed, notes);
  };
  auto source = base();
  if (recipe.lora.rank > 0 && !recipe.lora.weights.empty())
    source = open_adapter(recipe.lora.weights, model, recipe.lora, std::move(source));
  return source;
}

}  // namespace dstrain
