#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>

#include "cmd/command.h"
#include "cmd/completion_words.h"
#include "cmd/recipe_words.h"
#include "engine/base/error.h"
#include "engine/base/output.h"
#include "engine/base/program_output.h"
#include "engine/recipe/render.h"

namespace dstrain {
namespace {

constexpr double kEngineLimit_s = 60;  ///< cold LibTorch on a network disk is slow

/// Words by command, those of the commands in the engine library among them where it can be loaded.
std::map<std::string, std::string> words_by_command(const CLI::App& root) {
  std::map<std::string, std::string> all;
  const auto add = [&all](const std::string& text, bool of_engine) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      const auto tab = line.find('\t');
      const std::string command = line.substr(0, tab);
      // The root here says which of the library's commands are a person's.
      const bool listed = !command.empty() && all.contains(command.substr(0, command.find(' ')));
      // The root here also knows all words of commands of which the library has a part.
      const bool known = all.contains(command) && !all[command].empty();
      if (!of_engine || (listed && !known)) all[command] = line.substr(tab + 1);
    }
  };
  add(completion_words(root), false);
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  if (const auto text = output_of({self, "words"}, kEngineLimit_s)) {
    add(*text, true);
  } else {
    print_error(
        "note: options of bench, data and engine are left out: `dstrain doctor` "
        "says why the engine cannot be loaded\n");
  }
  return all;
}

std::string recipe_names() {
  std::string names;
  for (const auto& recipe : importing::recipes_below(recipes_folder()))
    names += (names.empty() ? "" : " ") + recipe.stem().string();
  return names;
}

/// All words are of our own names: letters, digits, dots, dashes and underscores. zsh runs it by
/// its bashcompinit.
std::string bash_script(const std::map<std::string, std::string>& words) {
  std::string cases;
  for (const auto& [command, list] : words)
    cases += fmt::format("  '{}') echo '{}';;\n", command, list);
  return fmt::format(R"(_dstrain_words() {{
  case "$1" in
{}  *) return 1;;
  esac
}}
_dstrain() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} command= word
  for word in "${{COMP_WORDS[@]:1:$((COMP_CWORD-1))}}"; do
    _dstrain_words "${{command:+$command }}$word" >/dev/null && command="${{command:+$command }}$word"
  done
  if [ "$before" = --set ]; then
    COMPREPLY=($(compgen -S = -W '{}' -- "$cur"))
    compopt -o nospace 2>/dev/null
    return
  fi
  local offered=$(_dstrain_words "$command")
  case "$cur,$command" in
    -*) ;;
    *,launch | *,plan | *,verify | *,recipe\ * | *,bench\ *) offered="$offered {}";;
  esac
  case "$cur,$command" in
    -* | *,) ;;
    *) COMPREPLY=($(compgen -f -- "$cur"));;
  esac
  COMPREPLY+=($(compgen -W "$offered" -- "$cur"))
}}
complete -o filenames -F _dstrain dstrain
)",
                     cases, fmt::join(recipe_keys(), " "), recipe_names());
}

std::string fish_script(const std::map<std::string, std::string>& words) {
  std::string text = R"(function __dstrain_at
  set -l words (commandline -opc)
  set -e words[1]
  for word in $argv
    contains -- $word $words; or return 1
  end
end
)";
  for (const auto& [command, list] : words) {
    text += command.empty()
                ? fmt::format("complete -c dstrain -n __fish_use_subcommand -f -a '{}'\n", list)
                : fmt::format("complete -c dstrain -n '__dstrain_at {}' -a '{}'\n", command, list);
  }
  const std::string recipes = recipe_names();
  for (const char* command : {"launch", "plan", "verify", "recipe", "bench"})
    text += fmt::format("complete -c dstrain -n '__dstrain_at {}' -a '{}'\n", command, recipes);
  return text +
         fmt::format("complete -c dstrain -l set -x -a '{}='\n", fmt::join(recipe_keys(), "= "));
}

std::string script(const std::string& shell, const CLI::App& root) {
  const std::map<std::string, std::string> words = words_by_command(root);
  if (shell == "fish") return fish_script(words);
  if (shell == "zsh")
    return "#compdef dstrain\nautoload -Uz bashcompinit && bashcompinit\n" + bash_script(words) +
           "_bash_complete -o filenames -F _dstrain\n";  // this file is the first call
  return bash_script(words);
}

}  // namespace

Command add_completion(CLI::App& root) {
  auto shell = std::make_shared<std::string>();
  CLI::App* app = root.add_subcommand(
      "completion",
      "Print a script by which a shell completes commands, options, recipes and keys.");
  app->footer(
      "Made once, in a file:\n"
      "  dstrain completion bash > ~/.local/share/bash-completion/completions/dstrain\n"
      "  dstrain completion zsh > ~/.zfunc/_dstrain          # a folder of fpath\n"
      "  dstrain completion fish > ~/.config/fish/completions/dstrain.fish");
  app->add_option("shell", *shell, "bash, zsh or fish.")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  return {app, [shell, &root] {
            print_text(script(*shell, root));
            return 0;
          }};
}

}  // namespace dstrain
