#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace dstrain::launcher {

/// Whether a variable of this name holds a secret: ..KEY, ..TOKEN, ..SECRET.., ..PASSWORD..
[[nodiscard]] bool is_secret_name(std::string_view name);

/// Values of environment variables that are secrets by their name: they reach the ranks by
/// environment only and are struck out of whatever the launcher writes.
class Redactor {
 public:
  Redactor() = default;
  /// NAME=VALUE entries, as in `environ`. Values under six bytes are no secrets worth striking out.
  explicit Redactor(const std::vector<std::string>& environment);

  void apply(std::string& text) const;
  /// Name of the first variable whose value, of at least 16 bytes, stands in `text`, or empty. A
  /// shorter one may stand there by chance, as "adamw1" does.
  [[nodiscard]] std::string find(std::string_view text) const;

 private:
  struct Secret {
    std::string name;
    std::string value;
  };
  std::vector<Secret> secrets_;
};

/// The environment of this process as NAME=VALUE.
[[nodiscard]] std::vector<std::string> own_environment();

}  // namespace dstrain::launcher
