#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <span>

#include "engine/base/error.h"
#include "engine/base/redact.h"
#include "engine/import/import_state.h"
#include "engine/import/python_value.h"
#include "engine/import/shell_words.h"
#include "engine/recipe/text.h"

namespace dstrain::importing {
namespace {

constexpr const char* kCommandLine = "--command";

Node scalar(const std::string& text) { return {Node::Kind::scalar, Place{}, text, true}; }

std::string with_underscores(std::string name) {
  std::ranges::replace(name, '-', '_');
  return name;
}

/// "-1" and ".5" are values; "-x" and "--x" are options, as argparse has it.
bool begins_option(const std::string& word) {
  return word.size() > 1 && word[0] == '-' && !python_real(word) &&
         word.find(' ') == std::string::npos;
}

/// A long option of a command line as it was written: "--batch-size=8".
struct Option {
  std::string name;                  ///< "batch-size"
  std::optional<std::string> value;  ///< behind "="
};
Option option_of(const std::string& word) {
  const std::size_t equal = std::min(word.find('='), word.size());
  Option option = {word.substr(2, equal - 2), std::nullopt};
  if (equal < word.size()) option.value = word.substr(equal + 1);
  return option;
}

/// Short options by table: letter and name.
struct Short {
  Table table;
  char letter;
  const char* name;
};
constexpr Short kShortOptions[] = {
    {Table::deepspeed_command, 'H', "hostfile"}, {Table::deepspeed_command, 'i', "include"},
    {Table::deepspeed_command, 'e', "exclude"},  {Table::deepspeed_command, 'q', "quiet"},
    {Table::torchrun_command, 'm', "module"},    {Table::torchrun_command, 'r', "redirects"},
    {Table::torchrun_command, 't', "tee"},       {Table::accelerate_command, 'm', "module"},
    {Table::accelerate_command, 'q', "quiet"},   {Table::accelerate_command, 't', "tee"}};

/// "-Hhosts" as "--hostfile=hosts"; an unknown letter stays as it is.
std::string long_form(Table table, const std::string& word) {
  for (const Short& one : kShortOptions) {
    if (one.table != table || word.size() < 2 || one.letter != word[1]) continue;
    std::string rest = word.substr(2);
    if (rest.empty()) return fmt::format("--{}", one.name);
    return fmt::format("--{}={}", one.name, rest.substr(rest[0] == '=' ? 1 : 0));
  }
  return "-" + word;
}

/// Reads the words of a launcher's command line.
class CommandReader {
 public:
  CommandReader(Import& import, const std::string& line)
      : import_(import), words_(shell_words(line)) {}

  void read() {
    const std::size_t end = end_of_environment();
    at_ = end;
    const Table table = take_program();
    take_environment(table, end);
    take_options(table);
    if (at_ == words_.size()) return;
    import_.script = words_[at_++];
    take_script_arguments();
  }

 private:
  [[noreturn]] void refuse(std::string message, std::string hint) const {
    throw RecipeError(
        {{.file = kCommandLine, .message = std::move(message), .hint = std::move(hint)}});
  }

