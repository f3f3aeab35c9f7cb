#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/error.h"

namespace dstrain {

/// Limits on JSON from outside.
struct JsonLimits {
  std::uint64_t bytes = std::uint64_t{64} << 20;
  std::size_t depth = 100;         ///< lists and objects inside each other
  std::size_t values = 2'000'000;  ///< of every kind; one takes up to 100 bytes of memory
  bool unique_keys = false;        ///< else the last of equal keys holds
  ErrorKind kind = ErrorKind::data;
};

/// Names the place of byte `byte`, from 1, of a text: "FILE:LINE:COLUMN".
using JsonPlace = std::function<std::string(std::size_t byte)>;
[[nodiscard]] JsonPlace line_and_column(std::string_view text, std::string name);

/// The value that `text` holds. Error{limits.kind} names the place and what is wrong there: not
/// JSON, a number beyond double, bytes that are not UTF-8, or more than `limits` allow.
[[nodiscard]] nlohmann::json parse_json(std::string_view text, const JsonPlace& place,
                                        const JsonLimits& limits = {});
[[nodiscard]] nlohmann::json parse_json(std::string_view text, const std::string& name,
                                        const JsonLimits& limits = {});

/// The same of a file, which must hold an object.
[[nodiscard]] nlohmann::json read_json_object(const std::filesystem::path& path,
                                              const JsonLimits& limits = {});

/// The same for text that is only looked at: null where it is not JSON or beyond the limits.
[[nodiscard]] nlohmann::json json_or_null(std::string_view text, const JsonLimits& limits = {});

/// What the parser found wrong, in a few words without the text that it read.
[[nodiscard]] std::string json_mistake(const std::exception& error);

/// Text and values for a message: cut where they are long.
[[nodiscard]] std::string shown_text(std::string_view text, std::size_t max_bytes = 200);
[[nodiscard]] std::string shown_json(const nlohmann::json& value);

/// The text of a value. Bytes of strings that are not UTF-8, such as those of a path, become
/// U+FFFD.
[[nodiscard]] std::string json_text(const nlohmann::json& value, int indent = -1);
[[nodiscard]] std::string json_text(const nlohmann::ordered_json& value, int indent = -1);

/// Builds a value from the parser's events and holds it to the limits. Derived readers keep what
/// they do not want to become a value.
class JsonBuilder : public nlohmann::json_sax<nlohmann::json> {
 public:
  JsonBuilder(std::string_view text, const JsonPlace& place, const JsonLimits& limits);

  /// Parses the text. Once only.
  nlohmann::json build();

  bool null() override { return value(nullptr); }
  bool boolean(bool v) override { return value(v); }
  bool number_integer(number_integer_t v) override { return value(v); }
  bool number_unsigned(number_unsigned_t v) override { return value(v); }
  bool number_float(number_float_t v, const string_t& /*text*/) override { return value(v); }
  bool string(string_t& v) override { return value(std::move(v)); }
  bool binary(binary_t& /*v*/) override { return false; }  // no JSON text has it
  bool key(string_t& v) override;
  bool start_object(std::size_t /*count*/) override { return open(nlohmann::json::object()); }
  bool end_object() override { return close(); }
  bool start_array(std::size_t /*count*/) override { return open(nlohmann::json::array()); }
  bool end_array() override { return close(); }
  bool parse_error(std::size_t byte, const std::string& last,
                   const nlohmann::detail::exception& error) override;

 protected:
  /// Error{limits.kind} for the place where the parser is.
  [[noreturn]] void fail(const std::string& what) const { fail_at(byte_, what); }
  /// Lists and objects around the present value, from the outermost.
  [[nodiscard]] const std::vector<nlohmann::json*>& around() const { return open_; }
  /// Key of the present value, if it is in an object.
  [[nodiscard]] const std::string& present_key() const { return key_; }
  virtual bool value(nlohmann::json v);
  virtual bool open(nlohmann::json v);
  bool close();

 private:
  class Cursor;

  [[noreturn]] void fail_at(std::size_t byte, const std::string& what) const;
  nlohmann::json* add(nlohmann::json v);

  std::string_view text_;
  const JsonPlace& place_;
  JsonLimits limits_;
  std::size_t byte_ = 0;  ///< read last, from 1
  std::size_t values_ = 0;
  nlohmann::json root_;
  std::vector<nlohmann::json*> open_;
  std::string key_;
};

}  // namespace dstrain
