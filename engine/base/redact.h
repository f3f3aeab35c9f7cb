#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace dstrain {

/// What stands in the place of a secret.
inline constexpr std::string_view kSecretMask = "[secret]";

/// Whether a variable, key or option of this name holds a secret: it ends in KEY, TOKEN, AUTH,
/// COOKIE, _PASS or _PWD, or has API_KEY, SECRET, PASSWORD, PASSWD, PASSPHRASE, BEARER or
/// CREDENTIAL in it. Case and dashes in front do not count, "-" counts as "_".
[[nodiscard]] bool is_secret_name(std::string_view name);

/// Values of environment variables that are secrets by their name: they reach the ranks by
/// environment only and are struck out of whatever is written.
class Redactor {
 public:
  Redactor() = default;
  /// NAME=VALUE entries, as in `environ`. Values under six bytes are not looked for, since they
  /// stand in a text by chance: writers of names and values ask is_secret_name(), too.
  explicit Redactor(const std::vector<std::string>& environment);

  /// A value is struck out as it is, as JSON writes it, and line by line.
  void apply(std::string& text) const;
  /// Name of the first variable whose value, of at least 16 bytes, stands in `text`, or empty. A
  /// shorter one may stand there by chance, as "adamw1" does.
  [[nodiscard]] std::string find(std::string_view text) const;

 private:
  struct Secret {
    std::string name;
    std::string value;
  };
  std::vector<Secret> secrets_;  ///< longest first
};

/// The environment of this process as NAME=VALUE.
[[nodiscard]] std::vector<std::string> own_environment();

}  // namespace dstrain
