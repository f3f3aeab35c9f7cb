#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace dstrain::text {

/// Text with places for the fields of a record: "Q: {question}\n"; "{{" and "}}" stand for braces.
class Template {
 public:
  /// Error{usage} names `key` of the recipe and the place where `text` is no template.
  Template(std::string_view text, const std::string& key);

  [[nodiscard]] bool empty() const { return pieces_.empty(); }
  [[nodiscard]] bool has_fields() const;
  /// Whether it has a place for this field.
  [[nodiscard]] bool names(std::string_view field) const;

  /// `text` with the fields of `object` filled in. Texts stand as they are, numbers and truth
  /// values as Python prints them. Returns what is wrong; empty when nothing is.
  [[nodiscard]] std::string fill(const nlohmann::json& object, std::string& text) const;

 private:
  struct Piece {
    std::string text;
    bool is_field = false;
  };
  std::vector<Piece> pieces_;
};

/// "a list", "null": what a value is, for messages.
[[nodiscard]] const char* kind_of(const nlohmann::json& value);

}  // namespace dstrain::text
