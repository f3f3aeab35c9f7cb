#include <fmt/format.h>

#include <algorithm>

#include "engine/base/error.h"
#include "recipes/import/import_state.h"
#include "recipes/import/json_tree.h"
#include "recipes/import/shell_words.h"
#include "recipes/schema/text.h"

namespace dstrain::importing {
namespace {

[[noreturn]] void refuse_file(const std::string& file, std::string message, std::string hint) {
  throw RecipeError(
      {{.file = shown(file, 200), .message = std::move(message), .hint = std::move(hint)}});
}

/// Takes the keys of an object, those of its sections by path.
void take_keys(Import& import, Table table, const std::string& file, const Node& map,
               const std::string& prefix) {
  for (const Entry& entry : map.entries) {
    const std::string path = prefix + entry.key;
    if (entry.value.kind == Node::Kind::map && is_section(table, path)) {
      take_keys(import, table, file, entry.value, path + ".");
      continue;
    }
    import.take(
        {.table = table, .path = path, .file = file, .place = entry.place, .node = entry.value});
  }
}

}  // namespace

void take_object(Import& import, Table table, const std::string& file, const Node& map) {
  take_keys(import, table, file, map, "");
}

namespace {

Node read_json(Import& import, const std::string& path, std::string_view what) {
  import.result.sources.push_back(path);
  Node root = read_json_tree(import.options().open(path), shown(path, 200));
  if (root.kind != Node::Kind::map) {
    refuse_file(path, fmt::format("holds no object, as {} does", what), "give the file itself");
  }
  return root;
}

std::string trimmed(std::string_view line) {
  const auto begin = line.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return {};
  return std::string(line.substr(begin, line.find_last_not_of(" \t\r") - begin + 1));
}

/// "export WANDB_API_KEY (not shown)": cut after the first name of a secret.
std::string without_secret(const std::string& line) {
  std::size_t begin = 0;
  while (begin < line.size()) {
    const std::size_t end = std::min(line.find_first_of(" \t=;\"'", begin), line.size());
    const std::string_view word = std::string_view(line).substr(begin, end - begin);
    if (names_secret(word)) return line.substr(0, end) + " (not shown)";
    begin = end + 1;
  }
  return line;
}

/// "--nodes=4" and "-N 4" of a #SBATCH line.
void take_sbatch_options(Import& import, const std::string& path, int number,
                         const std::string& text) {
  constexpr std::pair<char, std::string_view> kShort[] = {
      {'N', "nodes"},    {'n', "ntasks"},  {'t', "time"},          {'p', "partition"},
      {'A', "account"},  {'q', "qos"},     {'J', "job_name"},      {'o', "output"},
      {'e', "error"},    {'G', "gpus"},    {'c', "cpus_per_task"}, {'C', "constraint"},
      {'w', "nodelist"}, {'x', "exclude"}, {'d', "dependency"},    {'b', "begin"},
      {'a', "array"},    {'D', "chdir"},   {'L', "licenses"}};
  const std::vector<std::string> words = shell_words(text.substr(0, text.find(" #")));
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    const Place place = {.line = number, .column = 1};
    std::string name, value;
    bool given = false;
    if (word.starts_with("--")) {
      const std::size_t equal = std::min(word.find('='), word.size());
      name = word.substr(2, equal - 2);
      std::ranges::replace(name, '-', '_');
      given = equal < word.size();
      if (given) value = word.substr(equal + 1);
    } else if (word.size() >= 2 && word[0] == '-') {
      const auto found =
          std::ranges::find(kShort, word[1], &std::pair<char, std::string_view>::first);
      name = found == std::end(kShort) ? word.substr(1) : std::string(found->second);
      given = word.size() > 2;
      if (given) value = word.substr(2);
    } else {
      import.error({.file = path,
                    .line = number,
                    .column = 1,
                    .path = shown(word),
                    .message = "a word that is no option",
                    .hint = "write --name=value"});
      continue;
    }
    const KeyRule* rule = find_rule(Table::sbatch, name);
    const bool is_flag = rule != nullptr && rule->kind == Kind::flag;
    if (!given && !is_flag && i + 1 < words.size()) value = words[++i];
    if (is_flag) value = "true";
    import.take({.table = Table::sbatch,
                 .path = name,
                 .file = path,
                 .place = place,
                 .node = {Node::Kind::scalar, place, value},
                 .value = shown(value)});
  }
}

}  // namespace

void read_deepspeed(Import& import, const std::string& path) {
  take_keys(import, Table::deepspeed, path, read_json(import, path, "a ds_config.json"), "");
}

void read_trainer(Import& import, const std::string& path) {
  take_keys(import, Table::trainer, path, read_json(import, path, "a file of TrainingArguments"),
            "");
}

void read_accelerate(Import& import, const std::string& path) {
  import.result.sources.push_back(path);
  Diagnostics diagnostics(path, {});
  const std::optional<Node> root = read_tree(import.options().open(path), diagnostics);
  if (diagnostics.num_errors() > 0) throw RecipeError(diagnostics.take(Severity::error));
  if (!root || root->kind != Node::Kind::map) {
    refuse_file(path, "holds no keys, as a file of accelerate config does", "give the file itself");
  }
  take_keys(import, Table::accelerate, path, *root, "");
}

void read_sbatch(Import& import, const std::string& path) {
  import.result.sources.push_back(path);
  const std::string text = import.options().open(path);
  if (first_invalid_utf8(text) != std::string::npos || text.find('\0') != std::string::npos)
    refuse_file(path, "is no text in UTF-8", "give the batch script itself");
  std::size_t begin = 0;
  for (int number = 1; begin < text.size(); ++number) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = trimmed(std::string_view(text).substr(begin, end - begin));
    begin = end + 1;
    if (line.starts_with("#SBATCH")) {
      take_sbatch_options(import, path, number, line.substr(7));
    } else if (!line.empty() && line[0] != '#') {
      import.result.unread.push_back(
          fmt::format("{}:{}: {}", path, number, shown(without_secret(line), 200)));
    }
  }
}

}  // namespace dstrain::importing
