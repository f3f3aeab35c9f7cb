#include "engine/draft/draft.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "engine/base/printable.h"
#include "engine/base/units.h"
#include "engine/base/words.h"
#include "engine/data/text/selection.h"
#include "engine/draft/training_rates.h"
#include "engine/recipe/choices.h"

namespace dstrain::draft {
namespace {

using text::with_commas;

constexpr std::int64_t kSequenceStep = 128;
constexpr std::int64_t kUsualSequence = 512;    ///< where no sample could be measured
constexpr std::int64_t kFewForSteps = 20;       ///< steps of an epoch that are few
constexpr std::int64_t kMinBatch = 8;           ///< rows of text
constexpr std::int64_t kFewToHoldOut = 50;      ///< samples of which none is held out
constexpr std::int64_t kFewForStatistics = 16;  ///< samples that are few for batch norm
constexpr std::int64_t kManySteps = 1000;       ///< in one epoch, that is evaluated on the way

/// "12,345" or, of an estimate, "about 12,300".
std::string counted(std::int64_t count, bool about) {
  std::int64_t unit = 1;
  while (about && count / unit >= 1000) unit *= 10;
  return fmt::format("{}{}", about ? "about " : "", with_commas(count / unit * unit));
}

/// "cat, dog, owl and 97 more".
std::string some_of(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 3;
  const auto first =
      std::vector<std::string>(names.begin(), names.begin() + std::min(kShown, names.size()));
  return shown(
      fmt::format("{}{}", fmt::join(first, ", "),
                  names.size() > kShown ? fmt::format(" and {} more", names.size() - kShown) : ""),
      100);
}

/// Tokens of a row of text.
std::int64_t sequence_of(const Facts& facts) {
  const std::int64_t max = facts.model.positions;
  const std::int64_t wanted =
      facts.lengths.looked == 0 ? kUsualSequence : round_up(facts.lengths.p95, kSequenceStep);
  return max > 0 ? std::min(wanted, max) : wanted;
}

/// Rows of packed text of an epoch; 0: not known.
std::int64_t packed_rows(const Facts& facts) {
  if (facts.lengths.looked == 0) return 0;
  const auto row = static_cast<double>(sequence_of(facts));
  return std::llround(std::ceil(static_cast<double>(facts.lengths.samples) *
                                std::min(facts.lengths.mean, row) / row));
}

/// Packed rows of few samples would be an epoch of hardly any steps.
bool is_packed(const Facts& facts) {
  return !facts.data.pairs &&
         (facts.lengths.looked == 0 || packed_rows(facts) >= kFewForSteps * kMinBatch);
}

/// Images, or rows of text, of an epoch; 0: not known.
std::int64_t rows_of_epoch(const Facts& facts) {
  if (!facts.data.is_text()) return facts.data.samples;
  return is_packed(facts) ? packed_rows(facts) : facts.lengths.samples;
}

class Drafter {
 public:
  Drafter(const Facts& facts, const Choices& choices)
      : model_(facts.model),
        data_(facts.data),
        facts_(facts),
        choices_(choices),
        global_(global_batch(facts)),
        epochs_(choices.epochs > 0 ? choices.epochs : usual_epochs(facts)) {}

  std::vector<DraftLine> write() {
    write_model();
    if (choices_.adapters) write_adapters();
    write_data();
    write_batch();
    if (data_.pairs) {
      add("preference.loss", "dpo", "the chosen answer more, the rejected one less than before");
      add("preference.beta", "0.1", "usual; a larger one keeps the model nearer to what it was");
    }
    write_optimizer();
    if (choices_.recompute)
      add("memory.recompute", "auto", "without it a step does not fit; as little as is needed");
    if (choices_.ranks > 1 && !choices_.adapters && model_.takes_text())
      add("parallel.zero", "{ stage: 2 }", "states and gradients are split over the ranks");
    write_run();
    return std::move(lines_);
  }

 private:
  void add(std::string key, std::string value, std::string reason) {
    lines_.push_back({std::move(key), std::move(value), std::move(reason)});
  }

  [[nodiscard]] bool evaluated() const {
    return data_.evaluated && !(data_.is_text() && few_to_hold_out());
  }
  [[nodiscard]] bool few_to_hold_out() const {
    return !data_.own_test && facts_.lengths.looked > 0 && !facts_.lengths.about &&
           facts_.lengths.samples < kFewToHoldOut;
  }
  /// 0: not known.
  [[nodiscard]] std::int64_t steps_of_epoch() const {
    return ceil_div(rows_of_epoch(facts_), global_);
  }

