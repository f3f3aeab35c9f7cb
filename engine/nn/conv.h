#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "engine/kernels/conv/ops_conv.h"
#include "engine/kernels/parameter.h"
#include "engine/kernels/pool/ops_norm_pool.h"
#include "engine/nn/feature_shape.h"
#include "engine/nn/layer_pass.h"
#include "engine/nn/linear.h"

namespace dstrain {

/// A convolution of images; files name the tensors NAME.weight and NAME.bias.
class Conv {
 public:
  /// The bias, if any, starts at zero.
  Conv(const std::string& name, const ops::ConvShape& shape, const InitialWeights& init,
       bool has_bias = false);

  /// [B, H, W, in] -> [B, H', W', out]; `left` and `leaves` as ops::conv has them.
  [[nodiscard]] at::Tensor forward(const at::Tensor& x_BHWC,
                                   ops::ImageActivation activation = ops::ImageActivation::none,
                                   const ops::ResidualGradient& left = {},
                                   const ops::ResidualGradient& leaves = {}) {
    return ops::conv(x_BHWC, shape_, weight_, bias(), activation, left, leaves);
  }
  /// The largest of each window of what forward() with ReLU gives; ops::norm_pool_fits.
  [[nodiscard]] at::Tensor forward_pool(const at::Tensor& x_BHWC, const ops::PoolShape& pool) {
    return ops::conv_max_pool(x_BHWC, shape_, weight_, bias(), pool);
  }

  /// forward() or its cost. Without a norm behind it, ReLU keeps what it gives.
  [[nodiscard]] Features run(LayerPass& pass, const Features& x,
                             ops::ImageActivation activation = ops::ImageActivation::none,
                             const ops::ResidualGradient& left = {});
  /// forward_pool() or its cost, of which the pool's is that of layer `pool_name`.
  [[nodiscard]] Features run_pool(LayerPass& pass, const Features& x, const ops::PoolShape& pool,
                                  const std::string& pool_name);

  [[nodiscard]] const ops::ConvShape& shape() const { return shape_; }
  [[nodiscard]] Parameter& weight() { return weight_; }
  [[nodiscard]] const Parameter& weight() const { return weight_; }
  [[nodiscard]] bool has_bias() const { return has_bias_; }
  /// Null without a bias.
  [[nodiscard]] Parameter* bias() { return has_bias_ ? &bias_ : nullptr; }
  void add_parameters(std::vector<Parameter*>& list) {
    list.push_back(&weight_);
    if (has_bias_) list.push_back(&bias_);
  }
  [[nodiscard]] FeatureShape output(const FeatureShape& input) const {
    return {input.samples, shape_.output_side(input.height), shape_.output_side(input.width),
            shape_.out};
  }
  /// Its parameters and FLOPs.
  [[nodiscard]] LayerCost cost(const FeatureShape& input) const;

 private:
  /// What follows a convolution without norm in the same operator.
  enum class After { nothing, relu, relu_and_pool };
  [[nodiscard]] Features counted(LayerCosts& costs, const Features& x, After after) const;

  ops::ConvShape shape_;
  bool has_bias_;
  Parameter weight_;
  Parameter bias_;
};

}  // namespace dstrain
