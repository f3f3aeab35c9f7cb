#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "engine/mesh/nf4_storage.h"
#include "engine/mesh/pieces.h"
#include "engine/mesh/split.h"

namespace dstrain {

enum class Init {
  zeros,
  ones,
  normal,            ///< mean 0, std `init_std`
  truncated_normal,  ///< mean 0, std `init_std`, cut at 2 std
  uniform,           ///< mean 0, std `init_std`: within sqrt(3) `init_std`
  constant,          ///< `init_std` everywhere
};

/// A weight in eight bits, made and read by the operators (engine/kernels/linear/fp8.h).
struct Fp8Copies {
  at::Tensor rows, columns, scale;
  std::uint64_t version = 0;  ///< of the value that they were made of
};

/// How far the sum in a gradient's buffer is.
enum class GradientState {
  empty,  ///< it holds nothing yet: the next operator overwrites it instead of adding
  held,   ///< no operator has added to it since its owner settled it
  added,
};

/// Work that adds to gradients, to be run in this order; it holds the tensors that it needs.
using DeferredWork = std::vector<std::function<void()>>;

/// A weight of a block. It owns no memory: the state store binds `value` and `gradient` to its flat
/// buffers, and under ZeRO-3 binds `value` anew at each gather. Operators write gradients straight
/// into `gradient`, by a GradientSink (engine/kernels/gradient_sink.h).
struct Parameter {
  /// What this rank holds, stacked along dim 0; more than one where files keep apart what we
  /// multiply at once (query, key, value).
  std::vector<Piece> parts;
  std::vector<std::int64_t> shape;  ///< of what this rank holds
  Init init = Init::zeros;
  double init_std = 0.02;

  bool decay = true;     ///< weight decay reaches it
  double lr_factor = 1;  ///< of the recipe's learning rate
  /// Parts are matrices [rows, columns] inside a layer, neither of embeddings nor of the head: what
  /// an optimizer of whole matrices (Muon) updates.
  bool hidden_matrix = false;
  Cut cut = Cut::none;    ///< along which axis other ranks hold other elements
  bool trainable = true;  ///< a frozen weight has neither gradient nor optimizer state

  bool fp8 = false;  ///< the products with it run in FP8 where their sizes are multiples of 16
  /// What a linear map's products with it are multiplied by, before they are rounded.
  double output_scale = 1;

  /// A frozen matrix of a linear map that rests in 4 bits; products with it decode it.
  std::optional<Nf4Storage> nf4 = {};

  /// Compute dtype, `shape`; undefined while released. In 4 bits: [stored_elements], bytes of
  /// Nf4Storage.
  at::Tensor value;
  /// `shape`; undefined outside backward and for frozen weights. fp32, or of matrices the compute
  /// dtype (precision.gradients).
  at::Tensor gradient;
  GradientState gradient_state = GradientState::held;
  /// Products for the gradients of a matrix, and of the bias with it, are put there in a backward;
  /// null: they run at once.
  DeferredWork* later = nullptr;

  /// Raised at every change of the value; 0: changes are not counted, so nothing made
  /// of the value is kept.
  std::uint64_t version = 0;
  Fp8Copies fp8_copies;  ///< may be dropped at any time, as when `value` is released

  /// Sets the parts, and the shape that they have together.
  void hold(std::vector<Piece> pieces) {
    parts = std::move(pieces);
    shape = stacked_shape(parts);
  }
  [[nodiscard]] std::int64_t numel() const {
    std::int64_t product = 1;
    for (const std::int64_t size : shape) product *= size;
    return product;
  }
  /// Elements of `width` bytes that it takes at rest.
  [[nodiscard]] std::int64_t stored_elements(int width) const {
    return nf4 ? (nf4->bytes + width - 1) / width : numel();
  }
};

}  // namespace dstrain
