#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <future>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cmd/chat_loop.h"
#include "cmd/command.h"
#include "cmd/dtype_option.h"
#include "cmd/hub_names.h"
#include "cmd/input_path.h"
#include "cmd/json_lines.h"
#include "cmd/number_option.h"
#include "cmd/overrides.h"
#include "cmd/preparation_progress.h"
#include "cmd/prompt_file.h"
#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/input_file.h"
#include "engine/base/json.h"
#include "engine/base/output.h"
#include "engine/data/text/chat_form.h"
#include "engine/data/text_dataset.h"
#include "engine/data/tokenizer/tokenizer.h"
#include "engine/device/device.h"
#include "engine/infer/answer_figures.h"
#include "engine/infer/finished_model.h"
#include "engine/infer/writer.h"
#include "engine/recipe/load.h"

namespace dstrain {
namespace {

using Clock = std::chrono::steady_clock;

struct GenerateArguments {
  std::string model, adapter, prompts, output, system, tokenizer;
  std::string data;  ///< recipe whose test split is asked
  std::string chat_template;
  std::vector<std::string> prompt, overrides, template_args;
  std::int64_t test = -1;  ///< samples of it; 0: all; -1: none
  std::string dtype = "auto";
  bool average = false, raw = false, on_cpu = false, interactive = false;
  int batch = 0;  ///< of a rank
  int ranks = 1;
  WriteOptions write;
};

volatile std::sig_atomic_t interrupted = 0;

/// What helps where a template cannot be used.
constexpr const char* kOtherForm =
    "--template FILE names another template, --raw takes prompts as they are";

/// The form of chats: of a run that trained chats the run's, else the tokenizer's. Where prompts
/// are taken as they are, it only says what closes an answer, and one that is not supported is left
/// in words.
std::optional<ChatForm> chat_form(const GenerateArguments& arguments,
                                  const std::optional<Recipe>& recipe, const Tokenizer& tokenizer,
                                  const std::filesystem::path& file) {
  DataConfig chats;
  if (recipe && recipe->data.name == DatasetName::chat) chats = recipe->data;
  if (!arguments.chat_template.empty()) chats.template_file = arguments.chat_template;
  chats.template_args.insert(chats.template_args.end(), arguments.template_args.begin(),
                             arguments.template_args.end());
  try {
    return ChatForm::of(chats, tokenizer, file);
  } catch (const Error& error) {
    if (!arguments.raw)
      throw Error(error.kind(), error.what(), error.hint().empty() ? kOtherForm : error.hint());
    print_error("note: {}\n", error.what());
    return std::nullopt;
  }
}

/// What ends an answer: the end token of the tokenizer, those of generation_config.json, and what
/// closes a turn of a chat.
std::vector<std::int64_t> stop_tokens(const Tokenizer& tokenizer,
                                      const std::optional<ChatForm>& form,
                                      const std::filesystem::path& folder) {
  std::vector<std::int64_t> stops;
  if (const auto end = tokenizer.eos()) stops.push_back(*end);
  if (form) stops.insert(stops.end(), form->stop_tokens().begin(), form->stop_tokens().end());
  const std::filesystem::path file = folder / "generation_config.json";
  if (path_kind(file.string()) == PathKind::file) {
    const nlohmann::json json = parse_json(read_file(file), file.string());
    const auto found = json.find("eos_token_id");
    if (found != json.end()) {
      for (const nlohmann::json& id :
           found->is_array() ? *found : nlohmann::json::array({*found})) {
        if (id.is_number_integer()) stops.push_back(id.get<std::int64_t>());
      }
    }
  }
  std::ranges::sort(stops);
  stops.erase(std::ranges::unique(stops).begin(), stops.end());
  return stops;
}

std::vector<FilePrompt> prompts_of(const GenerateArguments& arguments) {
  const int ways = (arguments.prompt.empty() ? 0 : 1) + (arguments.prompts.empty() ? 0 : 1) +
                   (arguments.test < 0 ? 0 : 1) + (arguments.interactive ? 1 : 0);
  if (ways != 1)
    throw Error(ErrorKind::usage,
                ways == 0 ? "no prompt" : "--prompt, --prompts, --test and -i exclude each other",
                "give one of --prompt TEXT, --prompts FILE, --test N and -i");
  const auto refuse = [](bool wrong, const char* message, const char* hint) {
    if (wrong) throw Error(ErrorKind::usage, message, hint);
  };
  refuse(!arguments.data.empty() && arguments.test < 0, "--data says whose test split is asked",
         "add --test N, or leave it out");
  refuse(!arguments.overrides.empty() && arguments.data.empty(),
         "--set changes the recipe of --data", "add --data RECIPE, or leave it out");
  refuse(arguments.interactive && (!arguments.output.empty() || arguments.write.samples > 1 ||
                                   arguments.batch > 0 || arguments.ranks > 1 || arguments.raw),
         "-i has no -o, --samples, --batch, --ranks and --raw", "/save FILE keeps a chat");
  refuse(arguments.raw && (!arguments.chat_template.empty() || !arguments.template_args.empty()),
         "--raw takes prompts as they are, without a chat template",
         "leave out --raw, or --template and --template-arg");
  refuse(std::ranges::find(arguments.write.stop_texts, "") != arguments.write.stop_texts.end(),
         "--stop: an empty text would end every answer at once", "leave it out");
  if (arguments.interactive && ::isatty(STDIN_FILENO) != 1)
    throw Error(ErrorKind::usage, "-i: standard input is no terminal",
                "prompts of a file are answered by --prompts FILE");
  if (arguments.test >= 0 || arguments.interactive) return {};
  if (!arguments.prompts.empty()) return read_prompts(arguments.prompts);
  std::vector<FilePrompt> prompts;
  for (const std::string& text : arguments.prompt)
    prompts.push_back({std::to_string(prompts.size() + 1), text});
  return prompts;
}

/// Tokens of a prompt, in the form of a chat where there is one.
std::vector<std::int64_t> tokens_of(const Tokenizer& tokenizer, const FilePrompt& prompt,
                                    const std::optional<ChatForm>& form,
                                    const std::string& system) {
  if (prompt.chat && !form)
    throw Error(ErrorKind::data,
                fmt::format("prompt {} is a chat, and there is no chat template", prompt.id),
                "leave out --raw, or name a template: --template FILE, or chatml");
  if (form) {
    try {
      return form->prompt(tokenizer, prompt.chat ? *prompt.chat : question(system, prompt.text));
    } catch (const Error& error) {
      throw Error(error.kind(), fmt::format("prompt {}: {}", prompt.id, error.what()),
                  error.hint().empty() ? kOtherForm : error.hint());
    }
  }
  const auto opening = tokenizer.opening();
  std::vector<std::int64_t> tokens(opening.begin(), opening.end());
  for (const std::int32_t token : tokenizer.encode(prompt.text)) tokens.push_back(token);
  return tokens;
}

/// Says where the last message is an answer already.
void note_answered(const std::vector<FilePrompt>& prompts) {
  const auto answered = [](const FilePrompt& prompt) {
    return prompt.chat && !prompt.chat->messages.empty() &&
           prompt.chat->messages.back().role == chat::Role::assistant;
  };
  const auto first = std::ranges::find_if(prompts, answered);
  if (first == prompts.end()) return;
  print_error(
      "note: {} of {} chats end with an answer, to which the model adds one more; first {}\n",
      std::ranges::count_if(prompts, answered), prompts.size(), first->id);
}

/// The recipe of --data, else of the run.
Recipe recipe_of_test(const GenerateArguments& arguments, const FinishedModel& found) {
  if (!arguments.data.empty()) {
    bring_named(arguments.data, arguments.overrides, Bring::all_and_data);
    return load_recipe(arguments.data, arguments.overrides).recipe;
  }
  if (found.recipe) return *found.recipe;
  throw Error(ErrorKind::usage, "--test: a folder of a model has no data of its own",
              "name a recipe whose test split is asked, --data RECIPE");
}

/// The questions of --test and what answers to them are worth.
struct TestScores {
  std::vector<TextQuestion> questions;
  AnswerMeans means = {};
};

/// Adds the figures of an answer to its line and to the means.
void score(TestScores& scores, const WrittenAnswer& answer, nlohmann::ordered_json& line) {
  const TextQuestion& question = scores.questions[answer.prompt];
  const AnswerFigures figures = judge_answer(question, answer.text);
  scores.means.add(figures);
  line["expected"] = compared_answers(question);
  if (question.rule != text::AnswerRule::words) {
    line["right"] = figures.right_answers > 0;
    return;
  }
  line["exact_match"] = figures.exact_match;
  line["f1"] = figures.f1;
}

/// Answers in the order of the prompts, each written as soon as all before it are.
class AnswerLines {
 public:
  AnswerLines(const std::vector<FilePrompt>& prompts, int samples, JsonLines out,
              TestScores* scores)
      : prompts_(prompts),
        scores_(scores),
        samples_(static_cast<std::size_t>(samples)),
        waiting_(prompts.size() * samples_),
        out_(std::move(out)) {}

