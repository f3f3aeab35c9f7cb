#include "engine/weights/pickle_listing.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "engine/base/printable.h"

namespace dstrain {
namespace {

using Kind = PickleValue::Kind;

constexpr std::size_t kMaxText = 200;

/// The name of a type for people.
const char* type_name(Kind kind) {
  switch (kind) {
    using enum PickleValue::Kind;
    case none:
      return "None";
    case boolean:
      return "bool";
    case integer:
      return "int";
    case real:
      return "float";
    case text:
      return "str";
    case bytes:
      return "bytes";
    case list:
      return "list";
    case tuple:
      return "tuple";
    case set:
      return "set";
    case dict:
      return "dict";
    case storage:
      return "storage";
    case tensor:
      return "tensor";
    case opaque:
      return "object";
  }
  return "";
}

bool is_plain(const PickleValue& value) {
  return value.kind == Kind::none || value.kind == Kind::boolean || value.kind == Kind::integer ||
         value.kind == Kind::real || value.kind == Kind::text || value.kind == Kind::bytes;
}

std::string plain_text(const PickleValue& value) {
  switch (value.kind) {
    case Kind::boolean:
      return value.integer != 0 ? "True" : "False";
    case Kind::integer:
      return fmt::format("{}", value.integer);
    case Kind::real:
      return fmt::format("{}", value.real);
    case Kind::text:
      return shown(value.text, kMaxText);
    case Kind::bytes:
      return fmt::format("{} bytes", value.text.size());
    default:
      return "";
  }
}

class Walk {
 public:
  explicit Walk(const ListingLimits& limits) : limits_(limits) {}

  void visit(const std::string& path, const PickleValue& value, std::size_t depth) {
    if (left_out_ > 0 || found_.size() >= limits_.values || bytes_ >= limits_.bytes) {
      ++left_out_;
      return;
    }
    if (is_plain(value)) {
      add({.path = path, .what = type_name(value.kind), .value = plain_text(value)});
      return;
    }
    if (depth < limits_.depth && is_listed(path, value)) return;
    switch (value.kind) {
      case Kind::tensor:
        add({.path = path,
             .what = value.tensor->dtype,
             .shape = value.tensor->shape,
             .is_tensor = true});
        return;
      case Kind::dict:
        visit_pairs(path, value, depth);
        return;
      case Kind::opaque:
        visit_object(path, value, depth);
        return;
      default:
        visit_items(path, value, depth);
    }
  }

  std::vector<ListedValue> finish() {
    if (left_out_ > 0) found_.push_back({.path = "...", .what = fmt::format("{} more", left_out_)});
    return std::move(found_);
  }

 private:
  void add(ListedValue value) {
    bytes_ += value.path.size() + value.what.size() + value.value.size();
    found_.push_back(std::move(value));
  }

  /// Lists that name one another would else be listed in every way that leads to them.
  bool is_listed(const std::string& path, const PickleValue& value) {
    if (value.items.empty() && value.state == nullptr) return false;
    const auto [found, is_new] = listed_.try_emplace(&value, path);
    if (is_new) return false;
    add({.path = path,
         .what = type_name(value.kind),
         .value = found->second.empty() ? "the whole" : "the same as " + found->second});
    return true;
  }

  bool is_too_deep(const std::string& path, const PickleValue& value, std::size_t depth) {
    if (depth < limits_.depth) return false;
    add({.path = path,
         .what = fmt::format("{}, nested deeper than {}", type_name(value.kind), limits_.depth)});
    return true;
  }

  void visit_pairs(const std::string& path, const PickleValue& value, std::size_t depth) {
    if (value.items.empty()) add({.path = path, .what = "empty dict"});
    if (!value.items.empty() && is_too_deep(path, value, depth)) return;
    for (std::size_t i = 0; i + 1 < value.items.size(); i += 2) {
      const PickleValue& key = *value.items[i];
      const std::string name = is_plain(key) ? plain_text(key) : type_name(key.kind);
      visit(path.empty() ? name : path + "." + name, *value.items[i + 1], depth + 1);
    }
  }

  void visit_items(const std::string& path, const PickleValue& value, std::size_t depth) {
    const bool plain = std::ranges::all_of(value.items, [](const auto* i) { return is_plain(*i); });
    if (plain) {
      std::vector<std::string> texts;
      for (std::size_t i = 0; i < std::min(value.items.size(), limits_.numbers); ++i)
        texts.push_back(plain_text(*value.items[i]));
      const std::size_t more = value.items.size() - texts.size();
      if (more > 0) texts.push_back(fmt::format("{} more", more));
      add({.path = path,
           .what = type_name(value.kind),
           .value = fmt::format("[{}]", fmt::join(texts, ", "))});
      return;
    }
    if (is_too_deep(path, value, depth)) return;
    for (std::size_t i = 0; i < value.items.size(); ++i)
      visit(fmt::format("{}[{}]", path, i), *value.items[i], depth + 1);
  }

  void visit_object(const std::string& path, const PickleValue& value, std::size_t depth) {
    std::string arguments;
    if (value.arguments != nullptr && !value.arguments->items.empty()) {
      std::vector<std::string> texts;
      for (const PickleValue* argument : value.arguments->items) {
        if (texts.size() == limits_.numbers) break;
        texts.push_back(is_plain(*argument) ? plain_text(*argument) : type_name(argument->kind));
      }
      arguments = fmt::format("({})", fmt::join(texts, ", "));
    }
    const bool has_state = value.state != nullptr, too_deep = depth >= limits_.depth;
    if (has_state && too_deep)
      arguments += fmt::format(" with a state nested deeper than {}", limits_.depth);
    // One value for one visit, so that the limit of values holds.
    add({.path = path, .what = shown(value.text, kMaxText), .value = arguments});
    if (has_state && !too_deep) visit(path, *value.state, depth + 1);
  }

  const ListingLimits& limits_;
  std::vector<ListedValue> found_;
  std::unordered_map<const PickleValue*, std::string> listed_;  ///< with the path of each
  std::size_t bytes_ = 0;
  std::size_t left_out_ = 0;
};

}  // namespace

std::vector<ListedValue> listing(const PickleValue& root, const ListingLimits& limits) {
  Walk walk(limits);
  walk.visit("", root, 0);
  return walk.finish();
}

}  // namespace dstrain
