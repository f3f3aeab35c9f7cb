#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "cmd/command.h"
#include "cmd/draft_plan.h"
#include "cmd/draft_sources.h"
#include "cmd/number_option.h"
#include "cmd/questions.h"
#include "cmd/recipe_plan.h"
#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/input_file.h"
#include "engine/base/output.h"
#include "engine/base/printable.h"
#include "engine/base/units.h"
#include "engine/data/tokenizer/tokenizer.h"
#include "engine/draft/draft.h"
#include "engine/program/measured_machine.h"
#include "engine/recipe/load.h"

namespace dstrain {
namespace {

struct NewOptions {
  std::string model, data, output;
  std::string tokenizer, chat_template, prompt, response, label, machine;
  bool adapters = false, full = false, yes = false;
  int ranks = 1, epochs = 0;
  std::string title;  ///< first line of the recipe
};

constexpr int kMaxEpochs = 10000;

void refuse_old_file(const std::string& file) {
  if (file.empty() || !path_exists(file, ErrorKind::usage)) return;
  throw Error(ErrorKind::usage, fmt::format("{} is there already and is not overwritten", file),
              "-o FILE names another one");
}

/// "Qwen2.5-0.5B_chats.yaml", here.
std::string file_of(const draft::ModelFacts& model, const std::string& data) {
  std::string name = fmt::format(
      "{}_{}", model.called,
      std::filesystem::path(data).lexically_normal().replace_extension("").filename().string());
  if (name.ends_with('_'))  // of a path with a slash at its end
    name += std::filesystem::path(data).lexically_normal().parent_path().filename().string();
  for (char& c : name) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '.' || c == '-' || c == '_';
    if (!plain) c = '-';
  }
  return name + ".yaml";
}

void require_same_kind(const draft::ModelFacts& model, const draft::DataFacts& data,
                       const std::string& data_word) {
  if (model.takes_text() != data.is_text())
    throw Error(ErrorKind::usage,
                fmt::format("{} takes {}, but {} holds {} ({})", model.called,
                            model.takes_text() ? "text" : "images", data_word,
                            data.is_text() ? "text" : "images", data.form),
                model.takes_text() ? "name a model of images, such as vit-base, or data of text"
                                   : "name a model of text, such as qwen2.5-0.5b, or images");
  if (data.channels != 3 && !model.weights.empty())
    throw Error(ErrorKind::usage,
                fmt::format("{} holds grey images, and the weights of {} are for colours",
                            data_word, model.called),
                "name a model without weights, such as cnn-basic or vit-tiny");
}

void refuse_without_effect(const NewOptions& options, const draft::DataFacts& data) {
  const struct {
    const char* option;
    const std::string& value;
    bool has_effect;
    const char* on;
  } given[] = {
      {"--prompt", options.prompt, data.name == DatasetName::jsonl, "JSON Lines of any fields"},
      {"--response", options.response, data.name == DatasetName::jsonl, "JSON Lines of any fields"},
      {"--template", options.chat_template, data.name == DatasetName::chat, "chats"},
      {"--tokenizer", options.tokenizer, data.is_text(), "text"},
      {"--label", options.label, !data.label.empty(),
       "parquet files of images, CIFAR-100 and tars"}};
  for (const auto& one : given) {
    if (!one.value.empty() && !one.has_effect)
      throw Error(ErrorKind::usage,
                  fmt::format("{} is for {}; here {}", one.option, one.on, data.form),
                  "leave it out");
  }
}

/// The fields of question and answer, or the templates that were given.
void settle_fields(draft::DataFacts& data, const NewOptions& options, const Questions& questions) {
  if (data.name != DatasetName::jsonl) return;
  if (!options.response.empty()) {
    data.prompt = options.prompt;
    data.response = options.response;
    return;
  }
  const std::string fields = fmt::format("{}", fmt::join(data.fields, ", "));
  const std::string guess = data.question + (data.question.empty() ? "" : " ") + data.answer;
  const std::string line =
      questions.ask(fmt::format("Of {}: the fields of question and answer (one: all is learnt)",
                                shown(fields, 200)),
                    guess);
  if (line != guess) {
    const auto blank = line.find(' ');
    const bool two = blank != std::string::npos;
    draft::name_fields(data, two ? line.substr(0, blank) : "", two ? line.substr(blank + 1) : line);
  }
  if (data.answer.empty())
    throw Error(
        ErrorKind::usage,
        fmt::format("which of the fields {} is the answer is not clear", shown(fields, 200)),
        "say it as templates: --prompt 'Question: {question}' --response ' {answer}'");
}

/// ChatML, where the tokenizer has no chat template but the tokens of that one.
void settle_template(draft::Facts& facts, const std::string& tokenizer_place) {
  if (facts.data.name != DatasetName::chat || !facts.chat_template.empty()) return;
  const auto tokenizer = Tokenizer::open(tokenizer_place);
  if (!tokenizer->chat_template().empty() || !tokenizer->token_id("<|im_start|>") ||
      !tokenizer->token_id("<|im_end|>"))
    return;
  facts.chat_template = "chatml";
  facts.why_template = "the tokenizer has no chat template, but the tokens of this one";
}

/// Lengths of the samples, where there is a tokenizer to count them by.
void measure(draft::Facts& facts) {
  const std::string place =
      facts.tokenizer.empty() ? facts.model.files.string() : found_tokenizer(facts.tokenizer);
  const std::filesystem::path file = path_kind(place) == PathKind::folder
                                         ? std::filesystem::path(place) / "tokenizer.json"
                                         : std::filesystem::path(place);
  constexpr const char* kOther = "--tokenizer FOLDER names one: a folder, or ORG/NAME of the Hub";
  if (place.empty() && facts.model.weights.empty())
    throw Error(ErrorKind::usage,
                fmt::format("{} has no tokenizer: text cannot become tokens", facts.model.called),
                kOther);
  if (place.empty()) return;  // a note has said why
  if (!path_exists(file))
    throw Error(ErrorKind::data,
                fmt::format("{} is not there: without a tokenizer text cannot become tokens",
                            shown_path(file)),
                kOther);
  settle_template(facts, place);
  DataConfig data = draft::config_of(facts.data.name, facts.data.place);
  data.tokenizer = place;
  data.prompt = facts.data.prompt;
  data.response = facts.data.response;
  data.template_file = facts.chat_template;
  data.pairs = facts.data.pairs;
  facts.lengths = draft::measure_lengths(data, /*weights=*/"");
  const draft::TextLengths& lengths = facts.lengths;
  if (lengths.unusable > 0)
    print_error("note: {} of the first {} records cannot be used and will be left out; {}\n",
                lengths.unusable, lengths.unusable + lengths.looked, lengths.first_unusable);
}

Machine machine_of(const NewOptions& options) {
  Machine machine = plan_machine({.name = options.machine}, /*on_cpu=*/false, options.ranks);
  if (options.machine.empty() && installed_gpu().empty())
    print_error("note: no GPU is seen here: planned for {}; --machine NAME plans for another\n",
                card_name(machine));
  return machine;
}

/// All weights where they fit, else adapters, unless a person says what.
PlannedDraft settle_training(const draft::Facts& facts, draft::Choices choices,
                             const NewOptions& options, const Questions& questions) {
  const Machine machine = machine_of(options);
  const auto planned = [&](bool adapters, const std::string& why) {
    choices.adapters = adapters;
    choices.why_adapters = why;
    return planned_draft(facts, choices, options.title, machine);
  };
  if (!facts.model.takes_adapters()) {
    if (options.adapters)
      throw Error(ErrorKind::usage,
                  facts.model.weights.empty()
                      ? fmt::format("--lora: {} starts from random weights", facts.model.called)
                      : fmt::format("--lora: {} is convolutional", facts.model.called),
                  "adapters are for transformers with trained weights; leave it out");
    return planned(false, "");
  }
  if (options.adapters) return planned(true, "as it was asked for");
  PlannedDraft full = planned(false, "");
  if (options.full) return full;
  const std::string taken =
      fmt::format("all weights take {}{} on {}", format_bytes(full.memory),
                  full.fits() ? "" : ", which does not fit", card_name(machine));
  if (questions.asks()) {
    const std::string word =
        questions.ask(fmt::format("Train all weights (full) or adapters (lora)? {}", taken),
                      full.fits() ? "full" : "lora");
    if (word != "full" && word != "lora")
      throw Error(ErrorKind::usage, fmt::format("'{}' is neither full nor lora", shown(word)),
                  "answer with one of the two");
    return word == "full" ? full : planned(true, full.fits() ? "as it was asked for" : taken);
  }
  return full.fits() ? full : planned(true, taken);
}

int asked_epochs(const draft::Facts& facts, const NewOptions& options, const Questions& questions) {
  if (options.epochs > 0 || !questions.asks()) return options.epochs;
  const std::string usual = fmt::to_string(draft::usual_epochs(facts));
  const std::string word = questions.ask("Epochs", usual);
  int epochs = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), epochs);
  if (error != std::errc() || end != word.data() + word.size() || epochs < 1 || epochs > kMaxEpochs)
    throw Error(ErrorKind::usage, fmt::format("'{}' is no number of epochs", shown(word)),
                fmt::format("a whole number from 1 to {}", kMaxEpochs));
  return word == usual ? 0 : epochs;
}

