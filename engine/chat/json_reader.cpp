#include "engine/chat/json_reader.h"

#include <fmt/format.h>

#include <limits>
#include <optional>

namespace dstrain::chat {

namespace {

using Json = nlohmann::json;

/// Builds values from the parser's events.
class ValueBuilder : public nlohmann::json_sax<Json> {
 public:
  ValueBuilder(std::string_view text, const JsonPlace& place, const JsonLimits& limits,
               Source source)
      : text_(text), place_(place), limits_(limits), source_(source) {}

  Value build() {
    if (text_.size() > limits_.bytes)
      fail(1,
           fmt::format("{} bytes of JSON, more than the {} allowed", text_.size(), limits_.bytes));
    if (const auto zero = text_.find('\0'); zero != std::string_view::npos)
      fail(zero + 1, "not JSON: a zero byte");
    Json::sax_parse(text_.begin(), text_.end(), this);
    return std::move(root_);
  }

  bool null() override { return add(Value::none(source_)); }
  bool boolean(bool v) override { return add(Value::boolean(v, source_)); }
  bool number_integer(number_integer_t v) override { return add(Value::integer(v, source_)); }
  bool number_unsigned(number_unsigned_t v) override {
    if (v > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
      fail(1, "a whole number beyond 64 bits");
    return add(Value::integer(static_cast<std::int64_t>(v), source_));
  }
  bool number_float(number_float_t v, const string_t& text) override {
    if (text.find_first_of(".eE") == string_t::npos) fail(1, "a whole number beyond 64 bits");
    return add(Value::real(v, source_));
  }
  bool string(string_t& v) override { return add(Value::text(std::move(v), source_)); }
  bool binary(binary_t& /*v*/) override { return false; }  // no JSON text has it
  bool start_object(std::size_t /*count*/) override { return open(true); }
  bool end_object() override { return close(); }
  bool start_array(std::size_t /*count*/) override { return open(false); }
  bool end_array() override { return close(); }
  bool key(string_t& v) override {
    open_.back().key = Text(std::move(v), source_);
    return true;
  }
  bool parse_error(std::size_t byte, const std::string& /*last*/,
                   const nlohmann::detail::exception& error) override {
    fail(byte, json_mistake(error));
  }

 private:
  struct Open {
    bool dict;
    Text key;
    std::vector<Dict::Entry> entries;
    List list;
  };

  [[noreturn]] void fail(std::size_t byte, const std::string& what) const {
    throw Error(limits_.kind, fmt::format("{}: {}", place_(byte), what));
  }

  bool open(bool dict) {
    if (open_.size() >= std::min<std::size_t>(limits_.depth, kMaxNesting - 4))
      fail(1, fmt::format("lists and objects more than {} deep", open_.size()));
    open_.push_back({.dict = dict, .key = {}, .entries = {}, .list = {}});
    return true;
  }

  bool close() {
    Open done = std::move(open_.back());
    open_.pop_back();
    return add(done.dict ? Value::dict(Dict(std::move(done.entries)), source_)
                         : Value::list(std::move(done.list), source_));
  }

  bool add(Value value) {
    if (++values_ > limits_.values)
      fail(1, fmt::format("more than {} values of JSON", limits_.values));
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (open_.back().dict) {
      open_.back().entries.push_back({std::move(open_.back().key), std::move(value)});
    } else {
      open_.back().list.items.push_back(std::move(value));
    }
    return true;
  }

  std::string_view text_;
  const JsonPlace& place_;
  JsonLimits limits_;
  Source source_;
  std::size_t values_ = 0;
  std::vector<Open> open_;
  Value root_ = Value::none();
};

}  // namespace

Value read_json_value(std::string_view text, const JsonPlace& place, const JsonLimits& limits,
                      Source source) {
  return ValueBuilder(text, place, limits, source).build();
}

Value with_source(const Value& value, Source source) {
  if (const Text* text = value.as_text()) return Value::text(text->bytes(), source);
  if (const List* list = value.as_list()) {
    List copy;
    copy.kind = list->kind;
    for (const Value& item : list->items) copy.items.push_back(with_source(item, source));
    return Value::list(std::move(copy), source);
  }
  if (const Dict* dict = value.as_dict()) {
    std::vector<Dict::Entry> entries;
    for (const auto& [key, item] : dict->entries())
      entries.push_back({Text(key.bytes(), source), with_source(item, source)});
    return Value::dict(Dict(std::move(entries)), source);
  }
  if (const bool* boolean = value.as_bool()) return Value::boolean(*boolean, source);
  if (const std::int64_t* integer = value.as_integer()) return Value::integer(*integer, source);
  if (const double* real = value.as_real()) return Value::real(*real, source);
  return value.is_none() ? Value::none(source) : value;
}

}  // namespace dstrain::chat
