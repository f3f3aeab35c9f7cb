#pragma once

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

namespace dstrain::test {

/// What stands where another value should, as it is written.
inline const std::vector<std::string>& hostile_values() {
  static const std::vector<std::string> values = {
      "-1",
      "0",
      "-0.0",
      "1.5",
      "1e308",
      "1e999",
      "-1e999",
      "4611686018427387904",
      "9223372036854775807",
      "9223372036854775808",
      "18446744073709551615",
      "123456789012345678901234567890",
      "null",
      "true",
      "[]",
      "{}",
      "[[[[]]]]",
      "{\"a\":{\"a\":1}}",
      "\"\"",
      "\"..\"",
      "\"/dev/zero\"",
      "\"a\\u0000b\"",
      "\"\\ud800\"",
      "\"\xff\xfe\"",
      "\"\\u001b[2J\"",
      "\"" + std::string(70'000, 'x') + "\"",
      "NaN",
      "Infinity",
      "",
  };
  return values;
}

/// Calls `take` with `good`, an object, once for each of its parts and each hostile value in its
/// place, then with parts left out and doubled, cut, and with bytes changed at random.
inline void for_each_mutant(const std::string& good,
                            const std::function<void(const std::string& text)>& take) {
  using Json = nlohmann::ordered_json;
  const std::string place = "@place@";
  const Json root = Json::parse(good);
  // Every part, arrays and objects themselves included.
  std::vector<Json::json_pointer> parts;
  const std::function<void(const Json&, const Json::json_pointer&)> walk =
      [&](const Json& value, const Json::json_pointer& at) {
        if (!at.empty()) parts.push_back(at);
        std::size_t i = 0;
        for (const auto& [key, child] : value.items())
          if (value.is_object()) {
            walk(child, at / key);
          } else if (value.is_array()) {
            walk(child, at / i++);
          }
      };
  walk(root, Json::json_pointer());
  for (const Json::json_pointer& part : parts) {
    Json changed = root;
    changed[part] = place;
    const std::string text = changed.dump();
    const std::string marked = "\"" + place + "\"";
    for (const std::string& value : hostile_values())
      take(std::string(text).replace(text.find(marked), marked.size(), value));
    Json without = root;
    Json& parent = without[part.parent_pointer()];
    if (parent.is_object()) {
      parent.erase(part.back());
    } else {
      const auto index = std::stoul(part.back());
      parent.push_back(Json(parent[index]));
      take(without.dump());
      parent.erase(parent.size() - 1);
      parent.erase(index);
    }
    take(without.dump());
  }
  for (std::size_t end = 0; end < good.size(); end += std::max<std::size_t>(1, good.size() / 200))
    take(good.substr(0, end));
  std::mt19937 random(11);
  for (int i = 0; i < 500; ++i) {
    std::string text = good;
    for (auto edits = 1 + random() % 3; edits > 0; --edits)
      text[random() % text.size()] = static_cast<char>(random());
    take(text);
  }
  for (const char* opening : {"[", "{\"a\":"}) {
    std::string bomb;
    for (int i = 0; i < 100'000; ++i) bomb += opening;
    take(bomb);
    take("{\"a\":" + bomb);
  }
  std::string wide = "{\"a\":[[]";
  for (int i = 0; i < 200'000; ++i) wide += ",[]";
  take(wide + "]}");
  std::string many = "{\"k\":0";
  for (int i = 0; i < 50'000; ++i) many += ",\"k" + std::to_string(i) + "\":0";
  take(many + "}");
}

}  // namespace dstrain::test
