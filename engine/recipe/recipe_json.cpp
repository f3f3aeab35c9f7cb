#include <nlohmann/json.hpp>
#include <type_traits>

#include "engine/recipe/json_value.h"
#include "engine/recipe/render.h"

namespace dstrain {
namespace {

class Values final : public Visitor {
 public:
  nlohmann::ordered_json write(Recipe recipe) {
    sections_.push_back(nlohmann::ordered_json::object());
    describe(recipe, *this);
    return std::move(sections_.back());
  }

 private:
  void enter(std::string_view name, std::string_view) override {
    names_.emplace_back(name);
    sections_.push_back(nlohmann::ordered_json::object());
  }
  void leave() override {
    nlohmann::ordered_json inner = std::move(sections_.back());
    sections_.pop_back();
    sections_.back()[names_.back()] = std::move(inner);
    names_.pop_back();
  }
  void visit_list(std::string_view name, const ListSlot& list, std::string_view) override {
    auto items = nlohmann::ordered_json::array();
    for (std::size_t i = 0; i < list.size(list.at); ++i) {
      sections_.push_back(nlohmann::ordered_json::object());
      list.describe(list.at, i, *this);
      items.push_back(std::move(sections_.back()));
      sections_.pop_back();
    }
    sections_.back()[std::string(name)] = std::move(items);
  }
  void visit(std::string_view name, const Slot& slot, const Field&) override {
    sections_.back()[std::string(name)] = json_value(slot);
  }

  std::vector<std::string> names_;
  std::vector<nlohmann::ordered_json> sections_;
};

}  // namespace

nlohmann::ordered_json json_value(const Slot& slot) {
  const auto write = [](auto source) -> nlohmann::ordered_json {
    using Source = decltype(source);
    if constexpr (std::is_same_v<Source, EnumSlot>) {
      return spelling(source.all, source.get(source.at));
    } else if constexpr (std::is_same_v<Source, EnumListSlot>) {
      auto names = nlohmann::ordered_json::array();
      for (const int value : source.get(source.at)) names.push_back(spelling(source.all, value));
      return names;
    } else if constexpr (std::is_same_v<Source, Interval*>) {
      return to_text(*source);
    } else {
      return *source;
    }
  };
  return std::visit(write, slot);
}

std::string recipe_json(const LoadedRecipe& loaded) {
  nlohmann::ordered_json json;
  json["file"] = loaded.file;
  json["recipe"] = Values().write(loaded.recipe);
  json["origins"] = nlohmann::ordered_json::object();
  for (const Origin& origin : loaded.origins) json["origins"][origin.path] = origin.origin;
  // File names need not be UTF-8.
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace dstrain
