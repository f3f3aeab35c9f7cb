#include "engine/models/model.h"

#include "engine/models/vit.h"

namespace dstrain {

Model make_model(const ModelConfig& config, int data_classes) {
  const VitConfig vit = vit_config(config, data_classes);
  return {.family = "vit",
          .blocks = make_vit(vit),
          .config_json = vit_config_json(vit),
          .image_size = static_cast<int>(vit.image_size),
          .channels = static_cast<int>(vit.channels),
          .classes = static_cast<int>(vit.classes)};
}

ModelCost model_cost(Model& model, const BatchShape& shape) {
  ModelCost cost;
  for (const auto& block : model.blocks) {
    GroupCost group;
    group.name = block->name();
    for (const Parameter* parameter : block->parameters())
      group.tensor_sizes.push_back(parameter->numel());
    cost.blocks.push_back(block->cost(shape));
    cost.blocks.back().groups = {static_cast<int>(cost.groups.size())};
    cost.groups.push_back(std::move(group));
  }
  // Each sample: stored pixels, images in compute dtype, label, weight and sample number.
  const std::int64_t pixels = std::int64_t{model.channels} * model.image_size * model.image_size;
  cost.batch_bytes = shape.micro_batch * (pixels * (1 + shape.compute_bytes) + 8 + 4 + 8);
  return cost;
}

}  // namespace dstrain
