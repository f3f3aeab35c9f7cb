#include "cmd/completion_words.h"

namespace dstrain {
namespace {

void add_words(const CLI::App& app, const std::string& command, std::string& text) {
  std::string words;
  std::string below;
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (sub->get_group().empty()) continue;  // hidden
    words += " " + sub->get_name();
    add_words(*sub, command.empty() ? sub->get_name() : command + " " + sub->get_name(), below);
  }
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) words += " --" + name;
  }
  text += command + "\t" + (words.empty() ? words : words.substr(1)) + "\n" + below;
}

}  // namespace

std::string completion_words(const CLI::App& app) {
  std::string text;
  add_words(app, "", text);
  return text;
}

}  // namespace dstrain
