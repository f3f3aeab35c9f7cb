#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "engine/chat/text.h"

namespace dstrain::chat {

class Value;
struct List;
class Dict;
struct Namespace;
struct Function;
struct Loop;

/// Lists and dicts inside each other, at most.
inline constexpr int kMaxNesting = 100;

/// What went wrong while a template ran; render() adds the line.
struct Fault {
  std::string message;
};

/// What a name or a member gave that is not there.
struct Undefined {
  std::shared_ptr<const std::string> what;
};

struct None {};

/// Text, and whether the filter `safe` made it: Python then escapes what is added to it.
struct TextValue {
  std::shared_ptr<const Text> text;
  bool safe = false;
};

/// A value of a template, as Python has it. Texts, lists and dicts do not change.
class Value {
 public:
  Value() : data_(Undefined{}) {}
  static Value undefined(std::string what);
  static Value none(Source source = {}) { return {None{}, source}; }
  static Value boolean(bool value, Source source = {}) { return {value, source}; }
  static Value integer(std::int64_t value, Source source = {}) { return {value, source}; }
  static Value real(double value, Source source = {}) { return {value, source}; }
  static Value text(Text text, bool safe = false);
  static Value text(std::string bytes, Source source = {});
  static Value list(List list, Source source = {});
  static Value dict(Dict dict, Source source = {});
  static Value space(Namespace& space) { return {&space, {}}; }
  static Value function(Function function);
  static Value loop(Loop& loop) { return {&loop, {}}; }

  [[nodiscard]] bool is_undefined() const { return holds<Undefined>(); }
  [[nodiscard]] bool is_none() const { return holds<None>(); }
  [[nodiscard]] const bool* as_bool() const { return std::get_if<bool>(&data_); }
  [[nodiscard]] const std::int64_t* as_integer() const { return std::get_if<std::int64_t>(&data_); }
  [[nodiscard]] const double* as_real() const { return std::get_if<double>(&data_); }
  [[nodiscard]] const Text* as_text() const;
  [[nodiscard]] bool is_safe_text() const;
  [[nodiscard]] const List* as_list() const;
  [[nodiscard]] const Dict* as_dict() const;
  [[nodiscard]] Namespace* as_space() const;
  [[nodiscard]] const Function* as_function() const;
  [[nodiscard]] const Loop* as_loop() const;
  /// The missing name of an undefined value.
  [[nodiscard]] std::string what() const;
  /// Where the value itself comes from; texts know it of each character.
  [[nodiscard]] Source source() const { return source_; }
  /// Depth of lists and dicts in it: 0 of a text or number.
  [[nodiscard]] int nesting() const;

 private:
  using Data = std::variant<Undefined, None, bool, std::int64_t, double, TextValue,
                            std::shared_ptr<const List>, std::shared_ptr<const Dict>, Namespace*,
                            std::shared_ptr<const Function>, Loop*>;

  Value(Data data, Source source) : data_(std::move(data)), source_(source) {}
  template <typename T>
  [[nodiscard]] bool holds() const {
    return std::holds_alternative<T>(data_);
  }

  Data data_;
  Source source_;
};

/// Things in order. Python has several kinds, which print and are asked for items differently.
struct List {
  enum class Kind { list, tuple, range, view, generator };

  std::vector<Value> items;
  Kind kind = Kind::list;
  int nesting = 1;            ///< set by Value::list
  mutable bool read = false;  ///< of a generator, which is read once
};

/// Text keys and their values in order.
class Dict {
 public:
  struct Entry {
    Text key;
    Value value;
  };

  Dict() = default;
  /// Equal keys: the first keeps its place and gets the last value, as in Python.
  explicit Dict(std::vector<Entry> entries);

  [[nodiscard]] const std::vector<Entry>& entries() const { return entries_; }
  [[nodiscard]] const Value* find(std::string_view key) const;
  [[nodiscard]] int nesting() const { return nesting_; }

 private:
  std::vector<Entry> entries_;
  std::vector<std::uint32_t> order_;  ///< of entries by key
  int nesting_ = 1;
};

/// What `namespace()` makes: the one value that changes.
struct Namespace {
  std::vector<std::pair<std::string, Value>> members;

  [[nodiscard]] const Value* find(std::string_view name) const;
};

/// How far a loop is.
struct Loop {
  const std::vector<Value>* items = nullptr;
  std::size_t index = 0;
  int depth = 1;
};

struct Statement;

/// Something that can be called: a function of the environment, a method of a value or a macro.
struct Function {
  std::string name;
  Value self;                        ///< of a method
  const Statement* macro = nullptr;  ///< of a macro
  bool method = false;
};

/// Name of the type in messages, as Python calls it.
[[nodiscard]] std::string_view type_name(const Value& value);

}  // namespace dstrain::chat
