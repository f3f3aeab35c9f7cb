#include <fmt/format.h>

#include <algorithm>

#include "engine/import/import_state.h"
#include "engine/recipe/describe.h"
#include "engine/recipe/text.h"
#include "engine/recipe/value.h"

namespace dstrain::importing {
namespace {

constexpr std::size_t kCommentColumn = 32;

/// Writes the values that were set, in the order of the recipe's description.
class SettingsWriter final : public Visitor {
 public:
  explicit SettingsWriter(const Import& import) : import_(import) {}

  std::string write() {
    Recipe recipe;
    sections_.push_back({});
    describe(recipe, *this);
    return std::move(sections_.back().text);
  }

 private:
  struct Section {
    std::string path = {};
    std::string text = {};
  };
  [[nodiscard]] std::string indent(std::size_t depth) const { return std::string(2 * depth, ' '); }

  void enter(std::string_view name, std::string_view /*text*/) override {
    sections_.push_back({.path = sections_.back().path + std::string(name) + "."});
  }
  void leave() override {
    const Section inner = std::move(sections_.back());
    sections_.pop_back();
    if (inner.text.empty()) return;
    std::string_view name = inner.path;
    name.remove_suffix(1);
    name.remove_prefix(name.rfind('.') + 1);  // npos + 1 is 0
    sections_.back().text +=
        fmt::format("{}{}:\n{}", indent(sections_.size() - 1), name, inner.text);
  }
  void visit(std::string_view name, const Slot& /*slot*/, const Field& /*about*/) override {
    Section& section = sections_.back();
    const auto found = import_.settings().find(section.path + std::string(name));
    if (found == import_.settings().end()) return;
    const std::string line =
        fmt::format("{}{}: {}", indent(sections_.size() - 1), name, found->second.value);
    section.text +=
        fmt::format("{:<{}}  # {}\n", line, kCommentColumn, shown(found->second.origin, 300));
  }

  /// No setting of other programs makes one.
  void visit_list(std::string_view /*name*/, const ListSlot& /*list*/,
                  std::string_view /*text*/) override {}

  const Import& import_;
  std::vector<Section> sections_;
};

/// Lists the paths of all keys of a recipe.
class KeyLister final : public Visitor {
 public:
  std::set<std::string, std::less<>> list() {
    Recipe recipe;
    describe(recipe, *this);
    return std::move(keys_);
  }

 private:
  void enter(std::string_view name, std::string_view /*text*/) override {
    prefix_ += std::string(name) + ".";
  }
  void leave() override {
    prefix_.pop_back();
    prefix_.erase(prefix_.rfind('.') + 1);  // npos + 1 is 0
  }
  void visit(std::string_view name, const Slot& /*slot*/, const Field& /*about*/) override {
    keys_.insert(prefix_ + std::string(name));
  }

  void visit_list(std::string_view name, const ListSlot& /*list*/,
                  std::string_view /*text*/) override {
    keys_.insert(prefix_ + std::string(name));
  }

  std::string prefix_;
  std::set<std::string, std::less<>> keys_;
};

}  // namespace

std::set<std::string, std::less<>> recipe_keys() { return KeyLister().list(); }

std::string yaml_text(const std::string& text) {
  std::string copy = text;
  return yaml_value(Slot(&copy));
}

std::string recipe_text(const Import& import) { return SettingsWriter(import).write(); }

}  // namespace dstrain::importing
