#include <fmt/format.h>

#include "engine/base/day.h"
#include "engine/recipe/axes.h"
#include "engine/recipe/choices.h"
#include "engine/recipe/datasets.h"
#include "engine/recipe/rule.h"
#include "engine/recipe/text.h"

namespace dstrain {
namespace {

void chat_date_is_a_day(const Recipe& r, RuleContext& context) {
  if (r.data.chat_date.empty() || parse_day(r.data.chat_date)) return;
  const bool moves = r.data.chat_date == "today";
  context.error("data.chat_date",
                moves ? "tokens would change from day to day"
                      : fmt::format("'{}' is no day", shown(r.data.chat_date)),
                "write a day, such as 26 Jul 2024 or 2024-07-26");
}

void split_turns_train_answers(const Recipe& r, RuleContext& context) {
  if (!r.data.split_turns || r.data.name != DatasetName::chat || r.data.loss != LossOn::all) return;
  context.error("data.split_turns",
                "each sample has the turns before its own, and data.loss: all would train them "
                "again and again",
                "use data.loss: assistant, which then trains the last turn of each sample");
}

void only_chats_have_turns(const Recipe& r, RuleContext& context) {
  if (r.data.too_long != TooLong::turns || r.data.name == DatasetName::chat) return;
  context.error("data.too_long", "turns: only data.name: chat has turns",
                "use truncate, skip or stop");
}

void pairs_are_chats(const Recipe& r, RuleContext& context) {
  if (!r.preference.pairs()) return;
  const std::string loss = fmt::format("{}", spelling(r.preference.loss));
  // Random pairs are there to measure.
  if (r.data.name != DatasetName::chat && !is_generated(dataset_row(r.data.name)))
    context.error(
        "preference.loss",
        fmt::format("{}, but data.name {} has no pairs of answers", loss, spelling(r.data.name)),
        "use data.name: chat with records of prompt, chosen and rejected");
  if (r.data.packing)
    context.error("data.packing", "a sample is a pair already: two sequences in one row",
                  "leave it out");
  if (r.data.split_turns)
    context.error("data.split_turns", "a pair has one answer on each side", "leave it out");
  if (r.data.too_long == TooLong::turns)
    context.error("data.too_long", "turns: both answers of a pair have the same prompt",
                  "use skip or stop");
}

/// Rows of a pair lie on one rank, with all of the vocabulary.
void pairs_are_not_cut(const Recipe& r, RuleContext& context) {
  if (!r.preference.pairs()) return;
  for (const auto& [axis, degree] : kAxisKeys) {
    const int ranks = r.parallel.*degree;
    if (kAxesInBlocks.contains(axis) && ranks > 1)
      context.error(fmt::format("parallel.{}", axis_name(axis)),
                    fmt::format("{}, but preference.loss {} needs the whole of each pair, and of "
                                "the vocabulary, on a rank",
                                ranks, spelling(r.preference.loss)),
                    "use data ranks, parallel.zero or parallel.pipeline");
  }
}

/// Losses of pairs are no cross entropies.
void pairs_have_no_perplexity(const Recipe& r, RuleContext& context) {
  if (!r.preference.pairs() || r.run.best.metric != BestMetric::perplexity) return;
  context.error("run.best.metric", "perplexity: the loss of pairs has none",
                "use loss or accuracy, the share of pairs whose chosen answer has more reward");
}

}  // namespace

std::span<const Rule> text_rules() {
  static const std::vector<Rule> all = {
      {chat_date_is_a_day, {"data.chat_date"}, true},
      {split_turns_train_answers, {"data.split_turns", "data.loss", "data.name"}, true},
      {only_chats_have_turns, {"data.too_long", "data.name"}, true},
      {pairs_are_chats,
       {"preference.loss", "data.name", "data.packing", "data.split_turns", "data.too_long"}},
      {pairs_are_not_cut, {"preference.loss", "parallel.tensor", "parallel.sequence"}},
      {pairs_have_no_perplexity, {"preference.loss", "run.best.metric"}},
  };
  return all;
}

}  // namespace dstrain
