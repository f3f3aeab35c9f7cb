#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "engine/device/graph.h"
#include "engine/device/stream.h"
#include "engine/infer/sampler.h"
#include "engine/kernels/attention/cached_attention.h"
#include "engine/models/model.h"

namespace dstrain {

/// A language model that keeps keys and values of what it has read, so that each further token
/// costs one row. A slot holds one sequence; sequences come and go while others go on.
class CachedModel {
 public:
  /// `model` has its values on `device` in `dtype` and outlives this. Error{usage} where it has a
  /// layer that keeps nothing.
  CachedModel(Model& model, c10::Device device, at::ScalarType dtype, std::int64_t slots,
              std::int64_t capacity);

  [[nodiscard]] c10::Device device() const { return device_; }
  [[nodiscard]] std::int64_t slots() const { return slots_; }
  [[nodiscard]] std::int64_t capacity() const { return capacity_; }

  /// Reads prompts, none empty or longer than the capacity, each into a slot of its own, whose
  /// earlier content is gone; gives fp32 logits [prompts, vocabulary] of what follows each.
  [[nodiscard]] at::Tensor read(std::span<const std::vector<std::int64_t>> prompts,
                                std::span<const std::int64_t> slots);
  /// Reads one token for each slot, at its position; gives fp32 logits [slots, vocabulary]. A slot
  /// without a sequence takes any token at position 0.
  [[nodiscard]] at::Tensor advance(std::span<const std::int64_t> tokens,
                                   std::span<const std::int32_t> positions);
  /// After advance(): the most likely token of each row, as choose_tokens() takes it at temperature
  /// 0, found together with the logits.
  [[nodiscard]] Chosen most_likely() const;

  /// Bytes of keys and values of one token.
  [[nodiscard]] static Bytes token_bytes(const Model& model, at::ScalarType dtype);

 private:
  struct Pass {
    at::Tensor tokens;  ///< [samples, tokens] int64
    ops::Sequences sequences;
    at::Tensor slots;      ///< [rows] int32
    at::Tensor last = {};  ///< rows whose logits are wanted; undefined: all
    bool whole = false;
  };
  /// A token and its position for each slot, in one tensor, so that one copy brings both.
  struct StepInput {
    StepInput() = default;
    StepInput(std::int64_t slots, const at::TensorOptions& options);
    static constexpr std::int64_t kTokenBytes = 8, kPositionBytes = 4;
    at::Tensor bytes, tokens, positions;  ///< [slots] int64 and int32: views
  };
  [[nodiscard]] at::Tensor forward(const Pass& pass);
  void forward_step();

  Model& model_;
  c10::Device device_;
  Stream stream_;
  std::int64_t slots_, capacity_;
  std::vector<ops::KeyValues> caches_;  ///< of each block; of stem and head empty
  StepInput host_input_, input_;
  Pass step_;  ///< one token for each slot, of input_
  at::Tensor step_logits_;
  at::Tensor step_choice_;  ///< [2, slots] fp64: tokens and their logarithms, exact as such
  at::Tensor host_choice_;
  Graph step_graph_;
  int steps_before_graph_ = 2;  ///< products choose their kernels when they run first
};

}  // namespace dstrain
