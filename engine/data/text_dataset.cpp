#include "engine/data/text_dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/base/error.h"
#include "engine/data/formats.h"
#include "engine/data/text/split.h"
#include "engine/data/text/tokenizer_source.h"
#include "engine/data/text_rows.h"
#include "engine/recipe/datasets.h"

namespace dstrain {
namespace {

using namespace text;

constexpr double kMuchPadding = 0.2;  // of a row

/// Says how much a step computes in vain, where that is much.
void note_padding(const DataConfig& data, const Selection& selection, ProgressSink& progress) {
  if (data.packing) return;
  const TextStatistics rows{.samples = std::ssize(selection.samples),
                            .tokens = std::accumulate(selection.lengths.begin(),
                                                      selection.lengths.end(), std::int64_t{0}),
                            .sequence = data.sequence};
  if (rows.padding_share() < kMuchPadding) return;
  progress.note(fmt::format(
      "data, train: {:.0f} % of each row of {} tokens is padding on average, which a step computes "
      "like the rest: data.packing: true puts several samples into a row",
      100 * rows.padding_share(), data.sequence));
}

}  // namespace

std::unique_ptr<TextDataset> open_text(const DataConfig& data, Split split,
                                       const std::string& model_weights, std::int64_t vocab_size,
                                       std::int64_t seed, ProgressSink* progress) {
  if (is_generated(dataset_row(data.name))) {
    return make_random_rows(formats::random_size(data, split), data.sequence, vocab_size, seed,
                            split);
  }
  OpenSplit open =
      open_split(data, split == Split::test, tokenizer_source(data, model_weights), progress);
  check_vocabulary(data, open, vocab_size);
  if (progress != nullptr && split == Split::train) note_padding(data, open.selection, *progress);
  return make_rows(data, std::move(open.file), std::move(open.selection), seed);
}

std::vector<TextSample> sample_prompts(const DataConfig& data, const std::string& model_weights,
                                       int count, ProgressSink* progress) {
  if (is_generated(dataset_row(data.name)) || count == 0) return {};
  const OpenSplit open = open_split(data, true, tokenizer_source(data, model_weights), progress);
  const auto tokenizer = Tokenizer::open(tokenizer_file(data, model_weights));
  std::vector<TextSample> samples;
  for (std::size_t i = 0; i < open.selection.samples.size() && std::ssize(samples) < count; ++i) {
    const std::int64_t at = open.selection.samples[i];
    std::vector<std::int64_t> tokens(static_cast<std::size_t>(open.file.length(at)));
    open.file.copy(at, tokens);
    const std::vector<std::int32_t> ids(tokens.begin(), tokens.end());
    const std::span<const std::int32_t> all(ids);
    const std::size_t response = open.file.sample(at).response;
    tokens.resize(response);
    samples.push_back({.prompt = tokenizer->decode(all.first(response), false),
                       .response = tokenizer->decode(all.subspan(response)),
                       .prompt_tokens = std::move(tokens),
                       .end_token = open.file.summary().end});
  }
  return samples;
}

double TextStatistics::padding_share() const {
  const auto places = static_cast<double>(samples) * sequence;
  return places == 0 ? 0 : 1 - static_cast<double>(tokens) / places;
}

double TextStatistics::packed_share() const {
  const auto places = static_cast<double>(packed_rows) * sequence;
  return places == 0 ? 0 : static_cast<double>(tokens) / places;
}

TextStatistics text_statistics(const DataConfig& data, Split split,
                               const std::string& model_weights, std::int64_t seed,
                               ProgressSink* progress) {
  const OpenSplit open =
      open_split(data, split == Split::test, tokenizer_source(data, model_weights), progress);
  const Selection& selection = open.selection;
  TextStatistics s;
  s.records = open.file.summary().num_records;
  s.samples = std::ssize(selection.samples);
  s.cut = selection.cut;
  s.left_out = selection.too_long + selection.unused;
  s.sequence = data.sequence;
  std::vector<std::int64_t> lengths;
  for (std::size_t i = 0; i < selection.samples.size(); ++i) {
    const std::int64_t at = selection.samples[i];
    lengths.push_back(open.file.length(at));
    s.mean += static_cast<double>(lengths.back()) / static_cast<double>(s.samples);
    s.tokens += selection.lengths[i];
    s.targets += num_targets(data.loss, selection.lengths[i], open.file.sample(at).response);
  }
  std::ranges::sort(lengths);
  // Nearest rank.
  const auto quantile = [&](double q) {
    const double rank = std::ceil(q * static_cast<double>(lengths.size()));
    return lengths[static_cast<std::size_t>(std::max(1.0, rank)) - 1];
  };
  s.p50 = quantile(0.5);
  s.p95 = quantile(0.95);
  s.longest = lengths.back();
  s.packed_rows = pack(selection.lengths, data.sequence, seed).rows();
  return s;
}

}  // namespace dstrain
