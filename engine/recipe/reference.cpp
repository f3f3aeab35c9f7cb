#include <fmt/format.h>

#include <string>
#include <type_traits>
#include <utility>

#include "engine/recipe/render.h"
#include "engine/recipe/text.h"
#include "engine/recipe/value.h"
#include "engine/recipe/variants.h"

namespace dstrain {
namespace {

std::string limits_after(const Field& about) {
  std::string text;
  if (about.min) text += fmt::format(" {} {}", about.above_min ? "above" : "from", *about.min);
  if (about.max) text += fmt::format(" {} {}", about.below_max ? "below" : "to", *about.max);
  return text;
}

std::string type_text(const Slot& slot, const Field& about) {
  const auto type = [&](auto target) -> std::string {
    using Target = decltype(target);
    if constexpr (std::is_same_v<Target, int*> || std::is_same_v<Target, long*>) {
      return "whole number" + limits_after(about);
    } else if constexpr (std::is_same_v<Target, double*>) {
      return "number" + limits_after(about);
    } else if constexpr (std::is_same_v<Target, bool*>) {
      return "true or false";
    } else if constexpr (std::is_same_v<Target, std::string*>) {
      return about.path ? "path" : about.names.empty() ? "text" : "one word";
    } else if constexpr (std::is_same_v<Target, Interval*>) {
      return interval_words(about.clock);
    } else if constexpr (std::is_same_v<Target, EnumSlot>) {
      return "one word";
    } else if constexpr (std::is_same_v<Target, EnumListSlot>) {
      return "list of words";
    } else if constexpr (std::is_same_v<Target, std::vector<std::string>*>) {
      return "list of texts";
    } else {
      const std::string length = about.length > 0 ? fmt::format("{} ", about.length) : "";
      constexpr bool kWhole = std::is_same_v<Target, std::vector<int>*>;
      return fmt::format("list of {}{}numbers{}", length, kWhole ? "whole " : "",
                         limits_after(about));
    }
  };
  return std::visit(type, slot);
}

std::span<const Choice> words_of(const Slot& slot, const Field& about) {
  if (const auto* one = std::get_if<EnumSlot>(&slot)) return one->all;
  if (const auto* list = std::get_if<EnumListSlot>(&slot)) return list->all;
  return about.names;
}

class Reference final : public Visitor {
 public:
  std::string write() {
    Recipe defaults;
    describe(defaults, *this);
    return std::move(text_);
  }
  std::vector<std::string> keys() {
    (void)write();
    return std::move(keys_);
  }

 private:
  void enter(std::string_view name, std::string_view text) override {
    path_ += path_.empty() ? std::string(name) : "." + std::string(name);
    text_ += fmt::format("\n## {}\n\n{}\n\n", path_, text);
  }
  void leave() override {
    const std::size_t dot = path_.rfind('.');
    path_.erase(dot == std::string::npos ? 0 : dot);
  }
  void visit_list(std::string_view name, const ListSlot& list, std::string_view text) override {
    enter(name, fmt::format("List; default `[]`. {}", text));
    path_ += ".N";
    list.describe_new(*this);
    leave();
    leave();
  }
  void visit(std::string_view name, const Slot& slot, const Field& about) override {
    keys_.push_back(fmt::format("{}.{}", path_, name));
    text_ += fmt::format("- **`{}.{}`**: {}", path_, name, type_text(slot, about));
    if (!about.unit.empty()) text_ += fmt::format("; {}", about.unit);
    text_ += !about.unless.empty() ? fmt::format("; required without `{}.{}`", path_, about.unless)
             : about.required      ? "; required"
                                   : fmt::format("; default `{}`", yaml_value(slot));
    text_ += fmt::format(".\n  {}", about.text);
    if (!about.source.empty()) text_ += fmt::format(" [{}]", about.source);
    text_ += "\n";
    for (const Choice& word : words_of(slot, about)) {
      text_ += fmt::format("  - `{}`: {}\n", word.name, word.text);
    }
  }

  std::string path_;
  std::string text_;
  std::vector<std::string> keys_;
};

}  // namespace

std::vector<std::string> recipe_keys() { return Reference().keys(); }

std::string reference_markdown() {
  return "# Recipe reference\n\n"
         "Made by `dstrain recipe schema --reference` from what the reader itself uses; do not "
         "edit.\n"
         "How a recipe works: README.md. An editor that reads YAML completes and checks with "
         "recipe.schema.json.\n" +
         Reference().write() + fmt::format("\n## {}\n\n{}\n", kVariants, kVariantsText);
}

}  // namespace dstrain
