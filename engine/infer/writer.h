#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/data/tokenizer/tokenizer.h"
#include "engine/infer/cached_model.h"
#include "engine/infer/sampler.h"

namespace dstrain {

struct WriteOptions {
  int max_tokens = 256;  ///< of an answer
  int samples = 1;       ///< answers to each prompt
  std::uint64_t seed = 42;
  SamplingOptions sampling;
  std::vector<std::int64_t> stop_tokens;  ///< end an answer, and are no part of it
  std::vector<std::string> stop_texts;    ///< the same
  /// A step starts before the tokens of the one before are known here, so that a device does not
  /// wait for the host; each answer that a stop token ends costs one step more. Nothing: on a GPU.
  std::optional<bool> ahead = {};
};

struct WrittenAnswer {
  std::size_t prompt = 0;
  int sample = 0;
  std::string text = {};
  int tokens = 0;              ///< that were chosen, the stop token too
  std::string_view ended;      ///< "stop", "length" or "room": the cache, or the model, has no more
  double log_probability = 0;  ///< of all of them
};

/// Answers to `prompts`, each with one token or more. `models`, one or more copies of one model on
/// devices of their own, take prompts from one queue, each in a thread. A model reads and writes
/// answers together as far as its slots go; one that ends makes room for the next. `done` gets each
/// answer when it is whole, in any order, one at a time, `text` (may be null) the text of the first
/// prompt's as it grows. `stop` (may be null) ends all answers early where it says so. A prompt
/// without room for a token is answered by none.
void write_answers(std::span<CachedModel* const> models, const Tokenizer& tokenizer,
                   std::span<const std::vector<std::int64_t>> prompts, const WriteOptions& options,
                   const std::function<void(WrittenAnswer)>& done,
                   const std::function<void(std::string_view)>& text = nullptr,
                   const std::function<bool()>& stop = nullptr);

}  // namespace dstrain
