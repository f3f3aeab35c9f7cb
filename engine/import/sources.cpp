#include <fmt/format.h>

#include "engine/base/error.h"
#include "engine/import/import_state.h"
#include "engine/import/json_tree.h"
#include "engine/recipe/text.h"

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

}  // namespace dstrain::importing
