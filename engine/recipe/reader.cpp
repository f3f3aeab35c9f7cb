#include "engine/recipe/reader.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <type_traits>
#include <utility>

#include "engine/recipe/text.h"

namespace dstrain {
namespace {

std::vector<std::string_view> names_of(std::span<const Choice> all) {
  std::vector<std::string_view> names;
  for (const Choice& choice : all) names.push_back(choice.name);
  return names;
}

const char* kind_name(Node::Kind kind) {
  switch (kind) {
    case Node::Kind::null:
      return "no value";
    case Node::Kind::scalar:
      return "a single value";
    case Node::Kind::list:
      return "a list";
    case Node::Kind::map:
      return "a map";
    case Node::Kind::refused:
      return "refused";
  }
  return "";
}

std::string limits(const Field& about) {
  const std::string min =
      about.min ? fmt::format("{} {}", about.above_min ? "above" : "from", *about.min) : "";
  const std::string max =
      about.max ? fmt::format("{} {}", about.below_max ? "below" : "to", *about.max) : "";
  return min.empty() || max.empty() ? min + max : min + " " + max;
}

std::string last_word(std::string_view path) {
  return std::string(path.substr(path.rfind('.') + 1));
}

/// All of `names`, or the first of many.
std::string accepted(std::vector<std::string_view> names) {
  constexpr std::size_t kMaxShown = 40, kShown = 20;
  if (names.size() <= kMaxShown) return one_of(names);
  const std::size_t others = names.size() - kShown;
  names.resize(kShown);
  return fmt::format("{} and {} more, which `dstrain recipe schema` has", fmt::join(names, ", "),
                     others);
}

}  // namespace

YamlReader::YamlReader(const Node& root, Diagnostics& diagnostics) : diagnostics_(diagnostics) {
  levels_.push_back({.map = &root, .place = {.line = 1, .column = 1}});
}

void YamlReader::read(Recipe& recipe) {
  describe(recipe, *this);
  leave();
  report_unknown();
}

const Place* YamlReader::given(std::string_view path) const {
  const auto found = given_.find(path);
  return found == given_.end() ? nullptr : &found->second;
}

Place YamlReader::place(std::string_view path) const {
  while (true) {
    if (const Place* found = given(path)) return *found;
    const std::size_t dot = path.rfind('.');
    if (dot == std::string_view::npos) return {.line = 1, .column = 1};
    path = path.substr(0, dot);
  }
}

const std::vector<std::string>* YamlReader::variables(std::string_view path) const {
  const auto found = variables_.find(path);
  return found == variables_.end() ? nullptr : &found->second;
}

std::string YamlReader::join(std::string_view name) const {
  const std::string& section = levels_.back().path;
  return section.empty() ? std::string(name) : fmt::format("{}.{}", section, name);
}

const Entry* YamlReader::find(std::string_view name) {
  levels_.back().known.push_back(name);
  return entry(name);
}

const Entry* YamlReader::entry(std::string_view name) const {
  const Node* map = levels_.back().map;
  if (map == nullptr) return nullptr;
  const auto same = [&](const Entry& one) { return one.key == name; };
  const auto found = std::find_if(map->entries.begin(), map->entries.end(), same);
  return found == map->entries.end() ? nullptr : &*found;
}

void YamlReader::enter(std::string_view name, std::string_view text) {
  const Entry* found = find(name);
  const bool outer_refused = levels_.back().refused;
  Level level = {.refused = outer_refused, .place = levels_.back().place, .path = join(name)};
  if (found != nullptr) {
    level.place = found->place;
    given_.emplace(level.path, found->place);
    if (found->value.kind == Node::Kind::map) {
      level.map = &found->value;
    } else {
      level.refused = true;
      refuse(level.path, found->value,
             fmt::format("a section of keys is wanted, here is {}", kind_name(found->value.kind)),
             fmt::format("{} Give it keys or leave it out.", text));
    }
  }
  levels_.push_back(std::move(level));
}

void YamlReader::leave() {
  const Level level = std::move(levels_.back());
  levels_.pop_back();
  if (level.map == nullptr) return;
  for (const Entry& one : level.map->entries) {
    if (std::find(level.known.begin(), level.known.end(), one.key) == level.known.end()) {
      unknown_.push_back({one.place, level.path, one.key, level.known});
    }
  }
}

void YamlReader::visit_list(std::string_view name, const ListSlot& list, std::string_view text) {
  const Entry* found = find(name);
  if (found == nullptr) return;
  const std::string path = join(name);
  given_.emplace(path, found->place);
  if (found->value.kind != Node::Kind::list) {
    refuse(path, found->value,
           fmt::format("a list of sections is wanted, here is {}", kind_name(found->value.kind)),
           fmt::format("{} Write each with a dash.", text));
    failed_.insert(path);
    return;
  }
  const std::vector<Node>& items = found->value.items;
  list.resize(list.at, items.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    Level level = {.place = items[i].place, .path = fmt::format("{}.{}", path, i)};
    given_.emplace(level.path, items[i].place);
    if (items[i].kind == Node::Kind::map) {
      level.map = &items[i];
    } else {
      level.refused = true;
      refuse(level.path, items[i],
             fmt::format("a section of keys is wanted, here is {}", kind_name(items[i].kind)),
             std::string(text));
    }
    levels_.push_back(std::move(level));
    list.describe(list.at, i, *this);
    leave();
  }
  const auto failed = failed_.lower_bound(path + ".");
  if (failed != failed_.end() && failed->starts_with(path + ".")) failed_.insert(path);
}

void YamlReader::report_unknown() {
  for (const Unknown& unknown : unknown_) {
    const std::string shown_key = shown(unknown.key);
    const std::string path =
        unknown.section.empty() ? shown_key : fmt::format("{}.{}", unknown.section, shown_key);
    std::string hint;
    if (const std::string_view near = nearest(unknown.key, unknown.known); !near.empty()) {
      hint = fmt::format("did you mean '{}'? ", near);
    } else {
      // The right key in the wrong section.
      std::vector<std::string_view> elsewhere;
      for (const std::string& other : paths_) {
        if (last_word(other) == unknown.key) elsewhere.push_back(other);
      }
      if (!elsewhere.empty()) hint = fmt::format("did you mean {}? ", one_of(elsewhere));
    }
    std::vector<std::string_view> known = unknown.known;
    std::sort(known.begin(), known.end());
    hint += fmt::format("known here: {}", fmt::join(known, ", "));
    diagnostics_.error(unknown.place, path, "no such key", hint);
  }
}

void YamlReader::visit(std::string_view name, const Slot& slot, const Field& about) {
  const Entry* found = find(name);
  const std::string path = join(name);
  paths_.push_back(path);
  if (found == nullptr) {
    const bool section_refused = levels_.back().refused;
    const bool required =
        about.required && (about.unless.empty() || entry(about.unless) == nullptr);
    if (section_refused || required) failed_.insert(path);
    if (section_refused || !required) return;
    diagnostics_.error(levels_.back().place, path, "missing, and it has no default",
                       std::string(about.text));
    return;
  }
  given_.emplace(path, found->value.place);
  if (!read_value(path, found->value, slot, about)) failed_.insert(path);
}

bool YamlReader::refuse(const std::string& path, const Node& node, std::string message,
                        std::string hint) {
  if (node.kind != Node::Kind::refused) {
    diagnostics_.error(node.place, path, std::move(message), std::move(hint));
  }
  return false;
}

bool YamlReader::read_value(const std::string& path, const Node& node, const Slot& slot,
                            const Field& about) {
  if (node.kind == Node::Kind::refused) return false;
  if (node.kind == Node::Kind::null) {
    return refuse(path, node, "has no value",
                  fmt::format("{}{}", about.text,
                              about.required ? "" : " Leave the key out for the default."));
  }
  const auto read = [&](auto target) -> bool {
    using Target = decltype(target);
    if constexpr (std::is_same_v<Target, int*>) {
      long value = 0;
      if (!read_number(path, node, about, std::numeric_limits<int>::min(),
                       std::numeric_limits<int>::max(), value)) {
        return false;
      }
      *target = static_cast<int>(value);
      return true;
    } else if constexpr (std::is_same_v<Target, long*>) {
      return read_number(path, node, about, std::numeric_limits<long>::min(),
                         std::numeric_limits<long>::max(), *target);
    } else if constexpr (std::is_same_v<Target, double*>) {
      return read_number(path, node, about, *target);
    } else if constexpr (std::is_same_v<Target, bool*>) {
      if (!is_unquoted(path, node, "true or false")) return false;
      if (node.text != "true" && node.text != "false") {
        return refuse(path, node, fmt::format("'{}' is not true or false", shown(node.text)),
                      "yes, no, on and off are not read; write true or false");
      }
      *target = node.text == "true";
      return true;
    } else if constexpr (std::is_same_v<Target, std::string*>) {
      return read_string(path, node, about, *target);
    } else if constexpr (std::is_same_v<Target, Interval*>) {
      return read_interval(path, node, about, *target);
    } else if constexpr (std::is_same_v<Target, EnumSlot>) {
      int value = 0;
      if (!read_choice(path, node, target.all, value)) return false;
      target.set(target.at, value);
      return true;
    } else {
      if (node.kind != Node::Kind::list) {
        return refuse(path, node, fmt::format("a list is wanted, here is {}", kind_name(node.kind)),
                      node.kind == Node::Kind::scalar ? fmt::format("write [{}]", shown(node.text))
                                                      : std::string(about.text));
      }
      if (about.length > 0 && node.items.size() != about.length) {
        return refuse(path, node,
                      fmt::format("a list of {} values, exactly {} are wanted", node.items.size(),
                                  about.length),
                      std::string(about.text));
      }
      bool good = true;
      if constexpr (std::is_same_v<Target, EnumListSlot>) {
        std::vector<int> values;
        for (const Node& item : node.items) {
          int value = 0;
          if (!read_choice(path, item, target.all, value)) {
            good = false;
          } else if (std::find(values.begin(), values.end(), value) != values.end()) {
            good = refuse(path, item, fmt::format("'{}' is listed twice", shown(item.text)),
                          "list each once");
          } else {
            values.push_back(value);
          }
        }
        if (good) target.set(target.at, values);
      } else {
        static_assert(std::is_same_v<Target, std::vector<int>*> ||
                      std::is_same_v<Target, std::vector<double>*> ||
                      std::is_same_v<Target, std::vector<std::string>*>);
        std::remove_pointer_t<Target> values(node.items.size());
        for (std::size_t i = 0; i < values.size(); ++i) {
          if constexpr (std::is_same_v<Target, std::vector<double>*>) {
            good = read_number(path, node.items[i], about, values[i]) && good;
          } else if constexpr (std::is_same_v<Target, std::vector<int>*>) {
            long value = 0;
            good = read_number(path, node.items[i], about, std::numeric_limits<int>::min(),
                               std::numeric_limits<int>::max(), value) &&
                   good;
            values[i] = static_cast<int>(value);
          } else {
            good = read_string(path, node.items[i], about, values[i]) && good;
          }
        }
        if (good) *target = values;
      }
      return good;
    }
  };
  return std::visit(read, slot);
}

bool YamlReader::is_unquoted(const std::string& path, const Node& node, const char* wanted) {
  if (node.kind == Node::Kind::refused) return false;
  if (node.kind != Node::Kind::scalar) {
    return refuse(path, node, fmt::format("{} is wanted, here is {}", wanted, kind_name(node.kind)),
                  "write one value");
  }
  if (node.quoted && node.text.empty()) {
    return refuse(path, node, fmt::format("{} is wanted, here is an empty text", wanted),
                  "write a value");
  }
  if (node.quoted) {
    return refuse(
        path, node,
        fmt::format("'{}' is quoted and therefore text, not {}", shown(node.text), wanted),
        "remove the quotes");
  }
  return true;
}

bool YamlReader::read_number(const std::string& path, const Node& node, const Field& about,
                             long min, long max, long& value) {
  if (!is_unquoted(path, node, "a whole number")) return false;
  const Number<long> number = read_integer(node.text);
  if (!number.value) {
    return refuse(path, node, number.mistake,
                  number.hint.empty() ? std::string(about.text) : number.hint);
  }
  // Without a stated limit the type is the limit.
  if (*number.value < min || *number.value > max) {
    if (about.min && about.max) {
      return in_range(path, node, about, static_cast<double>(*number.value));
    }
    return refuse(path, node,
                  fmt::format("{} does not fit: the range is {} to {}", shown(node.text), min, max),
                  std::string(about.text));
  }
  if (!in_range(path, node, about, static_cast<double>(*number.value))) return false;
  value = *number.value;
  return true;
}

bool YamlReader::read_number(const std::string& path, const Node& node, const Field& about,
                             double& value) {
  if (!is_unquoted(path, node, "a number")) return false;
  const Number<double> number = read_real(node.text);
  if (!number.value) {
    return refuse(path, node, number.mistake,
                  number.hint.empty() ? std::string(about.text) : number.hint);
  }
  if (!in_range(path, node, about, *number.value)) return false;
  value = *number.value;
  return true;
}

bool YamlReader::in_range(const std::string& path, const Node& node, const Field& about,
                          double value) {
  const bool low = about.min && (about.above_min ? value <= *about.min : value < *about.min);
  const bool high = about.max && (about.below_max ? value >= *about.max : value > *about.max);
  if (!low && !high) return true;
  return refuse(path, node, fmt::format("{} is out of range: {}", shown(node.text), limits(about)),
                std::string(about.text));
}

bool YamlReader::read_choice(const std::string& path, const Node& node, std::span<const Choice> all,
                             int& value) {
  const std::vector<std::string_view> names = names_of(all);
  if (node.kind != Node::Kind::scalar) {
    return refuse(path, node, fmt::format("one word is wanted, here is {}", kind_name(node.kind)),
                  fmt::format("one of {}", one_of(names)));
  }
  for (const Choice& choice : all) {
    if (choice.name == node.text) {
      value = choice.value;
      return true;
    }
  }
  const std::string_view near = nearest(node.text, names);
  const std::string guess = near.empty() ? "" : fmt::format("did you mean '{}'? ", near);
  return refuse(path, node, fmt::format("'{}' is not known", shown(node.text)),
                fmt::format("{}{} accepts {}", guess, last_word(path), accepted(names)));
}

bool YamlReader::read_string(const std::string& path, const Node& node, const Field& about,
                             std::string& value) {
  if (node.kind != Node::Kind::scalar) {
    return refuse(path, node, fmt::format("text is wanted, here is {}", kind_name(node.kind)),
                  "put text with brackets, braces or ': ' in double quotes");
  }
  Expanded expanded = expand_variables(node.text);
  if (!expanded.mistake.empty()) return refuse(path, node, expanded.mistake, expanded.hint);
  if (about.path && expanded.text.starts_with('~')) {
    // As in a shell, which leaves the `~` of --set data.path=~/x as it is.
    const char* home = std::getenv("HOME");
    const std::string rest = expanded.text.substr(1);
    if (home == nullptr || *home == '\0' || !(rest.empty() || rest.front() == '/')) {
      return refuse(path, node,
                    fmt::format("'{}' is in no home folder that is known", shown(expanded.text)),
                    "~ and ~/FOLDER are in the folder that $HOME names; else write the whole path, "
                    "or ./~NAME");
    }
    expanded.text = home + rest;
  }
  if (about.lines ? !first_unprintable(expanded.text).empty() : !is_plain_text(expanded.text)) {
    return refuse(path, node, "holds a control character or broken UTF-8",
                  about.lines ? "text is UTF-8" : "text is one line of UTF-8");
  }
  const std::string& text = expanded.text;
  if (!about.names.empty()) {
    int ignored = 0;
    const Node word(Node::Kind::scalar, node.place, text);
    if (!read_choice(path, word, about.names, ignored)) return false;
  }
  if (!expanded.variables.empty()) {  // a list has several texts
    std::vector<std::string>& all = variables_[path];
    all.insert(all.end(), expanded.variables.begin(), expanded.variables.end());
  }
  value = std::move(expanded.text);
  return true;
}

bool YamlReader::read_interval(const std::string& path, const Node& node, const Field& about,
                               Interval& value) {
  std::string text;
  if (!read_string(path, node, {}, text)) return false;
  if (const auto interval = interval_from(text, about.clock)) {
    value = *interval;
    return true;
  }
  const std::string hint = read_integer(text).hint;
  return refuse(path, node, fmt::format("'{}' is not an interval", shown(text)),
                hint.empty() ? "write " + interval_words(about.clock) : hint);
}

}  // namespace dstrain
