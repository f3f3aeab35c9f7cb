#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/device/graph.h"
#include "engine/device/stream.h"
#include "engine/infer/sampler.h"
#include "engine/kernels/attention/cached_attention.h"
#include "engine/models/language_head.h"
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
  /// Rows of prompts that are worth reading together: a narrow model's layers take so little time
  /// that the host cannot start them as fast.
  [[nodiscard]] std::int64_t rows_at_once() const;

  /// Prompts that the device may still read.
  struct Reading {
    at::Tensor logits;  ///< [prompts, vocabulary], of what follows each; there once it is finished
    at::Tensor choice;  ///< as HostStep::choice
    Event done;
  };
  /// Starts to read prompts, none empty or longer than the capacity, each into a slot of its own,
  /// whose earlier content is gone.
  [[nodiscard]] Reading read(std::span<const std::vector<std::int64_t>> prompts,
                             std::span<const std::int64_t> slots);
  /// Waits for it; gives the most likely token behind each prompt.
  [[nodiscard]] static Chosen finish(const Reading& reading);
  /// Starts to read one token for each slot, at its position. Token kLikely is the most likely one
  /// of the step before, which need not be known here yet; a slot without a sequence takes it at
  /// position 0. At most kStepsOnWay steps are started and not finished.
  void start(std::span<const std::int64_t> tokens, std::span<const std::int32_t> positions);
  /// Waits for the first of the steps that were started; gives the most likely token of each row.
  [[nodiscard]] Chosen finish();
  /// Logits of the step that was started last, [slots, vocabulary]; there once it is finished.
  [[nodiscard]] const at::Tensor& logits() const { return step_logits_; }

  static constexpr std::int64_t kLikely = -1;
  static constexpr std::size_t kStepsOnWay = 2;

  /// Heads that the kernels of a GPU do not take; nothing: they do.
  [[nodiscard]] static std::optional<SizeMisfit> misfit(const Model& model);
  /// Bytes of a slot: keys and values of `capacity` tokens, and the scores of one, twice in fp32
  /// while one is chosen.
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
    at::Tensor choice;             ///< [2, slots] int64: tokens; fp32 logarithms of probabilities
    Event done;
  };
  [[nodiscard]] at::Tensor forward(const Pass& pass);
  void forward_step();

  Model& model_;
  LanguageHead& head_;
  c10::Device device_;
  Stream stream_;
  std::int64_t slots_, capacity_;
  std::vector<ops::KeyValues> caches_;  ///< of each block; of stem and head empty
  std::vector<HostStep> host_steps_;    ///< kStepsOnWay, used by turns
  std::size_t started_ = 0, finished_ = 0;
  at::Tensor step_choice_;  ///< as HostStep::choice; each step begins with the last one's tokens
  Pass step_;               ///< one token for each slot
  at::Tensor step_logits_;
  Graph step_graph_;
  int steps_before_graph_ = 2;  ///< products choose their kernels when they run first
};

}  // namespace dstrain
