#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <new>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "cmd/command.h"
#include "cmd/other_flags.h"
#include "engine/base/disk_error.h"
#include "engine/base/error.h"
#include "engine/base/host_memory.h"
#include "engine/base/limits.h"
#include "engine/base/log.h"
#include "engine/base/output.h"
#include "engine/recipe/load.h"
#include "engine/recipe/text.h"

namespace dstrain {

namespace {

/// What other programs call it, and commands without the word before them.
struct OtherCommand {
  std::string_view word;
  std::string_view command;
};
constexpr OtherCommand kOtherCommands[] = {{"train", "launch"},
                                           {"run", "launch"},
                                           {"start", "launch"},
                                           {"finetune", "launch"},
                                           {"new", "recipe new"},
                                           {"init", "recipe new"},
                                           {"list", "recipe list"},
                                           {"check", "recipe check"},
                                           {"show", "recipe show"},
                                           {"import", "recipe import-deepspeed"},
                                           {"merge", "trace merge"},
                                           {"analyze", "trace analyze"},
                                           {"diff", "trace diff"},
                                           {"export", "checkpoint export"},
                                           {"convert", "checkpoint import"},
                                           {"inspect", "checkpoint inspect"},
                                           {"prepare", "data prepare"},
                                           {"tokenize", "data tokenize"},
                                           {"estimate", "plan"},
                                           {"env", "doctor"}};

std::string command_for(const std::string& word, const std::vector<std::string>& names) {
  for (const OtherCommand& other : kOtherCommands) {
    if (other.word == word) return std::string(other.command);
  }
  return std::string(nearest(word, {names.begin(), names.end()}));
}

/// CLI11 would only say that a subcommand is required; a person wants to know which word was wrong.
void refuse_unknown_command(const CLI::App& app, int argc, char** argv) {
  const CLI::App* level = &app;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const std::vector<const CLI::App*> known =
        level->get_subcommands([](const CLI::App*) { return true; });
    if (known.empty() || word.starts_with('-')) return;
    const auto found = std::find_if(known.begin(), known.end(), [&](const CLI::App* command) {
      return command->get_name() == word;
    });
    if (found == known.end()) {
      std::vector<std::string> names;
      for (const CLI::App* command : known) {
        if (!command->get_group().empty()) names.push_back(command->get_name());
      }
      const std::string close = level == &app
                                    ? command_for(word, names)
                                    : std::string(nearest(word, {names.begin(), names.end()}));
      throw Error(
          ErrorKind::usage, fmt::format("'{}' is no command of {}", shown(word), level->get_name()),
          fmt::format("{}known: {}", close.empty() ? "" : fmt::format("did you mean {}? ", close),
                      fmt::join(names, ", ")));
    }
    level = *found;
  }
}

/// The command whose options were being read.
const CLI::App& chosen_command(const CLI::App& app) {
  const CLI::App* level = &app;
  while (!level->get_subcommands().empty()) level = level->get_subcommands().front();
  return *level;
}

/// "checkpoint export": the words after the program's name.
std::string words_of(const CLI::App& command) {
  const CLI::App* group = command.get_parent();
  return group != nullptr && group->get_parent() != nullptr
             ? fmt::format("{} {}", group->get_name(), command.get_name())
             : command.get_name();
}

/// For words that the chosen command does not take: which, and the option that was meant. Nothing
/// when it takes them all.
std::optional<Error> unknown_word(const CLI::App& app) {
  const std::vector<std::string> words = app.remaining(/*recurse=*/true);
  if (words.empty()) return std::nullopt;
  const CLI::App& command = chosen_command(app);
  const std::string called = words_of(command);
  const auto unknown = std::find_if(words.begin(), words.end(),
                                    [](const std::string& word) { return word.starts_with('-'); });
  if (unknown == words.end()) {
    return Error(ErrorKind::usage,
                 fmt::format("{}: one word too many, '{}'", called, shown(words[0])),
                 fmt::format("a pattern such as runs/NAME-* is as many words as there are folders; "
                             "{} --help says what it takes",
                             called));
  }
  const std::string name = unknown->substr(0, unknown->find('='));
  const std::string here = meaning_here(name, command);
  return Error(ErrorKind::usage, fmt::format("{} has no option '{}'", called, shown(name)),
               here.empty() ? fmt::format("{} --help lists its options", called) : here);
}

/// --help and --version, as text.
std::string asked_for(const CLI::App& app, const CLI::Success& wanted) {
  std::ostringstream text;
  app.exit(wanted, text, text);
  return text.str();
}

/// Throws what is wrong, but for the words of the command line.
int parse_and_run(CLI::App& app, const std::vector<Command>& commands, int argc, char** argv) {
  require_standard_output();
  refuse_unknown_command(app, argc, argv);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& wanted) {
    print_text(asked_for(app, wanted));
    return 0;
  } catch (const CLI::ParseError& error) {
    if (const auto told = unknown_word(app)) throw *told;
    throw Error(ErrorKind::usage, error.what(), "--help says what this command takes");
  }
  for (const Command& command : commands) {
    if (command.app->parsed()) return command.run();
  }
  return 0;
}

}  // namespace

int run_command(CLI::App& app, const std::vector<Command>& commands, int argc, char** argv) {
  return run_guarded([&] { return parse_and_run(app, commands, argc, argv); });
}

int run_guarded(const std::function<int()>& body) {
  try {
    return body();
  } catch (const RecipeError& error) {  // each line names its file or --set
    print_error("{}\n", error.what());
    return exit_code(error.kind());
  } catch (const Error& error) {
    log_line(LogLevel::error, error.what());
    if (!error.hint().empty()) print_error("  hint: {}\n", error.hint());
    return exit_code(error.kind());
  } catch (const std::filesystem::filesystem_error& error) {
    log_line(LogLevel::error, error.what());
    print_error("  hint: choose a path that exists, that you may write and where there is room\n");
    return exit_code(refusal_kind(error.code()));
  } catch (const std::bad_alloc&) {
    const Error told = host_memory_error(0);
    log_line(LogLevel::error, told.what());
    print_error("  hint: {}\n", told.hint());
    return exit_code(told.kind());
  } catch (const std::system_error& error) {
    const auto memory = address_space_error(error.code());
    log_line(LogLevel::error,
             memory ? memory->what() : error.what() + limit_note(error.code().value()));
    if (memory) print_error("  hint: {}\n", memory->hint());
    return exit_code(ErrorKind::internal);
  } catch (const std::exception& error) {
    log_line(LogLevel::error, error.what());
    return exit_code(ErrorKind::internal);
  }
}

}  // namespace dstrain
