#pragma once

#include <string>
#include <vector>

namespace dstrain::test {

struct HostileJson {
  std::string name;
  std::string text;
};

inline std::string repeated(const std::string& part, std::size_t count) {
  std::string text;
  text.reserve(part.size() * count);
  for (std::size_t i = 0; i < count; ++i) text += part;
  return text;
}

/// Texts that every reader of JSON must refuse with an Error that names the place: broken ones, and
/// ones that ask for stack, memory or numbers without bound. An object's beginning, so that it is
/// not refused for what it holds.
inline std::vector<HostileJson> hostile_json() {
  const auto object = [](const std::string& value) { return "{\"a\": " + value + "}"; };
  constexpr std::size_t kDeep = 200'000;
  return {
      {"empty", ""},
      {"blank", " \n\t\n"},
      {"cut off in an object", "{\"a\": 1"},
      {"cut off in a text", "{\"a\": \"b"},
      {"cut off in an escape", "{\"a\": \"\\u00"},
      {"trailing text", "{\"a\": 1} x"},
      {"two values", "{\"a\": 1}{\"a\": 1}"},
      {"a comment", "{\"a\": 1 /* one */}"},
      {"single quotes", "{'a': 1}"},
      {"a comma too many", "{\"a\": 1,}"},
      {"NaN", object("NaN")},
      {"infinity", object("-Infinity")},
      {"a hexadecimal number", object("0x10")},
      {"a leading zero", object("01")},
      {"a number beyond double", object("1e999")},
      {"a negative number beyond double", object("-1e999")},
      {"a number of 100,000 digits", object(std::string(100'000, '9'))},
      {"a zero byte at the end", std::string("{\"a\": 1}\0", 9)},
      {"a zero byte that hides the rest", std::string("{\"a\": 1}\0[[[[", 13)},
      {"a zero byte in a text", object(std::string("\"b\0c\"", 5))},
      {"a control character in a text", object("\"\x01\"")},
      {"a name that is not UTF-8", "{\"\xff\xfe\": 1}"},
      {"a text that is not UTF-8", object("\"\xc3\x28\"")},
      {"an overlong character", object("\"\xc0\xaf\"")},
      {"half a surrogate pair", object("\"\\ud800\"")},
      {"UTF-16", std::string("\xff\xfe{\0\"\0a\0\"\0", 10)},
      {"lists in each other", object(std::string(kDeep, '['))},
      {"lists in each other, closed", object(std::string(kDeep, '[') + std::string(kDeep, ']'))},
      {"objects in each other", repeated("{\"a\":", kDeep)},
      {"objects in each other, closed", repeated("{\"a\":", kDeep) + "1" + std::string(kDeep, '}')},
  };
}

}  // namespace dstrain::test