  void add(WrittenAnswer answer) {
    const std::size_t place = answer.prompt * samples_ + static_cast<std::size_t>(answer.sample);
    tokens_ += answer.tokens;
    ++whole_;
    waiting_[place] = std::move(answer);
    for (; next_ < waiting_.size() && waiting_[next_]; ++next_)
      write(*std::exchange(waiting_[next_], std::nullopt));
  }

  [[nodiscard]] std::int64_t tokens() const { return tokens_; }
  [[nodiscard]] std::size_t whole() const { return whole_; }
  [[nodiscard]] std::size_t count() const { return waiting_.size(); }
  [[nodiscard]] int without_room() const { return without_room_; }

 private:
  void write(const WrittenAnswer& answer) {
    const FilePrompt& prompt = prompts_[answer.prompt];
    nlohmann::ordered_json line = {{"id", parse_json(prompt.id, "id")},
                                   {"prompt", prompt.text},
                                   {"answer", answer.text},
                                   {"tokens", answer.tokens},
                                   {"ended", answer.ended},
                                   {"logprob", answer.log_probability}};
    if (samples_ > 1) line["sample"] = answer.sample;
    if (scores_ != nullptr) score(*scores_, answer, line);
    if (answer.tokens == 0 && answer.ended == "room") ++without_room_;
    out_.write(line);
  }

