#include "engine/base/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "engine/base/file.h"
#include "engine/base/input_file.h"

namespace dstrain {
namespace {

using Json = nlohmann::json;

}  // namespace

/// Reads the text for the parser and tells the builder how far it came.
class JsonBuilder::Cursor {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = char;

  Cursor(JsonBuilder& builder, std::size_t at) : builder_(&builder), at_(at) {}
  char operator*() const {
    builder_->byte_ = at_ + 1;
    return builder_->text_[at_];
  }
  Cursor& operator++() {
    ++at_;
    return *this;
  }
  Cursor operator++(int) { return std::exchange(*this, Cursor(*builder_, at_ + 1)); }
  bool operator==(const Cursor& other) const { return at_ == other.at_; }

 private:
  JsonBuilder* builder_;
  std::size_t at_;
};

JsonBuilder::JsonBuilder(std::string_view text, const JsonPlace& place, const JsonLimits& limits)
    : text_(text), place_(place), limits_(limits) {}

nlohmann::json JsonBuilder::build() {
  if (text_.size() > limits_.bytes) {
    fail_at(1,
            fmt::format("{} bytes of JSON, more than the {} allowed", text_.size(), limits_.bytes));
  }
  // The parser takes a zero byte for the end of its input.
  if (const auto zero = text_.find('\0'); zero != std::string_view::npos)
    fail_at(zero + 1, "not JSON: a zero byte");
  Json::sax_parse(Cursor(*this, 0), Cursor(*this, text_.size()), this);
  return std::move(root_);
}

bool JsonBuilder::key(string_t& v) {
  if (limits_.unique_keys && open_.back()->contains(v)) {
    fail(fmt::format("the key '{}' is there twice", v));
  }
  key_ = std::move(v);
  return true;
}

bool JsonBuilder::value(Json v) {
  add(std::move(v));
  return true;
}

bool JsonBuilder::open(Json v) {
  if (open_.size() == limits_.depth) fail(fmt::format("nested more than {} deep", limits_.depth));
  open_.push_back(add(std::move(v)));
  return true;
}

bool JsonBuilder::close() {
  open_.pop_back();
  return true;
}

Json* JsonBuilder::add(Json v) {
  if (++values_ > limits_.values) fail(fmt::format("more than {} values", limits_.values));
  if (open_.empty()) {
    root_ = std::move(v);
    return &root_;
  }
  Json& parent = *open_.back();
  if (!parent.is_array()) return &(parent[key_] = std::move(v));
  parent.push_back(std::move(v));
  return &parent.back();
}

bool JsonBuilder::parse_error(std::size_t byte, const std::string& /*last*/,
                              const nlohmann::detail::exception& error) {
  fail_at(byte, json_mistake(error));
}

void JsonBuilder::fail_at(std::size_t byte, const std::string& what) const {
  throw Error(limits_.kind, fmt::format("{}: {}", place_(byte), what));
}

JsonPlace line_and_column(std::string_view text, std::string name) {
  return [text, name = std::move(name)](std::size_t byte) {
    const std::string_view before = text.substr(0, std::max<std::size_t>(byte, 1) - 1);
    const auto line_begin = before.rfind('\n') + 1;  // npos + 1 is 0
    return fmt::format("{}:{}:{}", name, std::ranges::count(before, '\n') + 1,
                       before.size() - line_begin + 1);
  };
}

nlohmann::json parse_json(std::string_view text, const JsonPlace& place, const JsonLimits& limits) {
  return JsonBuilder(text, place, limits).build();
}

nlohmann::json parse_json(std::string_view text, const std::string& name,
                          const JsonLimits& limits) {
  return parse_json(text, line_and_column(text, name), limits);
}

nlohmann::json read_json_object(const std::filesystem::path& path, const JsonLimits& limits) {
  Json value = parse_json(read_file(path, limits.bytes), shown_path(path), limits);
  if (value.is_object()) return value;
  throw Error(limits.kind,
              fmt::format("{}: holds {}, not an object", shown_path(path), value.type_name()));
}

nlohmann::json json_or_null(std::string_view text, const JsonLimits& limits) {
  try {
    return parse_json(text, "", limits);
  } catch (const Error&) {
    return nullptr;
  }
}

std::string json_mistake(const std::exception& error) {
  constexpr std::size_t kMaxShownBytes = 160;
  // "[json.exception.parse_error.101] parse error at line 1, column 5: syntax error ...; last read:
  // '...'; expected ...", where what was read last may be as long as the file.
  std::string text = error.what();
  if (const auto name = text.find("] "); name != std::string::npos) text.erase(0, name + 2);
  if (text.starts_with("number overflow")) return "not JSON: a number beyond the range of double";
  if (const auto at = text.find("syntax error"); at != std::string::npos) text.erase(0, at);
  if (const auto read = text.find("; last read"); read != std::string::npos) {
    const auto expected = text.rfind("'; expected");
    text = text.substr(0, read) + (expected == std::string::npos ? "" : text.substr(expected + 1));
  }
  return "not JSON: " + text.substr(0, kMaxShownBytes);
}

std::string shown_text(std::string_view text, std::size_t max_bytes) {
  if (text.size() <= max_bytes) return std::string(text);
  std::size_t end = max_bytes;
  // Not inside a character.
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return std::string(text.substr(0, end)) + "...";
}

std::string shown_json(const Json& value) {
  constexpr std::size_t kMaxShown = 200;
  if (value.is_structured() && value.size() > kMaxShown) {
    return fmt::format("{} of {} values", value.is_array() ? "a list" : "an object", value.size());
  }
  return shown_text(json_text(value));
}

std::string json_text(const Json& value, int indent) {
  return value.dump(indent, ' ', false, Json::error_handler_t::replace);
}

std::string json_text(const nlohmann::ordered_json& value, int indent) {
  return value.dump(indent, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace dstrain
