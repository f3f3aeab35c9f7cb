#pragma once

#include "engine/models/model.h"
#include "engine/recipe/families.h"

namespace dstrain {

/// A convolutional model (model.trunk) without its classifier on each frame of a clip, the means of
/// its last features, an LSTM over the frames, and a linear map of its last state. Donahue et al.
/// 2015, arXiv:1411.4389, sec. 3. Tensors of the trunk are called as in that model, behind
/// `trunk.`.
[[nodiscard]] Model cnn_lstm_model(const ModelConfig& recipe, const ModelFamily& family,
                                   const ModelInputs& inputs);

}  // namespace dstrain
