#include "cmd/trainer_file.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/weights/torch_zip.h"

namespace dstrain {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t kMaxSettings = std::uint64_t{1} << 20;
constexpr std::size_t kMaxSettingsDepth = 20;

/// "linear" of SchedulerType.LINEAR, however Python wrote it down; empty for other objects.
std::string member_of_enum(const PickleValue& value) {
  if (value.arguments == nullptr || value.arguments->items.empty()) return {};
  const PickleValue& last = *value.arguments->items.back();
  if (!last.is(PickleValue::Kind::text)) return {};
  std::string name = last.text;
  for (char& c : name) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  return name;
}

/// Null of what is no plain value: state of the program that wrote it.
Json plain_value(const PickleValue& value, std::size_t depth) {
  if (depth > kMaxSettingsDepth) return nullptr;
  using enum PickleValue::Kind;
  switch (value.kind) {
    case boolean:
      return value.integer != 0;
    case integer:
      return value.integer;
    case real:
      return std::isfinite(value.real) ? Json(value.real) : Json(nullptr);
    case text:
      return value.text;
    case list:
    case tuple:
    case set: {
      Json items = Json::array();
      for (const PickleValue* item : value.items) items.push_back(plain_value(*item, depth + 1));
      return items;
    }
    case dict: {
      Json object = Json::object();
      for (std::size_t i = 0; i + 1 < value.items.size(); i += 2) {
        if (value.items[i]->is(text))
          object[value.items[i]->text] = plain_value(*value.items[i + 1], depth + 1);
      }
      return object;
    }
    case opaque: {
      const std::string name = member_of_enum(value);
      return name.empty() ? Json(nullptr) : Json(name);
    }
    case none:
    case bytes:
    case storage:
    case tensor:
      break;
  }
  return nullptr;
}

std::string arguments_as_json(const std::string& path) {
  const TorchZip zip{path};
  const PickleValue* state = zip.root().state;
  if (!zip.root().is(PickleValue::Kind::opaque) ||
      !zip.root().text.ends_with("TrainingArguments") || state == nullptr ||
      !state->is(PickleValue::Kind::dict)) {
    throw Error(ErrorKind::usage, fmt::format("{}: holds no TrainingArguments", path),
                "give training_args.bin of Trainer, or its JSON");
  }
  Json object = Json::object();
  for (std::size_t i = 0; i + 1 < state->items.size(); i += 2) {
    const PickleValue& key = *state->items[i];
    // Names with a line before them, and objects, are state of the program that wrote the file.
    if (!key.is(PickleValue::Kind::text) || key.text.starts_with('_')) continue;
    const Json value = plain_value(*state->items[i + 1], 0);
    if (!value.is_null()) object[key.text] = value;
  }
  return json_text(object, 2);
}

}  // namespace

std::string read_settings_file(const std::string& path) {
  try {
    if (path.ends_with(".bin")) return arguments_as_json(path);
    return read_file(path, kMaxSettings);
  } catch (const Error& error) {
    throw Error(ErrorKind::usage, error.what(),
                error.hint().empty() ? "give the path of the file" : error.hint());
  }
}

}  // namespace dstrain
