#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "engine/base/file.h"
#include "engine/data/text/record.h"

namespace dstrain::text {

/// A JSON file as nlohmann's reader sees it, byte by byte. Bytes that are not UTF-8 are replaced by
/// '?' and counted, so that one broken record does not cost the rest of the file.
class JsonFile {
 public:
  explicit JsonFile(const std::filesystem::path& path) : path_(path), file_(path) {}

  /// Calls `handler` (json_sax) for what the file holds. Error{data} names the byte where it is no
  /// JSON.
  template <class Handler>
  void parse(Handler& handler) {
    nlohmann::json::sax_parse(Iterator(this, 0), Iterator(this, file_.text().size()), &handler);
  }

  /// Called at each value and key, which is longer than a record when reading comes too far
  /// without.
  void begin_value() { value_begin_ = at_; }

  /// True once for each time that broken bytes were read since the last call; `broken_byte()` is
  /// the first of them.
  [[nodiscard]] bool take_broken() {
    const bool broken = broken_;
    broken_ = false;
    return broken;
  }
  [[nodiscard]] std::size_t broken_byte() const { return broken_byte_; }
  /// Bytes read so far, as a share of all.
  [[nodiscard]] double share() const;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

  /// Throws Error{data}: "PATH: byte N: `what`". `byte` npos: where reading is now.
  [[noreturn]] void fail(const std::string& what, std::size_t byte = std::string_view::npos) const;

 private:
  /// Single pass: copies share the file's place.
  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = char;
    using difference_type = std::ptrdiff_t;
    using pointer = const char*;
    using reference = char;

    Iterator(JsonFile* file, std::size_t at) : file_(file), at_(at) {}
    char operator*() const { return file_->byte(at_); }
    Iterator& operator++() {
      ++at_;
      return *this;
    }
    Iterator operator++(int) { return std::exchange(*this, Iterator(file_, at_ + 1)); }
    bool operator==(const Iterator& other) const { return at_ == other.at_; }

   private:
    JsonFile* file_;
    std::size_t at_;
  };

  char byte(std::size_t at) {
    at_ = at;
    if (at - value_begin_ > kMaxRecordBytes) fail_long();
    const char c = file_.text()[at];
    return (static_cast<unsigned char>(c) < 0x80 || at < checked_) ? c : check(at);
  }
  [[noreturn]] void fail_long() const;
  /// What stands for the byte above ASCII at `at`.
  char check(std::size_t at);

  std::filesystem::path path_;
  MappedFile file_;
  std::size_t at_ = 0;  ///< byte read last
  std::size_t value_begin_ = 0;
  std::size_t checked_ = 0;  ///< up to here it is UTF-8
  bool broken_ = false;
  std::size_t broken_byte_ = 0;
};

/// What the handlers of JSON data sets share: a file and the shape of nlohmann's interface.
/// `string` comes with null for any value that is not text; `what` says which ("a number").
class JsonHandler {
 public:
  using Json = nlohmann::json;

  explicit JsonHandler(JsonFile& file) : file_(file) {}
  virtual ~JsonHandler() = default;
  JsonHandler(const JsonHandler&) = delete;
  JsonHandler& operator=(const JsonHandler&) = delete;

  bool null() { return other("null"); }
  bool boolean(bool value) { return next(), on_boolean(value), true; }
  bool number_integer(std::int64_t value) { return next(), on_integer(value), true; }
  bool number_unsigned(std::uint64_t value) {
    return value > INT64_MAX ? other("a number") : number_integer(static_cast<std::int64_t>(value));
  }
  bool number_float(double, const std::string&) { return other("a number"); }
  bool string(std::string& value) { return next(), on_string(value), true; }
  bool binary(Json::binary_t&) { return other("binary"); }
  bool key(std::string& name) { return next(), on_key(name), true; }
  bool start_object(std::size_t) { return next(), on_object(), true; }
  bool end_object() { return next(), on_end(), true; }
  bool start_array(std::size_t) { return next(), on_array(), true; }
  bool end_array() { return next(), on_end(), true; }
  bool parse_error(std::size_t byte, const std::string& last, const std::exception& error);

 protected:
  virtual void on_key(std::string& name) = 0;
  virtual void on_string(std::string& value) = 0;
  virtual void on_boolean(bool value) = 0;
  virtual void on_integer(std::int64_t value) = 0;
  /// A value that no data set of text has; `what` for messages.
  virtual void on_other(const char* what) = 0;
  virtual void on_object() = 0;
  virtual void on_array() = 0;
  virtual void on_end() = 0;  ///< of an object or array

  JsonFile& file_;

 private:
  void next() { file_.begin_value(); }
  bool other(const char* what) { return next(), on_other(what), true; }
};

}  // namespace dstrain::text
