#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <type_traits>
#include <utility>

#include "engine/recipe/json_value.h"
#include "engine/recipe/render.h"
#include "engine/recipe/variants.h"

namespace dstrain {
namespace {

using Json = nlohmann::ordered_json;

Json one_word(std::span<const Choice> all) {
  Json words = Json::array();
  for (const Choice& choice : all) {
    words.push_back({{"const", choice.name}, {"description", choice.text}});
  }
  return {{"oneOf", words}};
}

void add_limits(Json& type, const Field& about, bool whole) {
  const auto number = [&](double value) {
    return whole ? Json(static_cast<long>(value)) : Json(value);
  };
  if (about.min) type[about.above_min ? "exclusiveMinimum" : "minimum"] = number(*about.min);
  if (about.max) type[about.below_max ? "exclusiveMaximum" : "maximum"] = number(*about.max);
}

Json type_of(const Slot& slot, const Field& about) {
  const auto type = [&](auto target) -> Json {
    using Target = decltype(target);
    Json json;
    if constexpr (std::is_same_v<Target, int*> || std::is_same_v<Target, long*>) {
      json["type"] = "integer";
      add_limits(json, about, true);
    } else if constexpr (std::is_same_v<Target, double*>) {
      json["type"] = "number";
      add_limits(json, about, false);
    } else if constexpr (std::is_same_v<Target, bool*>) {
      json["type"] = "boolean";
    } else if constexpr (std::is_same_v<Target, std::string*>) {
      if (!about.names.empty()) return one_word(about.names);
      json["type"] = "string";
    } else if constexpr (std::is_same_v<Target, Interval*>) {
      json["oneOf"] = {{{"enum", {"never", "epoch"}}}, {{"type", "integer"}, {"minimum", 1}}};
      if (about.clock) {
        json["oneOf"][0]["enum"].push_back("auto");
        json["oneOf"].push_back({{"type", "string"}, {"pattern", "^[1-9][0-9]*[smh]$"}});
      }
    } else if constexpr (std::is_same_v<Target, EnumSlot>) {
      return one_word(target.all);
    } else {
      json["type"] = "array";
      if constexpr (std::is_same_v<Target, EnumListSlot>) {
        json["items"] = one_word(target.all);
        json["uniqueItems"] = true;
      } else if constexpr (std::is_same_v<Target, std::vector<std::string>*>) {
        json["items"] = {{"type", "string"}};
      } else {
        constexpr bool kWhole = std::is_same_v<Target, std::vector<int>*>;
        json["items"] = {{"type", kWhole ? "integer" : "number"}};
        add_limits(json["items"], about, kWhole);
      }
      if (about.length > 0) {
        json["minItems"] = about.length;
        json["maxItems"] = about.length;
      }
    }
    return json;
  };
  return std::visit(type, slot);
}

class JsonSchema final : public Visitor {
 public:
  Json write() {
    Recipe defaults;
    enter({}, "A training recipe of dstrain.");
    describe(defaults, *this);
    return take();
  }

 private:
  struct Section {
    std::string name = {};
    Json json = {};
    Json required = Json::array();
  };

  void enter(std::string_view name, std::string_view text) override {
    Section section = {.name = std::string(name), .json = {}};
    section.json["type"] = "object";
    section.json["description"] = text;
    section.json["additionalProperties"] = false;
    section.json["properties"] = Json::object();
    sections_.push_back(std::move(section));
  }
  void leave() override {
    const std::string name = sections_.back().name;
    Json inner = take();
    Section& outer = sections_.back();
    if (inner.contains("required") || inner.contains("anyOf")) outer.required.push_back(name);
    outer.json["properties"][name] = std::move(inner);
  }
  void visit_list(std::string_view name, const ListSlot& list, std::string_view text) override {
    enter({}, text);
    list.describe_new(*this);
    Json item = take();
    item.erase("description");
    sections_.back().json["properties"][std::string(name)] = {{"description", text},
                                                              {"type", "array"},
                                                              {"items", std::move(item)},
                                                              {"default", Json::array()}};
  }
  Json take() {
    Section section = std::move(sections_.back());
    sections_.pop_back();
    if (!section.required.empty()) section.json["required"] = section.required;
    return std::move(section.json);
  }
  void visit(std::string_view name, const Slot& slot, const Field& about) override {
    Json field;
    field["description"] = about.unit.empty() ? std::string(about.text)
                                              : fmt::format("{} Unit: {}.", about.text, about.unit);
    field.update(type_of(slot, about));
    if (!about.unless.empty()) {
      sections_.back().json["anyOf"] = {{{"required", {name}}}, {{"required", {about.unless}}}};
    } else if (about.required) {
      sections_.back().required.push_back(name);
    } else {
      field["default"] = json_value(slot);
    }
    sections_.back().json["properties"][std::string(name)] = std::move(field);
  }

  std::vector<Section> sections_;
};

}  // namespace

std::string json_schema() {
  Json schema;
  schema["$schema"] = "http://json-schema.org/draft-07/schema#";
  schema["title"] = "dstrain recipe";
  schema.update(JsonSchema().write());
  schema["properties"][std::string(kVariants)] = {{"description", kVariantsText},
                                                  {"type", "object"},
                                                  {"additionalProperties", {{"type", "object"}}},
                                                  {"default", Json::object()}};
  return schema.dump(2) + "\n";
}

}  // namespace dstrain
