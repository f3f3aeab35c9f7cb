#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace dstrain {

/// Reads the fields of one object of tokenizer.json; what is wrong is told as Error{data} with the
/// file, the key, what was found and what was expected.
class JsonFields {
 public:
  /// `place` is where the object stands, "model" or "pre_tokenizer.pretokenizers[1]". Not an
  /// object: Error{data}.
  JsonFields(const nlohmann::json& object, const std::string& path, std::string place);

  /// Absent and null give the default.
  [[nodiscard]] bool flag(const char* key, bool otherwise) const;
  [[nodiscard]] std::string text(const char* key, const std::string& otherwise) const;

  /// Must be there.
  [[nodiscard]] const nlohmann::json& field(const char* key) const;
  [[nodiscard]] std::string required_text(const char* key) const;
  [[nodiscard]] const nlohmann::json& list(const char* key) const;

  /// Path and place of a field, as messages name it.
  [[nodiscard]] std::string where(const std::string& key) const;
  /// Place of a field without the path.
  [[nodiscard]] std::string place_of(const std::string& key) const {
    return place_.empty() ? key : place_ + "." + key;
  }
  [[noreturn]] void refuse(const char* key, const std::string& expected) const;

 private:
  const nlohmann::json& object_;
  const std::string& path_;
  std::string place_;
};

}  // namespace dstrain
