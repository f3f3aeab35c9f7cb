#include "engine/data/tokenizer/json_fields.h"

#include <fmt/format.h>

#include "engine/base/error.h"
#include "engine/base/json.h"

namespace dstrain {

namespace {

/// A value as a message shows it.
std::string shown(const nlohmann::json& value) {
  return value.is_structured() ? (value.is_array() ? "a list" : "object") : shown_json(value);
}

}  // namespace

JsonFields::JsonFields(const nlohmann::json& object, const std::string& path, std::string place)
    : object_(object), path_(path), place_(std::move(place)) {
  if (object.is_object()) return;
  throw Error(ErrorKind::data,
              fmt::format("{}: {}: {}, expected an object", path, place_, shown(object)));
}

std::string JsonFields::where(const std::string& key) const { return path_ + ": " + place_of(key); }

void JsonFields::refuse(const char* key, const std::string& expected) const {
  const auto found = object_.find(key);
  throw Error(ErrorKind::data,
              fmt::format("{}: {}, expected {}", where(key),
                          found == object_.end() ? "missing" : shown(*found), expected));
}

const nlohmann::json& JsonFields::field(const char* key) const {
  const auto found = object_.find(key);
  if (found == object_.end()) refuse(key, "a value");
  return *found;
}

bool JsonFields::flag(const char* key, bool otherwise) const {
  const auto found = object_.find(key);
  if (found == object_.end() || found->is_null()) return otherwise;
  if (!found->is_boolean()) refuse(key, "true or false");
  return found->get<bool>();
}

std::string JsonFields::text(const char* key, const std::string& otherwise) const {
  const auto found = object_.find(key);
  if (found == object_.end() || found->is_null()) return otherwise;
  if (!found->is_string()) refuse(key, "a text");
  return found->get<std::string>();
}

std::string JsonFields::required_text(const char* key) const {
  if (!object_.contains(key) || !object_.at(key).is_string()) refuse(key, "a text");
  return object_.at(key).get<std::string>();
}

const nlohmann::json& JsonFields::list(const char* key) const {
  if (!object_.contains(key) || !object_.at(key).is_array()) refuse(key, "a list");
  return object_.at(key);
}

}  // namespace dstrain
