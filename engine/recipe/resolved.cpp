#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "engine/recipe/load.h"
#include "engine/recipe/rules.h"
#include "engine/recipe/text.h"
#include "engine/recipe/value.h"

namespace dstrain {
namespace {

constexpr std::size_t kCommentColumn = 44;

/// Writes every field back. A default that has no effect here becomes a comment: it is said, and
/// reading the file again gives no warning.
class Resolved final : public Visitor {
 public:
  explicit Resolved(const LoadedRecipe& loaded) : recipe_(loaded.recipe) {
    for (const Origin& origin : loaded.origins) origins_[origin.path] = origin.origin;
    for (const Inactive& field : inactive_fields(recipe_))
      inactive_[std::string(field.path)] = field.reason;
  }

  std::string write() {
    sections_.push_back({});
    describe(recipe_, *this);
    return std::move(sections_.back().text);
  }

 private:
  struct Section {
    std::string name = {};
    std::string text = {};
    bool has_keys = false;
  };

  [[nodiscard]] std::string indent(std::size_t depth) const { return std::string(2 * depth, ' '); }
  [[nodiscard]] std::string path(std::string_view name) const {
    std::string result;
    for (const Section& section : sections_) {
      if (!section.name.empty()) result += section.name + ".";
    }
    return result + std::string(name);
  }

  void enter(std::string_view name, std::string_view) override {
    sections_.push_back({.name = std::string(name), .text = {}});
  }
  void leave() override {
    Section inner = std::move(sections_.back());
    sections_.pop_back();
    Section& outer = sections_.back();
    // A section of comments alone would read back as a key without a value.
    const char* mark = inner.has_keys ? "" : "# ";
    outer.text +=
        fmt::format("{}{}{}:\n{}", indent(sections_.size() - 1), mark, inner.name, inner.text);
    outer.has_keys = outer.has_keys || inner.has_keys;
  }
  /// Each item is a section whose first key follows a dash.
  void visit_list(std::string_view name, const ListSlot& list, std::string_view) override {
    const std::size_t size = list.size(list.at);
    sections_.back().has_keys = true;
    if (size == 0) {
      const std::string line = fmt::format("{}{}: []", indent(sections_.size() - 1), name);
      sections_.back().text +=
          fmt::format("{:<{}}  # {}\n", line, kCommentColumn, shown(origin_of(path(name)), 300));
      return;
    }
    sections_.back().text += fmt::format("{}{}:\n", indent(sections_.size() - 1), name);
    for (std::size_t i = 0; i < size; ++i) {
      sections_.push_back({.name = std::string(name), .text = {}});
      sections_.push_back({.name = std::to_string(i), .text = {}});
      list.describe(list.at, i, *this);
      std::string text = std::move(sections_.back().text);
      sections_.resize(sections_.size() - 2);
      text[2 * sections_.size()] = '-';
      sections_.back().text += text;
    }
  }
  [[nodiscard]] std::string origin_of(const std::string& path) const {
    const auto found = origins_.find(path);
    return found == origins_.end() ? "default" : found->second;
  }
  void visit(std::string_view name, const Slot& slot, const Field&) override {
    Section& section = sections_.back();
    const std::string full = path(name);
    const std::string origin = origin_of(full);
    const auto inactive = inactive_.find(full);
    const bool left_out = inactive != inactive_.end() && origin == "default";
    const std::string line = fmt::format("{}{}{}: {}", indent(sections_.size() - 1),
                                         left_out ? "# " : "", name, yaml_value(slot));
    const std::string comment = left_out ? "no effect: " + inactive->second : origin;
    section.text += fmt::format("{:<{}}  # {}\n", line, kCommentColumn, shown(comment, 300));
    section.has_keys = section.has_keys || !left_out;
  }

  Recipe recipe_;
  std::map<std::string, std::string> origins_;
  std::map<std::string, std::string> inactive_;
  std::vector<Section> sections_;
};

}  // namespace

std::string resolved_yaml(const LoadedRecipe& loaded) {
  return fmt::format("# {}, resolved; each value with where it comes from.\n{}",
                     shown(loaded.file, 300), Resolved(loaded).write());
}

}  // namespace dstrain
