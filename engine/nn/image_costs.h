#pragma once

#include <string>
#include <vector>

#include "engine/kernels/pool/ops_pool.h"
#include "engine/nn/batch_norm.h"
#include "engine/nn/conv.h"
#include "engine/nn/image_shape.h"
#include "engine/nn/layer_norm.h"
#include "engine/nn/linear.h"
#include "engine/nn/mlp.h"
#include "engine/program/cost.h"

namespace dstrain {

/// Adds up what the layers of a block of images cost, called in the order in which they run.
///
/// Each tensor is counted once: a layer counts what it keeps of its input, unless that is the
/// block's input or another layer keeps it. Kernels are those of a GPU (engine/kernels/README.md):
/// products, and passes for statistics, for normalisation with activation, and for gradients.
class ImageCosts {
 public:
  ImageCosts(std::string block, const ImageShape& input, int compute_bytes);

  /// What follows a convolution without norm in the same operator.
  enum class After { nothing, relu, relu_and_pool };
  /// `kept`: the input is the block's, or another layer counts it.
  ImageShape conv(const Conv& conv, const ImageShape& input, bool kept,
                  After after = After::nothing);
  /// `residual`: another image is added.
  ImageShape norm(const BatchNorm& norm, const ImageShape& input, bool residual = false);
  /// The other norm of BatchNorm::forward_pair.
  ImageShape norm_beside(const BatchNorm& norm, const ImageShape& input);
  /// BatchNorm::forward_depthwise; without `before`, the block's input is convolved. `excited`:
  /// excited_conv follows.
  ImageShape depthwise_norm(const BatchNorm* before, const Conv& conv, const BatchNorm& after,
                            const ImageShape& input, bool excited);
  /// `activated`: the layer before is a convolution with an activation, which keeps its output.
  ImageShape max_pool(const std::string& name, const ops::PoolShape& shape, const ImageShape& input,
                      bool activated);
  /// The pool of After::relu_and_pool, or with `norm` that of ops::batch_norm_max_pool, which keeps
  /// and does what norm() does otherwise.
  ImageShape relu_max_pool(const std::string& name, const ops::PoolShape& shape,
                           const ImageShape& input, const BatchNorm* norm);
  /// A 1x1 convolution of the input times the gate of its sample's channel, behind
  /// depthwise_norm of `expanded`; the gates' own cost is another.
  ImageShape excited_conv(const Conv& conv, const ImageShape& expanded, const ImageShape& input);
  /// A map of `rows` rows, which it keeps unless `kept`; its weight's gradient is not put off.
  void linear(const Linear& linear, std::int64_t rows, bool kept = false);
  /// The layer norm of `rows` rows; `kept` as conv() has it.
  void layer_norm(const LayerNorm& norm, std::int64_t rows, bool kept);
  /// An activation behind `linear`, whose output it keeps.
  void activation(const Linear& linear, std::int64_t rows);
  /// Means over each image.
  void average_pool(const std::string& name, const ImageShape& input);
  /// `mlp` of every pixel of the image, then ops::layer_scale by `scale`, which adds the block's
  /// input.
  void scaled_mlp(const Mlp& mlp, const Parameter& scale, const ImageShape& image);
  /// Another layer, with its kernels.
  void add(LayerCost layer, std::vector<KernelCost> forward = {},
           std::vector<KernelCost> backward = {});

  [[nodiscard]] Bytes bytes(const ImageShape& shape) const { return shape.bytes(compute_bytes_); }
  [[nodiscard]] int compute_bytes() const { return compute_bytes_; }

  /// Tensors that a layer's forward, and its backward, hold at once beside what is kept.
  void hold(Bytes forward, Bytes backward);
  /// Held all the while, forward and backward, beside what layers hold.
  void hold_also(Bytes bytes) { held_ += bytes; }
  /// Cost of a block that hands on an image.
  [[nodiscard]] BlockCost finish(const ImageShape& output);
  /// Cost of one that hands on `boundary`.
  [[nodiscard]] BlockCost finish(std::vector<BoundaryTensor> boundary);

 private:
  /// Size of the windows of the image, where a GPU convolves by them in memory.
  [[nodiscard]] Bytes columns_bytes(const ops::ConvShape& shape, const ImageShape& output) const;

  int compute_bytes_;
  Bytes input_;
  Bytes held_ = 0;
  BlockCost cost_;
  std::vector<LayerCost> layers_;
};

}  // namespace dstrain
