#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "engine/base/error.h"
#include "recipes/import/import_state.h"
#include "recipes/import/shell_words.h"
#include "recipes/schema/text.h"

namespace dstrain::importing {
namespace {

constexpr const char* kCommandLine = "--command";

Node scalar(const std::string& text) { return {Node::Kind::scalar, Place{}, text, true}; }

/// Reads the words of a launcher's command line.
class CommandReader {
 public:
  CommandReader(Import& import, const std::string& line)
      : import_(import), words_(shell_words(line)) {}

  void read() {
    take_environment();
    const Table table = take_program();
    take_options(table);
    if (at_ == words_.size()) return;
    script_ = words_[at_++];
    take_script_arguments();
  }

 private:
  [[noreturn]] void refuse(std::string message, std::string hint) const {
    throw RecipeError(
        {{.file = kCommandLine, .message = std::move(message), .hint = std::move(hint)}});
  }

  /// NAME=VALUE before the program.
  void take_environment() {
    for (; at_ < words_.size(); ++at_) {
      const std::string& word = words_[at_];
      const std::size_t equal = word.find('=');
      if (equal == std::string::npos || equal == 0 || word[0] == '-' || word.find('/') < equal)
        break;
      const bool secret = names_secret(word.substr(0, equal));
      import_.result.launch.insert(import_.result.launch.end(),
                                   {"--env", secret ? word.substr(0, equal) : word});
      if (secret)
        import_.result.notes.push_back(
            fmt::format("{} is not copied: export it before the launch", word.substr(0, equal)));
    }
  }

  [[nodiscard]] bool next_is(std::string_view word) const {
    return at_ < words_.size() && words_[at_] == word;
  }

  Table take_program() {
    if (at_ == words_.size()) refuse("empty", "give the command that starts the training");
    const std::string program = std::filesystem::path(words_[at_]).filename().string();
    ++at_;
    if (program == "deepspeed") return Table::deepspeed_command;
    if (program == "torchrun") return Table::torchrun_command;
    if (program == "accelerate" && next_is("launch")) {
      ++at_;
      return Table::accelerate_command;
    }
    if (program.starts_with("python") && next_is("-m") && at_ + 1 < words_.size()) {
      const std::string module = words_[at_ + 1];
      at_ += 2;
      if (module == "torch.distributed.run" || module == "torch.distributed.launch")
        return Table::torchrun_command;
      if (module == "deepspeed.launcher.runner") return Table::deepspeed_command;
      if (module == "accelerate.commands.launch") return Table::accelerate_command;
      refuse(fmt::format("module {} starts no ranks", shown(module)),
             "give a command of deepspeed, torchrun or accelerate launch");
    }
    if (program.starts_with("python")) {  // one process
      std::string script;
      return Table::torchrun_command;
    }
    refuse(fmt::format("'{}' is none of deepspeed, torchrun and accelerate launch", shown(program)),
           "give the part of the line that begins with one of them");
  }

  static std::string long_name(Table table, char letter) {
    const std::string_view from = table == Table::deepspeed_command ? "Hieq" : "m";
    constexpr const char* kNames[] = {"hostfile", "include", "exclude", "quiet"};
    const std::size_t at = from.find(letter);
    if (at == std::string_view::npos) return {letter};
    return table == Table::deepspeed_command ? kNames[at] : "module";
  }

  void take_options(Table table) {
    while (at_ < words_.size() && words_[at_].starts_with('-') && words_[at_] != "--") {
      const std::string word = words_[at_++];
      const std::size_t equal = std::min(word.find('='), word.size());
      const bool is_long = word.starts_with("--");
      std::string name =
          is_long ? word.substr(2, equal - 2) : long_name(table, word.size() > 1 ? word[1] : '-');
      std::ranges::replace(name, '-', '_');
      const KeyRule* rule = find_rule(table, name);
      std::string value = "true";
      if (equal < word.size()) {
        value = word.substr(equal + 1);
      } else if (rule != nullptr && rule->kind != Kind::flag) {
        if (at_ == words_.size()) refuse(fmt::format("{} has no value", shown(word)), "give it");
        value = words_[at_++];
      }
      import_.take({.table = table,
                    .path = name,
                    .file = kCommandLine,
                    .node = scalar(value),
                    .value = shown(value)});
    }
    if (next_is("--")) ++at_;
  }

  /// --name value, --name=value, --name: those of TrainingArguments, and ds_config.json.
  void take_script_arguments() {
    while (at_ < words_.size()) {
      const std::string word = words_[at_++];
      if (!word.starts_with("--")) {
        import_.result.unread.push_back(fmt::format("{} {}", script_, shown(word)));
        continue;
      }
      const std::size_t equal = std::min(word.find('='), word.size());
      std::string name = word.substr(2, equal - 2);
      std::ranges::replace(name, '-', '_');
      std::vector<std::string> values;
      if (equal < word.size())
        values.push_back(word.substr(equal + 1));
      else
        while (at_ < words_.size() && !words_[at_].starts_with("--"))
          values.push_back(words_[at_++]);
      take_script_argument(name, values);
    }
  }

  void take_script_argument(const std::string& name, const std::vector<std::string>& values) {
    const bool config = name == "deepspeed_config" ||
                        (name == "deepspeed" && !values.empty() && values[0].ends_with(".json"));
    if (config && !values.empty()) {
      deepspeed = values[0];
      return;
    }
    if (name == "deepspeed") return;  // a switch of scripts without Trainer
    const KeyRule* rule = find_rule(Table::trainer, name);
    if (rule == nullptr) {
      const std::string value =
          names_secret(name) ? "(not shown)" : fmt::format("{}", fmt::join(values, " "));
      import_.result.unread.push_back(
          fmt::format("{} --{} {}", script_, shown(name), shown(value)));
      return;
    }
    Node node = scalar(values.empty() ? "true" : values[0]);
    if (values.size() > 1) {
      node = Node(Node::Kind::list, Place{});
      for (const std::string& value : values) node.items.push_back(scalar(value));
    }
    import_.take(
        {.table = Table::trainer,
         .path = name,
         .file = kCommandLine,
         .node = std::move(node),
         .value = values.empty() ? "true" : shown(fmt::format("{}", fmt::join(values, " ")))});
  }

  Import& import_;
  std::vector<std::string> words_;
  std::size_t at_ = 0;
  std::string script_;

 public:
  std::string deepspeed;  ///< ds_config.json that the script is given
};

}  // namespace

std::string read_command(Import& import, const std::string& command) {
  import.result.sources.emplace_back(kCommandLine);
  if (first_invalid_utf8(command) != std::string::npos) {
    throw RecipeError(
        {{.file = kCommandLine, .message = "is no text in UTF-8", .hint = "write plain text"}});
  }
  CommandReader reader(import, command);
  reader.read();
  return reader.deepspeed;
}

}  // namespace dstrain::importing