  [[nodiscard]] std::size_t end_of_environment() const {
    std::size_t at = 0;
    for (; at < words_.size(); ++at) {
      const std::string& word = words_[at];
      const std::size_t equal = word.find('=');
      if (equal == std::string::npos || equal == 0 || word[0] == '-' || word.find('/') < equal)
        break;
    }
    return at;
  }
  /// NAME=VALUE before the program.
  void take_environment(Table table, std::size_t end) {
    for (std::size_t at = 0; at < end; ++at) {
      const std::string& word = words_[at];
      const std::string name = word.substr(0, word.find('='));
      if (name == "CUDA_VISIBLE_DEVICES" && table == Table::deepspeed_command) {
        import_.visible_devices = word.substr(name.size() + 1);
        continue;
      }
      const bool secret = is_secret_name(name);
      import_.result.launch.insert(import_.result.launch.end(), {"--env", secret ? name : word});
      if (secret)
        import_.result.notes.push_back(
            fmt::format("{} is not copied: export it before the launch", name));
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
    if (program == "torchrun") return torchrun();
    if (program == "accelerate-launch") return Table::accelerate_command;
    if (program == "accelerate" && next_is("launch")) {
      ++at_;
      return Table::accelerate_command;
    }
    if (program.starts_with("python") && next_is("-m") && at_ + 1 < words_.size()) {
      const std::string module = words_[at_ + 1];
      at_ += 2;
      if (module == "torch.distributed.run" || module == "torch.distributed.launch")
        return torchrun();
      if (module == "deepspeed.launcher.runner") return Table::deepspeed_command;
      if (module == "accelerate.commands.launch") return Table::accelerate_command;
      refuse(fmt::format("module {} starts no ranks", shown(module)),
             "give a command of deepspeed, torchrun or accelerate launch");
    }
    if (program.starts_with("python")) return Table::torchrun_command;  // one process
    refuse(fmt::format("'{}' is none of deepspeed, torchrun and accelerate launch", shown(program)),
           "give the part of the line that begins with one of them");
  }
  Table torchrun() {
    import_.torchrun = true;
    return Table::torchrun_command;
  }

  void take_options(Table table) {
    while (at_ < words_.size() && words_[at_].starts_with('-') && words_[at_] != "--") {
      const std::string word = words_[at_++];
      const Option option = option_of(word.starts_with("--") ? word : long_form(table, word));
      // Those of deepspeed have one spelling.
      const std::string name =
          table == Table::deepspeed_command ? option.name : with_underscores(option.name);
      const KeyRule* rule = find_rule(table, name);
      const bool flag = rule == nullptr || rule->kind == Kind::flag;
      Given given = {.table = table, .path = name, .file = kCommandLine};
      if (rule != nullptr && flag && option.value) {
        import_.error(&given, fmt::format("{}: it takes no value", shown(word)),
                      fmt::format("write --{}", shown(option.name)));
        continue;
      }
      std::string value = option.value.value_or("true");
      if (!option.value && !flag) {
        if (at_ == words_.size() || begins_option(words_[at_]))
          refuse(fmt::format("{} has no value", shown(word)), "give it");
        value = words_[at_++];
      }
      given.node = scalar(value);
      given.value = shown(value);
      import_.take(std::move(given));
    }
    if (next_is("--")) ++at_;
  }

  void list(const std::string& text) {
    import_.result.unread.push_back(fmt::format("{} {}", import_.script, text));
  }

  /// --name value, --name=value, --name: those of TrainingArguments, and ds_config.json.
  void take_script_arguments() {
    const auto rest = std::span(words_).subspan(at_);
    const bool with_config = std::ranges::any_of(rest, [](const std::string& word) {
      return with_underscores(word).starts_with("__deepspeed_config");
    });
    while (at_ < words_.size()) {
      const std::string word = words_[at_++];
      if (!word.starts_with("--") || word == "--") {
        list(shown(word));
        continue;
      }
      const Option option = option_of(word);
      std::vector<std::string> values;
      if (option.value)
        values.push_back(*option.value);
      else
        while (at_ < words_.size() && !begins_option(words_[at_])) values.push_back(words_[at_++]);
      take_script_argument(option.name, values, with_config);
    }
  }

  /// The file that --deepspeed or --deepspeed_config names. The first is a switch where the other
  /// one is given.
  bool take_config(const std::string& name, const std::vector<std::string>& values,
                   bool with_config) {
    if (name != "deepspeed" && name != "deepspeed_config") return false;
    const bool is_switch = name == "deepspeed" && (values.empty() || python_flag(values[0]));
    if (values.empty() || is_switch) return values.size() < 2;
    if (name == "deepspeed" && with_config && !values[0].ends_with(".json")) return false;
    import_.configs.push_back(values[0]);
    for (std::size_t i = 1; i < values.size(); ++i) list(shown(values[i]));
    return true;
  }

  void take_script_argument(const std::string& written, const std::vector<std::string>& values,
                            bool with_config) {
    const std::string name = with_underscores(written);
    if (take_config(name, values, with_config)) return;
    const KeyRule* rule = name == "deepspeed" ? nullptr : find_rule(Table::trainer, name);
    const std::string value = fmt::format("{}", fmt::join(values, " "));
    if (rule == nullptr) {
      std::string text = fmt::format("--{}", shown(written));
      if (!values.empty()) text += " " + (is_secret_name(name) ? "(not shown)" : shown(value));
      return list(text);
    }
    Node node = scalar(values.empty() ? "true" : values[0]);
    if (values.size() > 1) {
      node = Node(Node::Kind::list, Place{});
      for (const std::string& one : values) node.items.push_back(scalar(one));
    }
    import_.take({.table = Table::trainer,
                  .path = name,
                  .file = kCommandLine,
                  .node = std::move(node),
                  .value = values.empty() ? "true" : shown(value)});
  }

  Import& import_;
  std::vector<std::string> words_;
  std::size_t at_ = 0;
};

}  // namespace

void read_command(Import& import, const std::string& command) {
  import.result.sources.emplace_back(kCommandLine);
  if (first_invalid_utf8(command) != std::string::npos) {
    throw RecipeError(
        {{.file = kCommandLine, .message = "is no text in UTF-8", .hint = "write plain text"}});
  }
  CommandReader(import, command).read();
}

}  // namespace dstrain::importing
