#include "engine/data/text_dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <numeric>

#include "engine/base/error.h"
#include "engine/data/formats.h"
#include "engine/data/mixed_sets.h"
#include "engine/data/text/format.h"
#include "engine/data/text/split.h"
#include "engine/data/text/tokenise.h"
#include "engine/data/text/tokenizer_source.h"
#include "engine/data/text_rows.h"
#include "engine/recipe/datasets.h"

namespace dstrain {
namespace {

using namespace text;

constexpr double kMuchPadding = 0.2;  // of a row

/// One list after the other.
template <class Item>
std::vector<Item> joined(std::vector<std::vector<Item>> lists) {
  std::vector<Item> all;
  for (std::vector<Item>& list : lists) std::ranges::move(list, std::back_inserter(all));
  return all;
}

/// Samples of the token file that a row without packing has.
std::int64_t samples_of_row(const DataConfig& data) { return data.pairs ? 2 : 1; }

/// Says how much a step computes in vain, where that is much.
void note_padding(const DataConfig& data, const Selection& selection, ProgressSink& progress) {
  if (data.packing) return;
  const TextStatistics rows{.samples = std::ssize(selection.samples) / samples_of_row(data),
                            .tokens = std::accumulate(selection.lengths.begin(),
                                                      selection.lengths.end(), std::int64_t{0}),
                            .sequence = data.sequence};
  if (rows.padding_share() < kMuchPadding) return;
  if (data.pairs) {
    std::int64_t longest = 0;
    for (std::size_t i = 0; i + 1 < selection.lengths.size(); i += 2)
      longest = std::max<std::int64_t>(longest, selection.lengths[i] + selection.lengths[i + 1]);
    const std::int64_t enough = (longest + 7) / 8 * 8;  // what kernels take
    progress.note(fmt::format(
        "data, train: {:.0f} % of each row of {} tokens is padding on average, which a step "
        "computes like the rest: {}",
        100 * rows.padding_share(), data.sequence,
        enough < data.sequence ? fmt::format("data.sequence: {} holds all pairs, too", enough)
                               : "a smaller data.sequence leaves the longest pairs out"));
    return;
  }
  progress.note(fmt::format(
      "data, train: {:.0f} % of each row of {} tokens is padding on average, which a step computes "
      "like the rest: data.packing: true puts several samples into a row",
      100 * rows.padding_share(), data.sequence));
}

/// Says what share of the tokens is trained, and what of the records may surprise.
void note_training(const DataConfig& data, const OpenSplit& open, ProgressSink& progress) {
  const TokenFileSummary& summary = open.file.summary();
  if (summary.special_texts > 0)
    progress.note(fmt::format(
        "data: {} records have special tokens of the model in what messages say: there they "
        "are text; first {}",
        with_commas(summary.special_texts),
        describe_record(data, open.sources, summary, summary.special_record)));
  if (summary.shortened > 0)
    progress.note(fmt::format(
        "data: {} chats are without their oldest turns, to fit data.sequence ({}); first {}",
        with_commas(summary.shortened), data.sequence,
        describe_record(data, open.sources, summary, summary.shortened_record)));
  if (loss_on(data) == LossOn::all) return;
  constexpr std::size_t kLooked = 1000;
  constexpr double kFew = 0.01;
  const std::size_t size = open.selection.samples.size();
  const std::size_t stride = std::max<std::size_t>(1, size / kLooked);
  std::int64_t targets = 0, tokens = 0;
  for (std::size_t k = 0; k < size; k += stride) {
    targets +=
        num_targets(loss_on(data), open.file, open.selection.samples[k], open.selection.lengths[k]);
    tokens += open.selection.lengths[k];
  }
  const double share = tokens == 0 ? 0 : static_cast<double>(targets) / static_cast<double>(tokens);
  progress.note(fmt::format("data: {}{:.3g} % of the tokens are trained{}",
                            stride > 1 ? "about " : "", 100 * share,
                            share < kFew ? ": `dstrain data show` prints samples with them" : ""));
}

/// Ends the reading of a file.
struct ReadEnough {};

/// Reads answers and rules, which token files have none of, from the files of the split up to the
/// last record that is asked; `asked`: by record, from 0 through all files, its question's index.
void take_answers(const DataConfig& data, const SourceFiles& sources,
                  const std::map<std::int64_t, std::size_t>& asked,
                  std::vector<TextQuestion>& questions) {
  const TextFormat& format = text_format(data);
  if (!format.answers || asked.empty()) return;
  std::int64_t before = 0, at = -1;
  const auto take = [&](Record&& record) {
    at = before + record.number - 1;
    if (const auto found = asked.find(at); found != asked.end()) {
      questions[found->second].answers = std::move(record.answers);
      questions[found->second].rule = record.rule;
    }
    if (at >= asked.rbegin()->first) throw ReadEnough();
  };
  try {
    for (const auto& file : sources.files) {
      format.read(data, sources, file, "", take);
      before = at + 1;
    }
  } catch (const ReadEnough&) {
    // What follows belongs to no question.
  }
}

}  // namespace

std::unique_ptr<TextDataset> open_text(const DataConfig& data, Split split,
                                       const std::string& model_weights, std::int64_t vocab_size,
                                       std::int64_t seed, ProgressSink* progress) {
  if (data.name == DatasetName::mixture) {
    return mix(each_set(data, progress,
                        [&](const DataConfig& one, ProgressSink* own) {
                          return open_text(one, split, model_weights, vocab_size, seed, own);
                        }),
               data, seed);
  }
  if (is_generated(dataset_row(data.name))) {
    return make_random_rows(formats::random_size(data, split), data.sequence, vocab_size, seed,
                            split, data.pairs);
  }
  OpenSplit open =
      open_split(data, split == Split::test, tokenizer_source(data, model_weights), progress);
  check_vocabulary(data, open, vocab_size);
  if (progress != nullptr && split == Split::train) {
    note_padding(data, open.selection, *progress);
    note_training(data, open, *progress);
  }
  return make_rows(data, std::move(open.file), std::move(open.selection), seed);
}

std::vector<TextQuestion> test_questions(const DataConfig& data, const std::string& model_weights,
                                         std::int64_t count, ProgressSink* progress) {
  if (data.name == DatasetName::mixture) {
    const auto members = std::ssize(data.mixture);
    std::int64_t place = 0;
    return joined(each_set(data, progress, [&](const DataConfig& one, ProgressSink* sink) {
      const std::int64_t share = count / members + (place++ < count % members ? 1 : 0);
      return count > 0 && share == 0 ? std::vector<TextQuestion>()
                                     : test_questions(one, model_weights, share, sink);
    }));
  }
  if (is_generated(dataset_row(data.name))) return {};
  DataConfig whole = data;
  whole.loss = LossOn::all;  // else a long prompt would leave its sample out
  whole.too_long = TooLong::truncate;
  const OpenSplit open = open_split(whole, true, tokenizer_source(data, model_weights), progress);
  const auto tokenizer = Tokenizer::open(tokenizer_file(data, model_weights));
  std::vector<TextQuestion> questions;
  std::map<std::int64_t, std::size_t> by_record;
  for (std::size_t k = 0; k < open.selection.samples.size();
       k += static_cast<std::size_t>(samples_of_row(data))) {
    if (count > 0 && std::ssize(questions) >= count) break;
    const std::uint32_t at = open.selection.samples[k];  // of a pair the chosen answer
    std::vector<std::int64_t> tokens(static_cast<std::size_t>(open.file.length(at)));
    std::vector<std::uint8_t> said(tokens.size(), 1);  // by the model, of chats as marks say
    open.file.copy(at, tokens, said);
    const std::size_t begin = open.file.sample(at).response;
    const std::vector<std::int32_t> prompt(tokens.begin(),
                                           tokens.begin() + static_cast<std::ptrdiff_t>(begin));
    std::vector<std::int32_t> answer;
    for (std::size_t t = begin; t < tokens.size(); ++t)
      if (said[t] != 0) answer.push_back(static_cast<std::int32_t>(tokens[t]));
    tokens.resize(begin);
    by_record.emplace(open.file.sample(at).record, questions.size());
    std::string response = tokenizer->decode(answer);
    questions.push_back({.prompt_tokens = std::move(tokens),
                         .prompt = tokenizer->decode(prompt, false),
                         .response = response,
                         .answers = {std::move(response)},
                         .end_token = open.file.summary().end});
  }
  take_answers(data, open.sources, by_record, questions);
  return questions;
}

std::vector<ShownSample> show_samples(const DataConfig& data, Split split,
                                      const std::string& model_weights, int count,
                                      ProgressSink* progress) {
  if (data.name == DatasetName::mixture) {
    return joined(each_set(data, progress, [&](const DataConfig& one, ProgressSink* sink) {
      return show_samples(one, split, model_weights, count, sink);
    }));
  }
  if (is_generated(dataset_row(data.name))) return {};
  const OpenSplit open =
      open_split(data, split == Split::test, tokenizer_source(data, model_weights), progress);
  if (progress != nullptr) note_training(data, open, *progress);
  const auto tokenizer = Tokenizer::open(tokenizer_file(data, model_weights));
  std::vector<ShownSample> samples;
  for (std::size_t k = 0; k < open.selection.samples.size() && std::ssize(samples) < count; ++k) {
    const std::int64_t i = open.selection.samples[k];
    ShownSample shown{.record = describe_record(data, open.sources, open.file.summary(),
                                                open.file.sample(i).record) +
                                (!data.pairs  ? ""
                                 : k % 2 == 0 ? ", chosen"
                                              : ", rejected"),
                      .pieces = {},
                      .tokens = {},
                      .trained = {},
                      .cut = open.file.length(i) - open.selection.lengths[k]};
    std::vector<std::int64_t> tokens(static_cast<std::size_t>(open.selection.lengths[k]));
    shown.trained.resize(tokens.size());
    copy_with_labels(loss_on(data), open.file, i, tokens, shown.trained);
    shown.tokens.assign(tokens.begin(), tokens.end());
    const auto& ids = shown.tokens;
    const auto& trained = shown.trained;
    for (std::size_t at = 0; at < ids.size();) {
      std::size_t end = at;
      while (end < ids.size() && trained[end] == trained[at]) ++end;
      const std::span<const std::int32_t> run(ids.data() + at, end - at);
      shown.pieces.push_back({.text = tokenizer->decode(run, false), .trained = trained[at] != 0});
      at = end;
    }
    samples.push_back(std::move(shown));
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
  s.samples = std::ssize(selection.samples) / samples_of_row(data);
  s.cut = selection.cut;
  s.left_out = selection.too_long + selection.unused;
  s.sequence = data.sequence;
  std::vector<std::int64_t> lengths;
  for (std::size_t i = 0; i < selection.samples.size(); ++i) {
    const std::int64_t at = selection.samples[i];
    const std::int64_t length = open.file.length(at);
    if (data.pairs && i % 2 != 0)
      lengths.back() += length;
    else
      lengths.push_back(length);
    s.mean += static_cast<double>(length) / static_cast<double>(s.samples);
    s.tokens += selection.lengths[i];
    s.targets += num_targets(loss_on(data), open.file, at, selection.lengths[i]);
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
  if (!data.pairs) s.packed_rows = pack(selection.lengths, data.sequence, seed).rows();
  return s;
}

}  // namespace dstrain