void require_word(std::string& word, const char* name, const char* question,
                  const Questions& questions) {
  if (word.empty()) word = questions.ask(question, "");
  if (word.empty())
    throw Error(ErrorKind::usage, fmt::format("{} is missing", name),
                "dstrain recipe new MODEL DATA, such as Qwen/Qwen2.5-0.5B chats.jsonl");
}

int make_recipe(NewOptions options) {
  const Questions questions(options.yes);
  refuse_old_file(options.output);
  require_word(options.model, "MODEL", "Model (a folder, ORG/NAME of the Hub, or a published size)",
               questions);
  draft::Facts facts{.model = found_model(options.model), .data = {}};
  require_word(options.data, "DATA",
               "Data (a file or folder, ORG/NAME of the Hub, or cifar100, squad, digits ..)",
               questions);
  if (options.output.empty()) options.output = file_of(facts.model, options.data);
  refuse_old_file(options.output);
  facts.data = found_data(options.data, {.text = facts.model.takes_text(),
                                         .clips = facts.model.takes_clips(),
                                         .label = options.label});
  require_same_kind(facts.model, facts.data, options.data);
  refuse_without_effect(options, facts.data);
  settle_fields(facts.data, options, questions);
  facts.tokenizer = options.tokenizer;
  facts.chat_template = options.chat_template;
  facts.why_template = "as it was named";
  if (facts.data.is_text()) measure(facts);
  options.title = fmt::format("{} learns {}: made by dstrain recipe new {} {}", facts.model.called,
                              options.data, options.model, options.data);
  const draft::Choices choices{.ranks = options.ranks,
                               .epochs = asked_epochs(facts, options, questions)};
  const PlannedDraft made = settle_training(facts, choices, options, questions);
  for (const Diagnostic& warning : parse_recipe(made.yaml, options.output).warnings)
    print_error("{}\n", format(warning));
  if (!made.fits())
    print_error(
        "note: it does not fit: a rank needs {} of {}; more ranks (--ranks), or another "
        "card (--machine)\n",
        format_bytes(made.memory), format_bytes(made.limit));
  refuse_old_file(options.output);
  write_file_atomically(options.output, made.yaml);
  print_text(
      "{}: {} of {}, {} planned\n"
      "  dstrain recipe check {}\n"
      "  dstrain launch {} --ranks {}\n",
      options.output, made.choices.adapters ? "adapters" : "all weights", facts.model.called,
      format_bytes(made.memory), options.output, options.output, options.ranks);
  return 0;
}

}  // namespace

