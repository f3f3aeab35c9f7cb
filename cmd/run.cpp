#include <fmt/format.h>

#include <cstdio>
#include <exception>

#include "cmd/command.h"
#include "engine/base/error.h"
#include "engine/base/log.h"

namespace dstrain {

int run_command(CLI::App& app, const std::vector<Command>& commands, int argc, char** argv) {
  try {
    app.parse(argc, argv);
    for (const Command& command : commands) {
      if (command.app->parsed()) return command.run();
    }
    return 0;
  } catch (const CLI::Success& wanted) {  // --help, --version
    return app.exit(wanted);
  } catch (const CLI::ParseError& error) {
    log_line(LogLevel::error, error.what());
    fmt::print(stderr, "  hint: --help says what this command takes\n");
    return exit_code(ErrorKind::usage);
  } catch (const Error& error) {
    log_line(LogLevel::error, error.what());
    if (!error.hint().empty()) fmt::print(stderr, "  hint: {}\n", error.hint());
    return exit_code(error.kind());
  } catch (const std::exception& error) {
    log_line(LogLevel::error, error.what());
    return exit_code(ErrorKind::internal);
  }
}

}  // namespace dstrain
