#include <fmt/format.h>

#include "engine/base/day.h"
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

}  // namespace

std::span<const Rule> text_rules() {
  static const std::vector<Rule> all = {
      {chat_date_is_a_day, {"data.chat_date"}, true},
      {split_turns_train_answers, {"data.split_turns", "data.loss", "data.name"}, true},
      {only_chats_have_turns, {"data.too_long", "data.name"}, true},
  };
  return all;
}

}  // namespace dstrain