Command add_recipe_new(CLI::App& root) {
  auto options = std::make_shared<NewOptions>();
  CLI::App* app = root.add_subcommand(
      "new",
      "Make a recipe of a model and data: finds the format, classes and lengths, plans what fits "
      "this GPU, and writes\n"
      "each line with its reason. At a terminal it asks what it cannot know, five questions at "
      "most; without one, or with\n"
      "--yes, it takes defaults. A file that is there is never overwritten.\n"
      "Examples:\n"
      "  dstrain recipe new models/Qwen2.5-0.5B data/chats -o chats.yaml\n"
      "  dstrain recipe new Qwen/Qwen2.5-3B meta-math/MetaMathQA --lora\n"
      "  dstrain recipe new vit-base data/images --yes");
  app->add_option("model", options->model,
                  "Folder with config.json and weights, ORG/NAME or hf://ORG/NAME of the Hub, or a "
                  "published size such as\nqwen2.5-0.5b, vit-base or resnet50.");
  app->add_option(
      "data", options->data,
      "File or folder, ORG/NAME or hf://datasets/ORG/NAME of the Hub, or cifar100, "
      "food101, squad, metamathqa, digits.\n"
      "Images: a folder for each class, Food-101, CIFAR, parquet, tars. Text: JSON Lines, "
      "JSON or parquet of chats\n"
      "(messages, ShareGPT, Alpaca, prompt and completion, pairs of chosen and rejected), "
      "SQuAD, MetaMathQA,\nJSON Lines of any fields, tars of these, or tokens of `data prepare` "
      "(*.tokens).");
  app->add_option("-o,--output", options->output,
                  "Recipe to write. Default: MODEL_DATA.yaml in this folder.");
  CLI::Option* full = app->add_flag("--full", options->full, "Train all weights.");
  app->add_flag("--lora", options->adapters,
                "Train adapters. Default: where all weights do not fit.")
      ->excludes(full);
  app->add_flag("--yes", options->yes, "Ask nothing.");
  app->add_option("--ranks", options->ranks, "GPUs to plan for. Default: 1.")
      ->check(number_in(1, 1 << 20));
  app->add_option("--machine", options->machine,
                  "Card to plan for, as of plan. Default: this one.");
  app->add_option("--epochs", options->epochs, "Passes over the data. Default: by its size.")
      ->check(number_in(1, kMaxEpochs));
  app->add_option("--prompt", options->prompt,
                  "What the model is given of a JSON line of any fields, such as 'Q: {question}'. "
                  "Default: by the fields' names.")
      ->needs(app->add_option("--response", options->response,
                              "What it learns to say, such as ' {answer}'."));
  app->add_option("--tokenizer", options->tokenizer,
                  "Folder, tokenizer.json or ORG/NAME. Default: the model's.");
  app->add_option("--template", options->chat_template,
                  "Jinja file of chats, or chatml. Default: the tokenizer's.");
  app->add_option("--label", options->label,
                  "Column of a parquet file with the classes; of tars, data.label.");
  return {app, [options] { return make_recipe(*options); }};
}

}  // namespace dstrain
