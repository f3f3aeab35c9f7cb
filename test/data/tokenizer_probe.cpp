#include <fmt/format.h>

#include "cmd/command.h"
#include "engine/base/error.h"

/// `dstrain data tokenize` without LibTorch, so that tokenizer_equality.py can call it often.
int main(int argc, char** argv) {
  CLI::App app;
  const dstrain::Command command = dstrain::add_data_tokenize(app);
  try {
    app.parse(argc, argv);
    return command.run();
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  } catch (const dstrain::Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return exit_code(error.kind());
  }
}
