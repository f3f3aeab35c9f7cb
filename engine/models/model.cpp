#include "engine/models/model.h"

#include <fmt/format.h>

#include <map>
#include <numeric>
#include <set>

#include "engine/base/error.h"
#include "engine/models/family.h"
#include "engine/models/groups.h"
#include "engine/models/language_head.h"
#include "engine/nn/block_state.h"

namespace dstrain {

Model make_model(const ModelConfig& config, const ModelInputs& inputs) {
  const Family& family = find_family(config);
  Model model = family.make(config, family.recipe(), inputs);
  model.family = &family;
  if (model.experts_per_token == 0 && !inputs.splits.expert.whole()) {
    throw Error(ErrorKind::usage,
                fmt::format("parallel.expert: {}, but the model has no experts",
                            inputs.splits.expert.count),
                "leave it out, or use a mixture of experts, such as qwen2.5-3b-moe");
  }
  if (inputs.tile_rows > 0 && model.tile_rows == 0) {
    throw Error(ErrorKind::usage,
                fmt::format("memory.tiles: {} rows, but layers of {} have no MLP of all rows{}",
                            inputs.tile_rows, config.name,
                            model.experts_per_token > 0 ? ", they have experts" : ""),
                "leave it out");
  }
  model.splits = inputs.splits;
  return model;
}

bool is_language_model(const ModelConfig& config) {
  return find_family(config).recipe().modality == Modality::text;
}

std::vector<Parameter*> all_parameters(const Model& model) {
  std::vector<Parameter*> list;
  std::set<const Parameter*> seen;
  for (const auto& block : model.blocks) {
    for (Parameter* parameter : block->parameters()) {
      if (seen.insert(parameter).second) list.push_back(parameter);
    }
  }
  return list;
}

const Parameter* tied_table(const Model& model) {
  const Parameter* table = nullptr;
  for (const Parameter* parameter : all_parameters(model)) {
    for (const Piece& part : parameter->parts) {
      if (part.name == kLanguageHeadWeight) return nullptr;
      if (part.name == model.family->embedding) table = parameter;
    }
  }
  return table;
}

std::vector<BlockState*> all_states(const Model& model) {
  std::vector<BlockState*> list;
  for (const auto& block : model.blocks) {
    const std::vector<BlockState*> own = block->state();
    list.insert(list.end(), own.begin(), own.end());
  }
  return list;
}

namespace {

/// Between the matrices each tensor rank has its part of a micro-batch's rows.
void require_even_rows(const Model& model, std::int64_t micro_batch) {
  const std::int64_t ranks = model.splits.tensor.count, rows = micro_batch * model.tokens;
  if (rows % ranks == 0) return;
  const std::int64_t step = ranks / std::gcd<std::int64_t>(ranks, model.tokens);
  throw Error(ErrorKind::usage,
              fmt::format("parallel.tensor: {} ranks do not divide the {} x {} = {} rows of a "
                          "micro-batch (batch.micro x tokens of a sample)",
                          ranks, micro_batch, model.tokens, rows),
              fmt::format("use a multiple of {} for batch.micro", step));
}

}  // namespace

ModelCost model_cost(Model& model, const BatchShape& shape) {
  require_even_rows(model, shape.micro_batch);
  ModelCost cost;
  const GroupedParameters grouped = group_parameters(model);
  std::map<const Parameter*, int> readers;  // blocks
  for (const auto& block : model.blocks)
    for (const Parameter* parameter : block->parameters()) ++readers[parameter];
  for (std::size_t g = 0; g < grouped.groups.size(); ++g) {
    GroupCost group;
    group.name = grouped.names[g];
    group.trainable = grouped.groups[g].front()->trainable;
    group.cut = grouped.groups[g].front()->cut;
    group.of_one_reader = std::ranges::all_of(
        grouped.groups[g], [&](const Parameter* parameter) { return readers.at(parameter) == 1; });
    for (const Parameter* parameter : grouped.groups[g]) {
      group.tensor_sizes.push_back(parameter->stored_elements(shape.compute_bytes));
      if (parameter->nf4) group.coded_away += parameter->numel() - group.tensor_sizes.back();
      if (parameter->shape.size() >= 2 && !parameter->nf4) ++group.leading_matrices;
      if (!parameter->hidden_matrix) continue;
      ++group.hidden_tensors;
      for (const Piece& part : parameter->parts)
        group.matrices.push_back({part.rows.size(), part.columns.size()});
    }
    cost.groups.push_back(std::move(group));
  }
  for (std::size_t b = 0; b < model.blocks.size(); ++b) {
    cost.blocks.push_back(model.blocks[b]->cost(shape));
    BlockCost& block = cost.blocks.back();
    block.groups = grouped.of_block[b];
    for (const BlockState* state : model.blocks[b]->state()) {
      block.state_bytes += state_bytes(*state);
      if (state->change != StateChange::step_mean) continue;
      // The sum of a step lies beside the value.
      block.state_bytes += state_bytes(*state);
      block.step_sums += num_elements(state->part.shape);
    }
  }
  if (model.is_language()) {
    // Each token: itself, its label and the label's weight; in a part of a sample also its row and
    // position.
    const int ranks = model.splits.sequence.count;
    cost.batch_bytes =
        shape.micro_batch * (model.sequence / ranks) * (8 + 8 + 4 + (ranks > 1 ? 4 + 4 : 0));
    return cost;
  }
  // Each sample: stored pixels, images in compute dtype, label, weight and sample number.
  const std::int64_t pixels = std::int64_t{model.channels} * model.image_size * model.image_size;
  cost.batch_bytes = shape.micro_batch * (pixels * (1 + shape.compute_bytes) + 8 + 4 + 8);
  return cost;
}

}  // namespace dstrain
