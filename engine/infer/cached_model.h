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
  /// Starts to read one token for each slot, at its position. Token kLikely is the most likely one
  /// of the step before, which need not be known here yet; a slot without a sequence takes it at
  /// position 0. At most kStepsOnWay steps are started and not finished.
  void start(std::span<const std::int64_t> tokens, std::span<const std::int32_t> positions);
  /// Waits for the first of the steps that were started; gives the most likely token of each row, as
  /// choose_tokens() takes it at temperature 0.
  [[nodiscard]] Chosen finish();
  /// Logits of the step that was started last, fp32 [slots, vocabulary]; there once it is finished.
  [[nodiscard]] const at::Tensor& logits() const { return step_logits_; }

  static constexpr std::int64_t kLikely = -1;
  static constexpr std::size_t kStepsOnWay = 2;

  /// Bytes of a slot: keys and values of `capacity` tokens, and the scores of one in fp32, which are
  /// held once more while one is chosen.
  [[nodiscard]] static Bytes slot_bytes(const Model& model, at::ScalarType dtype,
                                        std::int64_t capacity);

 private:
  struct Pass {
    at::Tensor tokens;  ///< [samples, tokens] int64
    ops::Sequences sequences;
    at::Tensor slots;      ///< [rows] int32
    at::Tensor last = {};  ///< rows whose logits are wanted; undefined: all
    bool whole = false;
  };
  /// What the host gives to a step and takes from it, in pinned memory on a GPU.
  struct HostStep {
    at::Tensor tokens, positions;  ///< [slots] int64 and int32
    at::Tensor choice;             ///< as step_choice_
    Event done;
  };
  [[nodiscard]] at::Tensor forward(const Pass& pass);
  void forward_step();

  Model& model_;
  c10::Device device_;
  Stream stream_;
  std::int64_t slots_, capacity_;
  std::vector<ops::KeyValues> caches_;  ///< of each block; of stem and head empty
  std::vector<HostStep> host_steps_;  ///< kStepsOnWay, used by turns
  std::size_t started_ = 0, finished_ = 0;
  at::Tensor likely_;  ///< [slots] int64: of the last step; each step begins with it
  Pass step_;          ///< one token for each slot
  at::Tensor step_logits_;
  at::Tensor step_choice_;  ///< [2, slots] fp64: tokens and their logarithms, exact as such
  Graph step_graph_;
  int steps_before_graph_ = 2;  ///< products choose their kernels when they run first
};

}  // namespace dstrain