  void write_model();
  void write_adapters();
  void write_data();
  void write_text();
  void write_loss();
  void write_images();
  void write_batch();
  void write_optimizer();
  void write_run();

  const ModelFacts& model_;
  const DataFacts& data_;
  const Facts& facts_;
  const Choices& choices_;
  int global_, epochs_;
  std::vector<DraftLine> lines_;
};

void Drafter::write_model() {
  const bool random = model_.weights.empty();
  if (!model_.name.empty())
    add("model.name", model_.name,
        random ? "a published size, from random weights" : "a published size");
  if (!random)
    add("model.weights", yaml_text(model_.weights),
        model_.weights.starts_with("hf://") ? "of the Hub; launch brings what is not here"
                                            : "its config.json says what the model is");
  if (data_.is_text()) return;
  if (data_.classes > 0)
    add("model.classes", fmt::format("{}", data_.classes),
        fmt::format("of the data{}{}", data_.class_names.empty() ? "" : ": ",
                    some_of(data_.class_names)));
  if (data_.channels != 3)
    add("model.channels", fmt::format("{}", data_.channels), "the images are grey");
}

void Drafter::write_adapters() {
  const bool text = model_.takes_text();
  add("lora.rank", "16", choices_.why_adapters);
  add("lora.alpha", text ? "32" : "16", "usual beside this rank");
  add("lora.dropout", text ? "0.05" : "0.1", "against learning the samples by heart");
  if (text) {
    add("lora.targets", "[all-linear]", "all linear maps of the layers");
  } else {
    add("lora.targets", fmt::format("[{}]", fmt::join(model_.family->lora_targets, ", ")),
        "usual for vision transformers");
    add("lora.also_train", "[classifier]", "the head, which is new");
  }
}

void Drafter::write_data() {
  const DatasetRow& row = dataset_row(data_.name);
  add("data.name", std::string(row.spelling), data_.form);
  if (!data_.path.empty())
    add("data.path", yaml_text(data_.path),
        data_.is_text() && facts_.lengths.looked > 0
            ? fmt::format("{} records for training",
                          counted(facts_.lengths.samples, facts_.lengths.about))
        : data_.samples > 0
            ? fmt::format("{} images for training", counted(data_.samples, data_.about))
            : "");
  if (data_.is_text())
    write_text();
  else
    write_images();
}

void Drafter::write_text() {
  const TextLengths& lengths = facts_.lengths;
  if (!facts_.tokenizer.empty())
    add("data.tokenizer", yaml_text(facts_.tokenizer), "as it was named");
  if (!facts_.chat_template.empty())
    add("data.template", yaml_text(facts_.chat_template), facts_.why_template);
  if (!data_.response.empty()) {
    if (!data_.prompt.empty())
      add("data.prompt", yaml_text(data_.prompt), "what the model is given of a record");
    add("data.response", yaml_text(data_.response), "what it learns to say");
  }
  const std::int64_t tokens = sequence_of(facts_);
  if (lengths.looked == 0) {
    add("data.sequence", fmt::format("{}", tokens),
        "a guess: no tokenizer is here; `dstrain data prepare` says how many are cut");
  } else {
    add("data.sequence", fmt::format("{}", tokens),
        fmt::format(
            "95 % of {} {} have at most {} tokens, the longest {}{}", with_commas(lengths.looked),
            data_.pairs ? "pairs of answers with their prompts" : "samples", lengths.p95,
            lengths.longest,
            tokens < lengths.p95 ? fmt::format("; the model has {} positions", model_.positions)
                                 : ""));
  }
  if (!data_.pairs) write_loss();
  if (data_.own_test) return;
  if (few_to_hold_out())
    add("data.test_share", "0", "too few samples to hold some out");
  else
    add("data.test_share", lengths.samples > 20000 ? "0.01" : "0.05",
        "there is no test file: this share is held out");
}

/// Which tokens are learnt, and whether samples share rows; of pairs preference.loss says both.
void Drafter::write_loss() {
  if (data_.name == DatasetName::chat || data_.marked)
    add("data.loss", "assistant", "what the assistant says, in all turns");
  else if (data_.prompt.empty() && data_.name == DatasetName::jsonl)
    add("data.loss", "all", "plain text: each token is learnt");
  else
    add("data.loss", "response", "the answers alone are learnt");
  if (!is_packed(facts_)) {
    add("data.packing", "false", "few samples: one in a row, so that an epoch has more steps");
    return;
  }
  add("data.packing", "true",
      facts_.lengths.looked == 0
          ? "several samples in a row, none sees another"
          : fmt::format("a sample has {:.0f} tokens: several in a row, none sees another",
                        facts_.lengths.mean));
}

void Drafter::write_images() {
  if (!data_.label.empty()) add("data.label", yaml_text(data_.label), "as it was named");
  const DatasetRow& row = dataset_row(data_.name);
  if (data_.name == DatasetName::digits)
    add("data.augment", "[random_crop]", "a flipped digit is another one");
  else if (model_.weights.empty() && reads(row, "data.resize"))
    add("data.augment", "[random_resized_crop, horizontal_flip]",
        "another part of an image each time; take the flip out where sides matter");
  else
    add("data.augment", "[random_crop, horizontal_flip]",
        "moved a little; take the flip out where sides matter");
  if (data_.name == DatasetName::digits) add("data.crop_padding", "1", "they are 8 x 8 pixels");
  if (reads(row, "data.resize")) add("data.workers", "8", "threads that decode files");
  const PublishedModel* published = published_model(model_.name);
  const std::int64_t last = data_.samples % global_;
  if (published != nullptr && published->batch_norm && data_.samples > global_ && last > 0 &&
      last / choices_.ranks < kFewForStatistics)
    add("data.last", "drop",
        fmt::format("an epoch's last step has {} samples, few for batch norm", last));
}

void Drafter::write_batch() {
  const std::int64_t steps = steps_of_epoch();
  const bool text = data_.is_text();
  add("batch.global", fmt::format("{}", global_),
      steps == 0 ? "what the optimizer sees, on any number of ranks"
                 : fmt::format("{} a step, on any number of ranks: {}{} step{} an epoch",
                               text ? "rows" : "images", text ? "about " : "", with_commas(steps),
                               plural(steps)));
  add("batch.micro", fmt::format("{}", choices_.micro), choices_.why_micro);
}

void Drafter::write_optimizer() {
  for (DraftLine& line : optimizer_lines(facts_, choices_, global_))
    lines_.push_back(std::move(line));
  const std::int64_t steps = steps_of_epoch() * epochs_;
  constexpr std::int64_t kMaxWarmup = 100;
  const std::int64_t warmup = steps == 0 ? 10 : std::min(steps * 3 / 100, kMaxWarmup);
  if (warmup > 0)
    add("optimizer.warmup_steps", fmt::format("{}", warmup),
        steps == 0 ? "a few" : fmt::format("of about {} steps", with_commas(steps)));
}

void Drafter::write_run() {
  add("run.epochs", fmt::format("{}", epochs_),
      choices_.epochs > 0 ? "as it was asked for" : "usual for so much data");
  if (!evaluated()) {
    add("run.evaluate", "never", "there are no samples for it");
    add("run.checkpoint", "{ every: epoch, keep: 2 }", "the two newest");
    return;
  }
  const bool often = epochs_ == 1 && steps_of_epoch() > kManySteps;
  const char* every = often ? "500" : "epoch";
  add("run.evaluate", every, often ? "steps" : "loss and accuracy on what is not trained");
  if (data_.is_text() && !data_.pairs)
    add("run.generate", "2", "answers to look at, after each evaluation");
  add("run.checkpoint", fmt::format("{{ every: {}, keep: 2 }}", every), "the two newest");
  add("run.best", fmt::format("{{ metric: {} }}", data_.is_text() ? "loss" : "accuracy"),
      "and the best: the run ends with it, export takes it");
}

}  // namespace

int global_batch(const Facts& facts) {
  const std::int64_t rows = rows_of_epoch(facts);
  const bool text = facts.data.is_text();
  std::int64_t global = text ? 32 : rows >= 20000 ? 256 : rows >= 5000 ? 128 : 64;
  const std::int64_t min = text ? kMinBatch : kFewForStatistics;
  while (global > min && rows > 0 && rows / global < kFewForSteps) global /= 2;
  return static_cast<int>(global);
}

int usual_epochs(const Facts& facts) {
  if (facts.data.is_text()) {
    const std::int64_t samples = facts.lengths.samples;
    if (samples >= 50000 || facts.data.pairs) return 1;
    return samples >= 20000 ? 2 : 3;
  }
  if (facts.model.weights.empty()) return 30;
  return facts.data.samples >= 20000 ? 3 : 10;
}

std::vector<DraftLine> draft_recipe(const Facts& facts, const Choices& choices) {
  return Drafter(facts, choices).write();
}

}  // namespace dstrain::draft
