#include "engine/train/session/cached_answers.h"

#include <ATen/ops/zeros.h>
#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <string>
#include <utility>

#include "engine/device/device.h"
#include "engine/infer/cached_model.h"
#include "engine/infer/writer.h"

namespace dstrain {
namespace {

/// Sequences whose keys and values lie in memory at once.
constexpr std::int64_t kMaxSlots = 64;

/// As many as are asked and fit beside what training keeps; at least as many as a micro-batch has.
std::int64_t slots_for(const Model& model, at::ScalarType dtype, std::int64_t samples,
                       const GenerateOptions& options) {
  std::int64_t slots = kMaxSlots;
  if (options.device.is_cuda()) {
    const Bytes row = CachedModel::slot_bytes(model, dtype, options.sequence);
    const MemoryFigures memory = memory_figures(options.device);
    const Bytes room = (memory.device_total - memory.device_used) / 2;
    slots = std::clamp<std::int64_t>(room / row - 1, std::min(options.micro_batch, kMaxSlots),
                                     kMaxSlots);
  }
  return std::min(slots, samples);
}

/// Texts of the samples that this rank answers; those of others are empty.
std::vector<std::string> own_texts(Model& model, at::ScalarType dtype, Communicator& ranks,
                                   const std::vector<TextQuestion>& samples,
                                   const Tokenizer& tokenizer, const GenerateOptions& options) {
  std::vector<std::string> texts(samples.size());
  std::vector<std::vector<std::int64_t>> prompts;
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const bool own = std::cmp_equal(i % static_cast<std::size_t>(ranks.size()), ranks.rank());
    if (!own || samples[i].prompt_tokens.empty()) continue;
    prompts.push_back(samples[i].prompt_tokens);
    places.push_back(i);
  }
  if (prompts.empty()) return texts;
  CachedModel cached(model, options.device, dtype,
                     slots_for(model, dtype, std::ssize(prompts), options), options.sequence);
  CachedModel* const only = &cached;
  write_answers(
      {&only, 1}, tokenizer, prompts,
      {.max_tokens = options.max_tokens,
       .sampling = {},
       .stop_tokens = {samples.front().end_token},
       .stop_texts = {}},
      [&](WrittenAnswer answer) { texts[places[answer.prompt]] = std::move(answer.text); });
  return texts;
}

/// Every rank's texts on every rank. `failed`: whether it has none to give; then so of all.
bool share(std::vector<std::string>& texts, bool failed, Communicator& ranks, c10::Device device) {
  if (ranks.size() == 1) return !failed;
  // Bytes and lengths are exact in fp32.
  const auto count = static_cast<std::int64_t>(texts.size());
  at::Tensor lengths = at::zeros({count + 1});
  float* const length = lengths.mutable_data_ptr<float>();
  for (std::size_t i = 0; i < texts.size(); ++i) length[i] = static_cast<float>(texts[i].size());
  length[count] = failed ? 1 : 0;
  lengths = lengths.to(device);
  ranks.all_reduce(lengths, ReduceOp::sum);
  lengths = lengths.cpu();
  const float* const found = lengths.const_data_ptr<float>();
  if (found[count] > 0) return false;
  const auto max = static_cast<std::int64_t>(*std::max_element(found, found + count));
  if (max == 0) return true;
  at::Tensor bytes = at::zeros({count, max});
  for (std::size_t i = 0; i < texts.size(); ++i) {
    float* const row = bytes.mutable_data_ptr<float>() + static_cast<std::int64_t>(i) * max;
    std::ranges::transform(texts[i], row, [](char c) { return static_cast<unsigned char>(c); });
  }
  bytes = bytes.to(device);
  ranks.all_reduce(bytes, ReduceOp::sum);
  bytes = bytes.cpu();
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const float* const row = bytes.const_data_ptr<float>() + static_cast<std::int64_t>(i) * max;
    texts[i].resize(static_cast<std::size_t>(found[i]));
    std::ranges::transform(row, row + texts[i].size(), texts[i].begin(), [](float value) {
      return static_cast<char>(static_cast<unsigned char>(value));
    });
  }
  return true;
}

}  // namespace

std::optional<std::vector<GeneratedAnswer>> cached_answers(Model& model, at::ScalarType dtype,
                                                           Communicator& ranks,
                                                           const std::vector<TextQuestion>& samples,
                                                           const Tokenizer& tokenizer,
                                                           const GenerateOptions& options) {
  if (options.device.is_cuda() && CachedModel::misfit(model)) return std::nullopt;
  std::vector<std::string> texts(samples.size());
  bool failed = false;
  try {
    texts = own_texts(model, dtype, ranks, samples, tokenizer, options);
  } catch (const c10::OutOfMemoryError&) {
    failed = true;
  }
  synchronize(options.device);
  if (!share(texts, failed, ranks, options.device)) return std::nullopt;
  std::vector<GeneratedAnswer> answers;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const AnswerFigures figures = judge_answer(samples[i], texts[i]);
    answers.push_back({samples[i].prompt, samples[i].response, std::move(texts[i]), figures});
  }
  return answers;
}

}  // namespace dstrain
