#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/import/import_state.h"

namespace dstrain::importing {
namespace {

constexpr Table kTrainer = Table::trainer;

/// "no", "epoch" or "steps" of Trainer as an interval of a recipe; empty: a mistake was reported.
std::string interval_of(Import& import, Given* strategy, const std::string& word, Given* steps,
                        double otherwise) {
  if (word == "no") return "never";
  if (word == "epoch") return "epoch";
  const double count =
      steps == nullptr ? otherwise : import.number(kTrainer, steps->path).value_or(0);
  if (count >= 1) return fmt::format("{:.0f}", count);
  import.error(steps != nullptr ? steps : strategy, "a share of the run's steps",
               "give a number of steps");
  return {};
}

void length(Import& import) {
  Given* steps = import.find(kTrainer, "max_steps");
  Given* epochs = import.find(kTrainer, "num_train_epochs");
  if (import.chosen("run.steps") || import.chosen("run.epochs")) {
    for (Given* given : {steps, epochs})
      import.outcome(given, Fate::no_effect, "--set says how long");
    return;
  }
  if (import.whole(kTrainer, "max_steps").value_or(-1) > 0) {
    import.set("run.steps", steps->node.text, steps);
    return import.outcome(epochs, Fate::no_effect, "max_steps decides");
  }
  import.outcome(steps, Fate::no_effect, "0 and below: num_train_epochs decides");
  if (epochs == nullptr) return set_trainer_default(import, "run.epochs", "3");
  const double count = import.number(kTrainer, epochs->path).value_or(0);
  if (count != std::floor(count) || count < 1)
    return import.error(epochs, fmt::format("{} epochs; only whole ones are run", epochs->value),
                        "give max_steps, or --set run.steps=N");
  import.set("run.epochs", fmt::format("{:.0f}", count), epochs);
}

void evaluations(Import& import) {
  Given* strategy = import.find(kTrainer, "eval_strategy");
  if (strategy == nullptr) strategy = import.find(kTrainer, "evaluation_strategy");
  if (strategy == nullptr) {
    import.outcome(import.find(kTrainer, "eval_steps"), Fate::no_effect, "eval_strategy is no");
    return set_trainer_default(import, "run.evaluate", "never");
  }
  const std::string word = import.word(kTrainer, strategy->path).value_or("no");
  Given* steps = import.find(kTrainer, "eval_steps");
  const double logging = import.number(kTrainer, "logging_steps").value_or(500);
  const std::string text = interval_of(import, strategy, word, steps, logging);
  if (!text.empty()) import.set("run.evaluate", text, strategy);
  if (steps == nullptr) return;
  if (word == "steps")
    steps->became = "run.evaluate: " + text;
  else
    import.outcome(steps, Fate::no_effect, "eval_strategy is not steps");
}

void checkpoints(Import& import) {
  Given* strategy = import.find(kTrainer, "save_strategy");
  Given* steps = import.find(kTrainer, "save_steps");
  const std::string word = import.word(kTrainer, "save_strategy").value_or("steps");
  const std::string text = interval_of(import, strategy, word, steps, 500);
  if (!text.empty()) {
    Given* from = strategy != nullptr ? strategy : steps;
    if (from != nullptr)
      import.set("run.checkpoint.every", text, from);
    else
      set_trainer_default(import, "run.checkpoint.every", text);
  }
  if (steps != nullptr && word != "steps")
    import.outcome(steps, Fate::no_effect, "save_strategy is not steps");
  Given* keep = import.find(kTrainer, "save_total_limit");
  if (keep == nullptr) return;
  const long count = import.whole(kTrainer, keep->path).value_or(0);
  if (count < 1)
    return import.error(keep, fmt::format("{} checkpoints", keep->value), "use 1 or more");
  import.set("run.checkpoint.keep", fmt::format("{}", count), keep);
}

void best(Import& import) {
  Given* load = import.find(kTrainer, "load_best_model_at_end");
  Given* metric = import.find(kTrainer, "metric_for_best_model");
  Given* greater = import.find(kTrainer, "greater_is_better");
  if (!import.flag(kTrainer, "load_best_model_at_end").value_or(false)) {
    import.outcome(load, Fate::no_effect, "the newest weights are exported");
    return import.outcome(metric, Fate::no_effect, "load_best_model_at_end is false");
  }
  std::string word = import.word(kTrainer, "metric_for_best_model").value_or("loss");
  if (word.starts_with("eval_")) word.erase(0, 5);
  const auto refuse = [&](Given* given) {
    import.error(given, fmt::format("the best of {} is not found", given->value),
                 "loss, accuracy, perplexity, exact_match and f1 are, or leave "
                 "load_best_model_at_end out");
  };
  const bool falls = word == "loss" || word == "perplexity";
  const bool answers = word == "exact_match" || word == "f1";
  if (!falls && !answers && word != "accuracy") return refuse(metric);
  if (import.flag(kTrainer, "greater_is_better").value_or(!falls) == falls) return refuse(greater);
  import.set("run.best.metric", word, metric != nullptr ? metric : load);
  if (answers && !import.chosen("run.generate"))
    import.set("run.generate", "256", metric);  // a part: each answer takes many passes
  if (metric != nullptr) load->became = "run.best.load: true";
}

std::vector<std::string> words_of(const Node& node) {
  std::vector<std::string> words;
  if (node.kind == Node::Kind::list) {
    for (const Node& item : node.items) words.push_back(item.text);
  } else {
    words.push_back(node.text);
  }
  return words;
}

void reports(Import& import) {
  Given* given = import.find(kTrainer, "report_to");
  if (given == nullptr) return;
  const std::vector<std::string> words = words_of(given->node);
  const auto has = [&](std::string_view word) {
    return std::ranges::find(words, word) != words.end();
  };
  const bool all = has("all");
  import.set("metrics.tensorboard", has("tensorboard") || all ? "true" : "false", given);
  if (has("wandb") || all) import.set("metrics.wandb", "online", given);
  if (import.find(kTrainer, "run_name") != nullptr && has("wandb"))
    import.outcome(import.find(kTrainer, "run_name"), Fate::no_effect, "dstrain launch --run-name");
}

}  // namespace

void derive_run(Import& import) {
  if (!uses_trainer(import)) return;
  length(import);
  evaluations(import);
  checkpoints(import);
  best(import);
  if (Given* workers = import.find(kTrainer, "dataloader_num_workers"))
    import.set("data.workers",
               fmt::format("{}", std::max(1L, import.whole(kTrainer, workers->path).value_or(1))),
               workers);
  if (Given* resume = import.find(kTrainer, "resume_from_checkpoint")) {
    if (resume->node.text == "true" || resume->node.text == "True")
      import.result.launch.insert(import.result.launch.end(), {"--resume", "auto"});
    else if (resume->node.text != "false" && resume->node.text != "False")
      import.result.notes.push_back(fmt::format(
          "the run went on from {}: dstrain checkpoint import brings it over", resume->value));
  }
}

void derive_metrics(Import& import) {
  reports(import);
  if (Given* board = import.find(Table::deepspeed, "tensorboard.enabled"))
    import.set("metrics.tensorboard", board->node.text, board);
  if (import.flag(Table::deepspeed, "wandb.enabled").value_or(false))
    import.set("metrics.wandb", "online", import.find(Table::deepspeed, "wandb.enabled"));
}

}  // namespace dstrain::importing
