#pragma once

#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "engine/models/model.h"
#include "engine/program/program.h"

namespace dstrain {

/// What the blocks of one program hand on and keep, by buffer of the program.
struct Activations {
  std::vector<Tensors> outputs;  ///< what a block returned, with autograd's graph where it was kept
  std::vector<Tensors> inputs;   ///< of saved tensors: the inputs that autograd's graph begins with
  std::vector<DeferredWork> deferred;  ///< of held tensors: the second part of a backward

  explicit Activations(std::size_t buffers)
      : outputs(buffers), inputs(buffers), deferred(buffers) {}
  /// Lets go of what the action frees.
  void free(const Action& action);
};

/// Runs blocks forward and backward, on the current stream.
class BlockRunner {
 public:
  explicit BlockRunner(Model& model) : model_(model) {}

  /// Hears of each output in turn; null: nobody does.
  using Watch = std::function<void(int block, const Tensors& output)>;
  void watch(Watch watch) { watch_ = std::move(watch); }

  /// Forward, or forward again.
  void forward(const Program& program, const Action& action, const Batch& batch,
               const BlockContext& context, Activations& activations);
  /// A backward, or its first part. `loss_gradient`: what the head begins with.
  void backward(const Program& program, const Action& action, const at::Tensor& loss_gradient,
                Activations& activations);
  /// The second part.
  static void backward_weight(const Program& program, const Action& action,
                              const Activations& activations);

 private:
  Model& model_;
  Watch watch_;
  /// By lane: of the block whose backward is next, inside a chunk.
  std::map<Lane, Tensors> output_gradients_;
};

}  // namespace dstrain
