#include "engine/import/import_state.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "engine/base/redact.h"
#include "engine/import/python_value.h"
#include "engine/import/secrets.h"
#include "engine/recipe/text.h"

namespace dstrain::importing {
namespace {

std::string lower(std::string text) {
  for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  return text;
}

std::optional<double> as_number(const std::string& text) { return python_real(text); }

std::string key_of(Table table, std::string_view path) {
  return fmt::format("{} {}", static_cast<int>(table), path);
}

/// The value as a message and a report show it.
std::string shown_node(const Node& node) {
  switch (node.kind) {
    case Node::Kind::null:
      return "null";
    case Node::Kind::map:
      return "{...}";
    case Node::Kind::list: {
      std::vector<std::string> items;
      for (const Node& item : node.items) {
        items.push_back(shown_node(item));
        if (items.size() == 8) break;
      }
      if (node.items.size() > items.size()) items.emplace_back("...");
      return fmt::format("[{}]", fmt::join(items, ", "));
    }
    case Node::Kind::scalar: {
      const std::string text = shown(without_secrets(node.text));
      return node.quoted ? fmt::format("\"{}\"", text) : text;
    }
    case Node::Kind::refused:
      break;
  }
  return "?";
}

bool holds_secret(const Node& node) {
  return without_secrets(node.text) != node.text || std::ranges::any_of(node.items, holds_secret);
}

bool same_value(const std::string& text, const std::string& wanted) {
  const std::optional<double> a = as_number(text), b = as_number(wanted);
  return lower(text) == lower(wanted) || (a && b && *a == *b);
}

bool listed(const Node& node, std::string_view values) {
  if (node.kind == Node::Kind::map && node.entries.empty()) return values.find("{}") != values.npos;
  if (node.kind != Node::Kind::scalar && node.kind != Node::Kind::null) return false;
  const std::string text = node.kind == Node::Kind::null ? "null" : node.text;
  while (!values.empty()) {
    const std::size_t bar = std::min(values.find('|'), values.size());
    if (same_value(text, std::string(values.substr(0, bar)))) return true;
    values.remove_prefix(std::min(bar + 1, values.size()));
  }
  return false;
}

/// True or false as the reader of that file or command line has it.
std::optional<bool> flag_of(const Given& given) {
  std::string word = lower(given.node.text);
  if (given.table == Table::trainer && given.place.line == 0) return python_flag(word);
  if (given.table == Table::accelerate) {  // YAML 1.1
    if (word == "yes" || word == "on") word = "true";
    if (word == "no" || word == "off") word = "false";
  }
  return word == "true" || word == "false" ? std::optional(word == "true") : std::nullopt;
}

std::string joined_values(std::string_view values) {
  std::vector<std::string_view> words;
  while (!values.empty()) {
    const std::size_t bar = std::min(values.find('|'), values.size());
    words.push_back(values.substr(0, bar));
    values.remove_prefix(std::min(bar + 1, values.size()));
  }
  return one_of(words);
}

}  // namespace

std::string Given::origin() const {
  return place.line == 0 ? file : fmt::format("{}:{}", file, place.line);
}

Import::Import(const ImportOptions& options) : options_(options) {}

void Import::take(Given given) {
  given.rule = find_rule(given.table, given.path);
  if (given.value.empty() || holds_secret(given.node)) given.value = shown_node(given.node);
  if (is_secret_name(given.path) && given.node.kind != Node::Kind::null) given.value = "(not shown)";
  if (given.rule == nullptr) {
    const std::size_t dot = given.path.rfind('.');
    const std::string section = dot == std::string::npos ? "" : given.path.substr(0, dot);
    const std::string name = given.path.substr(dot + 1);  // npos + 1 is 0
    const std::string_view near = nearest(name, names_under(given.table, section));
    // A file that was given in the place of another.
    const bool of_trainer =
        given.table == Table::deepspeed && find_rule(Table::trainer, given.path) != nullptr;
    error(&given, fmt::format("{} has no such key", title(given.table)),
          of_trainer     ? "it is a key of TrainingArguments: give their file with --trainer"
          : near.empty() ? "take it out, or correct its name"
                         : fmt::format("did you mean '{}'?", near));
    return;
  }
  given.fate = given.rule->fate;
  given.why = given.rule->reason;
  const std::string key = key_of(given.table, given.path);
  if (const auto before = by_path_.find(key); before != by_path_.end()) {
    if (!same_value(given.node.text, before->second->node.text) || !before->second->counts) {
      error(&given,
            fmt::format("{} here, but {} in {}", given.value, before->second->value,
                        before->second->origin()),
            "give one value");
    }
    return;
  }
  if (given.node.kind == Node::Kind::null) {
    given.counts = false;
    given.fate = Fate::no_effect;
    given.why = "null: as if it were absent";
  } else {
    given.counts = check_kind(given);
  }
  keys_.push_back(std::move(given));
  if (keys_.back().counts) by_path_[key] = &keys_.back();
}

bool Import::check_kind(Given& given) {
  Node& node = given.node;
  const Kind kind = given.rule->kind;
  const bool command = given.table != Table::deepspeed && given.table != Table::trainer &&
                       given.table != Table::accelerate;
  const auto refuse = [&] {
    const bool of_line = command || given.place.line == 0;
    const bool variable = of_line && node.text.find('$') != std::string::npos;
    error(&given, fmt::format("{} is not {}", given.value, title(kind)),
          variable ? "no shell reads this line: write the variable's value" : "correct the value");
    return false;
  };
  // A variable of the shell does no harm where nothing depends on it.
  const bool ignored = command && given.rule->fate == Fate::no_effect && given.rule->only.empty();
  if (kind == Kind::any || ignored) return true;
  if (kind == Kind::object) {
    // A switch in place of a section: "elasticity": false.
    const bool off = node.kind == Node::Kind::scalar && lower(node.text) == "false";
    return node.kind == Node::Kind::map || off || refuse();
  }
  if (kind == Kind::list) {
    return node.kind == Node::Kind::list || node.text == "auto" || refuse();
  }
  if (node.kind != Node::Kind::scalar) return refuse();
  if (kind == Kind::text) {
    const bool in_json = given.table == Table::deepspeed || given.table == Table::trainer;
    return node.quoted || !in_json || given.place.line == 0 || refuse();
  }
  if (node.text == "auto") return true;  // resolve_auto() knows whether it may be
  if (kind == Kind::flag) {
    const std::optional<bool> flag = flag_of(given);
    if (!flag) return refuse();
    node.text = *flag ? "true" : "false";
    return true;
  }
  const std::optional<double> value = as_number(node.text);
  if (!value) return refuse();
  if (kind == Kind::number) {
    // The recipe's reader has a smaller grammar than Python.
    if (!read_real(node.text).value) node.text = fmt::format("{}", *value);
    return true;
  }
  if (*value != std::floor(*value) || std::abs(*value) > 1e15) return refuse();
  if (given.place.line == 0 && !python_whole(node.text)) return refuse();  // int() of a command
  node.text = fmt::format("{}", static_cast<long>(*value));
  return true;
}

Given* Import::find(Table table, std::string_view path) {
  const auto found = by_path_.find(key_of(table, path));
  return found == by_path_.end() || !found->second->counts ? nullptr : found->second;
}

bool Import::has(Table table, std::string_view path) const {
  return std::ranges::any_of(keys_, [&](const Given& given) {
    return given.table == table && given.counts &&
           (path.empty() || given.path == path || given.path.starts_with(std::string(path) + "."));
  });
}

std::optional<double> Import::number(Table table, std::string_view path) {
  const Given* given = find(table, path);
  return given == nullptr ? std::nullopt : as_number(given->node.text);
}
std::optional<long> Import::whole(Table table, std::string_view path) {
  const std::optional<double> value = number(table, path);
  if (!value || *value != std::floor(*value) || std::abs(*value) > 1e15) return std::nullopt;
  return static_cast<long>(*value);
}
std::optional<bool> Import::flag(Table table, std::string_view path) {
  const Given* given = find(table, path);
  if (given == nullptr) return std::nullopt;
  return python_flag(given->node.text).value_or(false);
}
std::optional<std::string> Import::word(Table table, std::string_view path) {
  const Given* given = find(table, path);
  if (given == nullptr || given->node.kind != Node::Kind::scalar) return std::nullopt;
  return lower(given->node.text);
}

void Import::set(std::string_view key, std::string value, Given* from) {
  if (from == nullptr) {
    set(key, std::move(value), std::string("DeepSpeed's default"));
    return;
  }
  if (without_secrets(value) != value) {
    error(from, fmt::format("{} would stand in the recipe with its secret", from->value),
          "take the secret out");
    return;
  }
  if (!from->became.empty()) from->became += ", ";
  from->became += fmt::format("{}: {}", key, value);
  settings_.insert_or_assign(
      std::string(key),
      Setting{std::move(value), fmt::format("{} {}", from->origin(), from->path), from});
}
void Import::set(std::string_view key, std::string value, std::string origin) {
  settings_.insert_or_assign(std::string(key), Setting{std::move(value), std::move(origin)});
}

std::optional<std::string> Import::chosen(std::string_view key) const {
  std::optional<std::string> value;
  for (const std::string& setting : options_.settings) {
    if (setting.starts_with(std::string(key) + "=")) value = setting.substr(key.size() + 1);
  }
  return value;
}

void Import::outcome(Given* given, Fate fate, std::string why) {
  if (given == nullptr) return;
  given->fate = fate;
  given->why = std::move(why);
}

void Import::error(const Given* given, std::string message, std::string hint) {
  Diagnostic diagnostic = {.message = std::move(message), .hint = std::move(hint)};
  if (given != nullptr) {
    diagnostic.file = given->file;
    diagnostic.line = given->place.line;
    diagnostic.column = given->place.column;
    diagnostic.path = shown(given->path, 200);
  }
  errors_.push_back(std::move(diagnostic));
}

bool value_is_listed(const Given& given) {
  return given.rule->only.empty() || listed(given.node, given.rule->only);
}

std::string wanted_values(const KeyRule& rule) { return joined_values(rule.only); }

void copy_value(Given& given, Import& import) {
  const bool text = given.rule->kind == Kind::text;
  import.set(given.rule->target, text ? yaml_text(given.node.text) : given.node.text, &given);
}

void copy_option(Given& given, Import& import) {
  std::vector<std::string>& words = import.result.launch;
  if (given.node.text.starts_with('-'))  // no option of its own
    words.push_back(fmt::format("{}={}", given.rule->target, given.node.text));
  else
    words.insert(words.end(), {std::string(given.rule->target), given.node.text});
}

}  // namespace dstrain::importing
