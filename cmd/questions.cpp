#include "cmd/questions.h"

#include <unistd.h>

#include <iostream>

#include "engine/base/output.h"

namespace dstrain {

Questions::Questions(bool silent) : asks_(!silent && ::isatty(STDIN_FILENO) == 1) {
  if (!silent && !asks_)
    print_error("note: standard input is no terminal: defaults are taken, as with --yes\n");
}

std::string Questions::ask(const std::string& question, const std::string& otherwise) const {
  if (!asks_) return otherwise;
  print_error("{}{}: ", question, otherwise.empty() ? "" : fmt::format(" [{}]", otherwise));
  std::string line;
  if (!std::getline(std::cin, line)) print_error("\n");
  const auto first = line.find_first_not_of(" \t");
  if (first == std::string::npos) return otherwise;
  return line.substr(first, line.find_last_not_of(" \t") + 1 - first);
}

}  // namespace dstrain
