#include "engine/models/image/stage.h"

#include <utility>

#include "engine/kernels/pool/ops_norm_pool.h"
#include "engine/nn/image_layers.h"
#include "engine/nn/parameter_order.h"

namespace dstrain {

std::vector<Parameter*> ConvStage::parameters() {
  std::vector<Parameter*> list;
  for (Layer& layer : layers_) {
    layer.conv.add_parameters(list);
    if (layer.norm) layer.norm->add_parameters(list);
  }
  return matrices_first(std::move(list));
}

std::vector<BlockState*> ConvStage::state() {
  std::vector<BlockState*> list;
  for (Layer& layer : layers_) {
    if (layer.norm) layer.norm->add_states(list);
  }
  return list;
}

bool ConvStage::pools_in_layer() const {
  const std::optional<BatchNorm>& norm = layers_.back().norm;
  return pool_ && ops::norm_pool_fits(*pool_) &&
         (!norm || norm->activation() == ops::ImageActivation::relu);
}

Features ConvStage::run(LayerPass& pass, const Features& input) {
  Features x = input;
  const std::string pool_name = name() + ".pool";
  for (Layer& layer : layers_) {
    const bool pools = &layer == &layers_.back() && pools_in_layer();
    if (layer.norm) {
      x = layer.conv.run(pass, x);
      x = pools ? layer.norm->run_pool(pass, x, *pool_, pool_name) : layer.norm->run(pass, x);
    } else {
      x = pools ? layer.conv.run_pool(pass, x, *pool_, pool_name)
                : layer.conv.run(pass, x, ops::ImageActivation::relu);
    }
  }
  return pool_ && !pools_in_layer() ? max_pool(pass, x, *pool_, pool_name) : x;
}

}  // namespace dstrain