  const std::vector<FilePrompt>& prompts_;
  TestScores* scores_;  ///< of --test
  std::size_t samples_;
  std::vector<std::optional<WrittenAnswer>> waiting_;
  JsonLines out_;
  std::size_t next_ = 0, whole_ = 0;
  std::int64_t tokens_ = 0;
  int without_room_ = 0;
};

/// Copies of the model, one for each rank, on GPUs of their own.
std::vector<FinishedModel> open_models(const GenerateArguments& arguments,
                                       const std::vector<DeviceFacts>& devices,
                                       at::ScalarType dtype) {
  // The first allocation of a process finds out which handles of memory the driver permits.
  // LibTorch (CUDAExpandableSegment::map, 2.11) fails where threads find that out at the same time.
  if (devices.size() > 1)
    (void)at::empty({1}, at::TensorOptions(at::kByte).device(devices.front().device));
  std::vector<std::future<FinishedModel>> opening;
  for (const DeviceFacts& device : devices) {
    opening.push_back(std::async(std::launch::async, [&] {
      make_current(device.device);
      return open_finished_model(arguments.model, {.adapter = arguments.adapter,
                                                   .average = arguments.average,
                                                   .device = device.device,
                                                   .dtype = dtype});
    }));
  }
  std::vector<FinishedModel> models;
  for (std::future<FinishedModel>& one : opening) models.push_back(one.get());
  return models;
}

/// Answers at once of a rank: as many as it has to give, as memory has room for, and at most 512,
/// on a CPU 64.
int batch_for(const GenerateArguments& arguments, const Model& model, at::ScalarType dtype,
              const DeviceFacts& device, std::size_t answers, std::int64_t capacity) {
  std::int64_t batch =
      std::min<std::int64_t>(device.is_cuda() ? 512 : 64, static_cast<std::int64_t>(answers));
  const Bytes row = CachedModel::slot_bytes(model, dtype, capacity);
  if (device.is_cuda() && row > 0) {
    const MemoryFigures memory = memory_figures(device.device);
    const Bytes room = (memory.device_total - memory.device_used) / 10 * 8;
    batch = std::clamp<std::int64_t>(room / row - 1, 1, batch);
  }
  if (arguments.batch > 0)
    batch = std::min<std::int64_t>(arguments.batch, static_cast<std::int64_t>(answers));
  return static_cast<int>(batch);
}

int generate(GenerateArguments arguments) {
  if (arguments.write.sampling.temperature == 0 &&
      (arguments.write.sampling.top_k > 0 || arguments.write.sampling.top_p < 1 ||
       arguments.write.sampling.min_p > 0))
    throw Error(ErrorKind::usage,
                "--top-k, --top-p and --min-p choose among tokens, and --temperature 0 takes the "
                "most likely one",
                "add --temperature 1, or leave them out");
  std::vector<FilePrompt> prompts = prompts_of(arguments);
  JsonLines output(arguments.output,
                   {arguments.prompts, arguments.chat_template,
                    arguments.data});  // before the model is read, which takes long
  std::vector<DeviceFacts> devices;
  for (int rank = 0; rank < arguments.ranks; ++rank)
    devices.push_back(arguments.on_cpu ? cpu_device() : choose_device(rank));
  const DeviceFacts& device = devices.front();
  const at::ScalarType dtype = dtype_of(arguments.dtype, device);
  std::vector<FinishedModel> opened = open_models(arguments, devices, dtype);
  FinishedModel& found = opened.front();
  const std::filesystem::path tokenizer_folder =
      arguments.tokenizer.empty() ? found.tokenizer : std::filesystem::path(arguments.tokenizer);
  if (tokenizer_folder.empty())
    throw Error(ErrorKind::usage, found.what + ": the run names no tokenizer",
                "--tokenizer FOLDER");
  const auto tokenizer = Tokenizer::open(tokenizer_folder);
  const std::optional<ChatForm> known =
      chat_form(arguments, found.recipe, *tokenizer, tokenizer_folder);
  const std::optional<ChatForm> form = arguments.raw ? std::nullopt : known;
  if (!form && !arguments.system.empty())
    throw Error(ErrorKind::usage, "--system: prompts are taken as they are",
                arguments.raw ? "leave out --raw"
                              : "there is no chat template; name one: --template FILE, or chatml");
  arguments.write.stop_tokens = stop_tokens(*tokenizer, known, tokenizer_folder);
  if (arguments.interactive) {
    if (!form)
      throw Error(ErrorKind::usage, "-i: " + tokenizer_folder.string() + " has no chat template",
                  "name one: --template FILE, or chatml; without one --prompt TEXT asks");
    constexpr std::int64_t kMaxTokens = 16384, kUsualTokens = 2048;
    const std::int64_t capacity =
        std::min<std::int64_t>(found.positions > 0 ? found.positions : kUsualTokens, kMaxTokens);
    CachedModel model(found.model, device.device, dtype, 1, capacity);
    print_error("{}: {} on {}\n", found.what, c10::toString(dtype), device.name);
    return chat_at_terminal(model, *tokenizer, *form, arguments.write, arguments.system, capacity);
  }
  std::optional<TestScores> scores;
  if (arguments.test >= 0) {
    const Recipe recipe = recipe_of_test(arguments, found);
    DataConfig data = recipe.data;
    data.tokenizer = tokenizer_folder.string();
    PreparationProgress progress;
    scores.emplace(
        TestScores{test_questions(data, recipe.model.weights, arguments.test, &progress)});
    if (const std::string note = unread_answers(scores->questions); !note.empty())
      print_error("note: {}\n", note);
    for (const TextQuestion& one : scores->questions)
      prompts.push_back({std::to_string(prompts.size() + 1), one.prompt});
  }
  note_answered(prompts);
  AnswerLines lines(prompts, arguments.write.samples, std::move(output),
                    scores ? &*scores : nullptr);
  std::vector<std::vector<std::int64_t>> tokens;
  std::int64_t longest = 0;
  for (const FilePrompt& prompt : prompts) {
    tokens.push_back(scores ? scores->questions[tokens.size()].prompt_tokens
                            : tokens_of(*tokenizer, prompt, form, arguments.system));
    if (tokens.back().empty())
      throw Error(ErrorKind::data, fmt::format("prompt {} has no token", prompt.id),
                  "a text with a letter in it");
    for (const std::int64_t token : tokens.back()) {
      if (token >= found.model.vocab_size)
        throw Error(
            ErrorKind::data,
            fmt::format("{}: token {} of the tokenizer {} is none of the model's {}", found.what,
                        token, tokenizer_folder.string(), found.model.vocab_size),
            "--tokenizer with the model's own");
    }
    longest = std::max(longest, static_cast<std::int64_t>(tokens.back().size()));
  }
  std::int64_t capacity = longest + arguments.write.max_tokens;
  if (found.positions > 0) capacity = std::min<std::int64_t>(capacity, found.positions);
  const std::size_t answers = prompts.size() * static_cast<std::size_t>(arguments.write.samples),
                    of_rank = (answers + devices.size() - 1) / devices.size();
  std::vector<std::unique_ptr<CachedModel>> models;
  std::vector<CachedModel*> ranks;
  for (std::size_t rank = 0; rank < devices.size(); ++rank) {
    make_current(devices[rank].device);
    const int batch = batch_for(arguments, found.model, dtype, devices[rank], of_rank, capacity);
    models.push_back(std::make_unique<CachedModel>(opened[rank].model, devices[rank].device, dtype,
                                                   batch, capacity));
    ranks.push_back(models.back().get());
  }
  print_error("{}: {} on {}{}, {} prompt{}{}\n", found.what, c10::toString(dtype),
              devices.size() > 1 ? fmt::format("{} x ", devices.size()) : "", device.name,
              prompts.size(), prompts.size() == 1 ? "" : "s",
              form && !scores ? " as chats (--raw: as they are)" : "");

  const bool shows = !arguments.prompt.empty() && prompts.size() == 1 &&
                     arguments.write.samples == 1 && arguments.output.empty();
  const auto begin = Clock::now();
  auto shown = begin;
  std::optional<WrittenAnswer> single;
  const auto done = [&](WrittenAnswer answer) {
    if (shows) single = answer;
    if (!shows) lines.add(std::move(answer));
    const auto now = Clock::now();
    if (arguments.output.empty() || now - shown < std::chrono::seconds(2)) return;
    shown = now;
    print_error(
        "{} of {} answers, {:.0f} tokens/s\n", lines.whole(), lines.count(),
        static_cast<double>(lines.tokens()) / std::chrono::duration<double>(now - begin).count());
  };
  std::function<void(std::string_view)> text;
  if (shows) text = [](std::string_view more) { print_text(more); };
  interrupted = 0;
  std::signal(SIGINT, [](int) { interrupted = 1; });
  write_answers(ranks, *tokenizer, tokens, arguments.write, done, text,
                [] { return interrupted != 0; });
  std::signal(SIGINT, SIG_DFL);
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  if (shows) print_text("\n");
  const std::int64_t count = single ? single->tokens : lines.tokens();
  print_error("{} tokens in {:.1f} s, {:.1f} tokens/s{}\n", count, seconds,
              static_cast<double>(count) / std::max(seconds, 1e-9),
              single ? fmt::format("; ended by {}", single->ended) : "");
  const int without =
      lines.without_room() + (single && single->tokens == 0 && single->ended == "room" ? 1 : 0);
  if (without > 0)
    print_error("{} of {} prompts fill all {} positions of the model and got no answer\n", without,
                prompts.size(), found.positions);
  if (scores && scores->means.count() > 0)
    print_error("{} of {} answers\n", describe_answers(scores->means.means()),
                scores->means.count());
  constexpr int kInterrupted = 130;
  return interrupted != 0 ? kInterrupted : 0;
}

}  // namespace

Command add_generate(CLI::App& root) {
  auto options = std::make_shared<GenerateArguments>();
  CLI::App* app = root.add_subcommand(
      "generate",
      "Let a model answer: a folder in the Hugging Face layout, a run or a checkpoint.\n"
      "  dstrain generate runs/qwen-... --prompt 'What is 7 times 8?'\n"
      "  dstrain generate models/Qwen2.5-3B --prompts questions.jsonl -o answers.jsonl");
  app->add_option(
         "model", options->model,
         "Folder of a model, run directory (its best checkpoint, else its newest) or checkpoint.")
      ->required()
      ->check(input_folder());
  app->add_option("--prompt", options->prompt,
                  "A prompt; again for more. One alone is answered as plain text.");
  app->add_option("--prompts", options->prompts,
                  "JSONL with prompt and perhaps id, or a prompt in each line.")
      ->check(input_file());
  app->add_flag("-i,--interactive", options->interactive,
                "A chat at the terminal, in the form of the tokenizer's chat template.");
  app->add_option(
         "--test", options->test,
         "The first so many samples of the test split, 0 for all, are the prompts; answers "
         "are scored by SQuAD's exact match and F1, of metamathqa by MetaMath's rule.")
      ->check(number_in(0, 1 << 30));
  app->add_option("--data", options->data, "Recipe of that split. Default: the run's own.")
      ->check(input_file());
  add_overrides(*app, options->overrides);
  app->add_option("-o,--output", options->output,
                  "File of answers, a JSON object in each line, in the order of the prompts. "
                  "Default: standard output.");
  app->add_flag("--raw", options->raw,
                "Take prompts as they are, although the tokenizer has the form of a chat.");
  app->add_option(
      "--template", options->chat_template,
      "Jinja file of the chat template, or chatml. Default: that of a run's recipe, else "
      "the tokenizer's.");
  app->add_option("--template-arg", options->template_args,
                  "NAME=VALUE for the template, such as enable_thinking=false; again for more.");
  app->add_option("--system", options->system,
                  "System message of chats. Default: the tokenizer's own.");
  app->add_option("--adapter", options->adapter, "Folder of a PEFT adapter for the model.")
      ->check(input_folder());
  app->add_flag("--ema", options->average,
                "Of a run with ema.decay: the average of the weights over the steps.");
  app->add_option("--tokenizer", options->tokenizer,
                  "Folder or file of the tokenizer. Default: the model's.");
  app->add_option("--tokens", options->write.max_tokens, "Longest answer, in tokens. Default 256.")
      ->check(number_in(1, 1 << 20));
  app->add_option("--temperature", options->write.sampling.temperature,
                  "0 (default): always the most likely token.")
      ->check(number_in(0.0, 100.0));
  app->add_option("--top-k", options->write.sampling.top_k,
                  "Only the most likely so many tokens; 0 (default): all.")
      ->check(number_in(0, 1 << 24));
  app->add_option("--top-p", options->write.sampling.top_p,
                  "Only the fewest tokens whose probabilities reach this sum. Default 1.")
      ->check(number_in(1e-6, 1.0));
  app->add_option("--min-p", options->write.sampling.min_p,
                  "Only tokens above this share of the largest probability. Default 0.")
      ->check(number_in(0.0, 1.0));
  app->add_option("--repetition-penalty", options->write.sampling.repetition_penalty,
                  "Above 1: tokens that came already become less likely. Default 1.")
      ->check(number_in(0.01, 100.0));
  app->add_option("--stop", options->write.stop_texts,
                  "A text that ends an answer, beside the model's end tokens; again for more.");
  app->add_option("--samples", options->write.samples, "Answers to each prompt. Default 1.")
      ->check(number_in(1, 1 << 20));
  app->add_option("--seed", options->write.seed,
                  "Of random choices: the same answers at any --batch. Default 42.")
      ->check(number_in<std::int64_t>(0, std::numeric_limits<std::int64_t>::max()));
  app->add_option(
         "--batch", options->batch,
         "Answers that a rank writes at once; 0 (default): as many as fit, 512 at most, on "
         "a CPU 64.")
      ->check(number_in(0, 1 << 16));
  app->add_option(
         "--ranks", options->ranks,
         "Copies of the model, each on a GPU of its own, which share the prompts. Default 1.")
      ->check(number_in(1, 1024));
  add_dtype_option(*app, options->dtype);
  app->add_flag("--cpu", options->on_cpu, "Compute on the CPU although there is a GPU.");
  return {app, [options] { return generate(*options); }};
}

}  // namespace dstrain
