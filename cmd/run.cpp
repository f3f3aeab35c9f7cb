#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <string>

#include "cmd/command.h"
#include "engine/base/disk_error.h"
#include "engine/base/log.h"
#include "recipes/schema/load.h"

namespace dstrain {

namespace {

/// To a reader that may be gone: nobody is left to tell.
void print_error(const std::string& text) {
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());
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
      throw Error(ErrorKind::usage,
                  fmt::format("'{}' is no command of {}", word, level->get_name()),
                  fmt::format("known: {}", fmt::join(names, ", ")));
    }
    level = *found;
  }
}

}  // namespace

int run_command(CLI::App& app, const std::vector<Command>& commands, int argc, char** argv) {
  try {
    refuse_unknown_command(app, argc, argv);
    app.parse(argc, argv);
    for (const Command& command : commands) {
      if (command.app->parsed()) return command.run();
    }
    return 0;
  } catch (const CLI::Success& wanted) {  // --help, --version
    return app.exit(wanted);
  } catch (const CLI::ParseError& error) {
    log_line(LogLevel::error, error.what());
    print_error("  hint: --help says what this command takes\n");
    return exit_code(ErrorKind::usage);
  } catch (const RecipeError& error) {  // each line names its file or --set
    print_error(fmt::format("{}\n", error.what()));
    return exit_code(error.kind());
  } catch (const Error& error) {
    log_line(LogLevel::error, error.what());
    if (!error.hint().empty()) print_error(fmt::format("  hint: {}\n", error.hint()));
    return exit_code(error.kind());
  } catch (const std::filesystem::filesystem_error& error) {
    log_line(LogLevel::error, error.what());
    print_error("  hint: choose a path that exists, that you may write and where there is room\n");
    return exit_code(refusal_kind(error.code()));
  } catch (const std::exception& error) {
    log_line(LogLevel::error, error.what());
    return exit_code(ErrorKind::internal);
  }
}

}  // namespace dstrain
