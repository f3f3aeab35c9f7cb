#include "cmd/chat_loop.h"

#include <fmt/format.h>

#include <charconv>
#include <csignal>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/output.h"

namespace dstrain {
namespace {

constexpr const char* kHelp =
    "/reset             forget the chat\n"
    "/system TEXT       another system message; forgets the chat\n"
    "/set NAME VALUE    temperature, top-k, top-p, min-p, repetition-penalty, tokens or seed\n"
    "/save FILE         the chat as a line of JSON, as recipes read it\n"
    "Ctrl-C ends an answer, Ctrl-D the chat\n";

volatile std::sig_atomic_t interrupted_chat = 0;

class ChatAtTerminal {
 public:
  ChatAtTerminal(CachedModel& model, const Tokenizer& tokenizer, const ChatForm& form,
                 WriteOptions options, std::string system, std::int64_t capacity)
      : model_(model),
        tokenizer_(tokenizer),
        form_(form),
        options_(std::move(options)),
        capacity_(capacity) {
    begin(std::move(system));
  }

  void take(const std::string& line) {
    if (line.empty()) return;
    try {
      if (line.front() == '/')
        command(line);
      else
        answer(line);
    } catch (const Error& error) {
      print_error("{}{}{}\n", error.what(), error.hint().empty() ? "" : "; ", error.hint());
    }
  }

 private:
  void begin(std::string system) {
    system_ = std::move(system);
    messages_ = nlohmann::json::array();
    if (!system_.empty()) messages_.push_back({{"role", "system"}, {"content", system_}});
  }

  void command(const std::string& line) {
    const auto blank = line.find(' ');
    const std::string word = line.substr(0, blank);
    const std::string rest = blank == std::string::npos ? "" : line.substr(blank + 1);
    if (word == "/reset") {
      begin(system_);
    } else if (word == "/system") {
      begin(rest);
    } else if (word == "/set") {
      set(rest);
    } else if (word == "/save" && !rest.empty()) {
      write_file_atomically(rest, json_text(nlohmann::json{{"messages", messages_}}) + "\n");
      print_error("saved: {}\n", rest);
    } else {
      print_error("{}", kHelp);
    }
  }

  void set(const std::string& rest) {
    const auto blank = rest.find(' ');
    const std::string name = rest.substr(0, blank);
    const std::string text = blank == std::string::npos ? "" : rest.substr(blank + 1);
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool read = error == std::errc() && end == text.data() + text.size();
    SamplingOptions& s = options_.sampling;
    struct Setting {
      std::string_view name;
      double min, max;
      void (*take)(WriteOptions&, double);
    };
    static constexpr Setting kSettings[] = {
        {"temperature", 0, 100, [](WriteOptions& o, double v) { o.sampling.temperature = v; }},
        {"top-k", 0, 1 << 24, [](WriteOptions& o, double v) { o.sampling.top_k = static_cast<int>(v); }},
        {"top-p", 1e-6, 1, [](WriteOptions& o, double v) { o.sampling.top_p = v; }},
        {"min-p", 0, 1, [](WriteOptions& o, double v) { o.sampling.min_p = v; }},
        {"repetition-penalty", 0.01, 100,
         [](WriteOptions& o, double v) { o.sampling.repetition_penalty = v; }},
        {"tokens", 1, 1 << 20, [](WriteOptions& o, double v) { o.max_tokens = static_cast<int>(v); }},
        {"seed", 0, 1LL << 53,
         [](WriteOptions& o, double v) { o.seed = static_cast<std::uint64_t>(v); }}};
    for (const Setting& one : kSettings) {
      if (one.name != name) continue;
      if (!read || value < one.min || value > one.max)
        return print_error("/set {}: '{}' is no number from {:g} to {:g}\n", name, text, one.min,
                           one.max);
      one.take(options_, value);
      if (s.temperature == 0 && (s.top_k > 0 || s.top_p < 1 || s.min_p > 0))
        print_error("note: temperature 0 takes the most likely token whatever is set\n");
      return;
    }
    print_error("{}", kHelp);
  }

  [[nodiscard]] std::vector<std::int64_t> prompt() const {
    return form_.prompt(tokenizer_, chat_of_json(json_text(nlohmann::json{{"messages", messages_}}),
                                                 "the chat"));
  }

  /// Takes the oldest turns away until there is room for an answer.
  std::vector<std::int64_t> prompt_with_room() {
    const std::size_t first = system_.empty() ? 0 : 1;
    const std::int64_t wanted = std::min<std::int64_t>(options_.max_tokens, capacity_ / 4);
    std::vector<std::int64_t> tokens = prompt();
    int gone = 0;
    while (std::ssize(tokens) + wanted > capacity_ && messages_.size() > first + 1) {
      for (int part = 0; part < 2 && messages_.size() > first + 1; ++part)
        messages_.erase(first);
      ++gone;
      tokens = prompt();
    }
    if (gone > 0) print_error("the {} oldest turns are forgotten: the model has room for {} tokens\n", gone, capacity_);
    return tokens;
  }

  void answer(const std::string& line) {
    messages_.push_back({{"role", "user"}, {"content", line}});
    const std::vector<std::vector<std::int64_t>> prompts = {prompt_with_room()};
    std::optional<WrittenAnswer> whole;
    std::string shown;
    interrupted_chat = 0;
    CachedModel* const model = &model_;
    write_answers(
        {&model, 1}, tokenizer_, prompts, options_, [&](WrittenAnswer done) { whole = std::move(done); },
        [&](std::string_view more) {
          shown += more;
          print_text(more);
        },
        [] { return interrupted_chat != 0; });
    print_text("\n");
    if (whole && whole->ended == "room")
      print_error("the message fills all {} tokens that there is room for\n", capacity_);
    messages_.push_back({{"role", "assistant"}, {"content", whole ? whole->text : shown}});
    options_.seed += 1;  // the next answer draws anew
    interrupted_chat = 0;
  }

  CachedModel& model_;
  const Tokenizer& tokenizer_;
  const ChatForm& form_;
  WriteOptions options_;
  std::int64_t capacity_;
  std::string system_;
  nlohmann::json messages_;
};

}  // namespace

int chat_at_terminal(CachedModel& model, const Tokenizer& tokenizer, const ChatForm& form,
                     WriteOptions options, std::string system, std::int64_t capacity) {
  ChatAtTerminal chat(model, tokenizer, form, std::move(options), std::move(system), capacity);
  // Without SA_RESTART: a line that is waited for ends, too.
  struct sigaction action {};
  struct sigaction before {};
  action.sa_handler = [](int) { interrupted_chat = 1; };
  ::sigaction(SIGINT, &action, &before);
  print_error("/help says what else there is\n");
  for (std::string line; print_text("> "), std::getline(std::cin, line);) chat.take(line);
  ::sigaction(SIGINT, &before, nullptr);
  print_text("\n");
  constexpr int kInterrupted = 130;
  return interrupted_chat != 0 ? kInterrupted : 0;
}

}  // namespace dstrain
