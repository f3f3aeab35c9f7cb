#pragma once

#include <string>

namespace dstrain {

/// Questions at the terminal; where nobody is asked, the answers are their defaults.
class Questions {
 public:
  /// Nobody is asked where standard input is no terminal, which a note says, or with `silent`.
  explicit Questions(bool silent);

  [[nodiscard]] bool asks() const { return asks_; }
  /// The answer, or `otherwise` for an empty line or the end of the input.
  [[nodiscard]] std::string ask(const std::string& question, const std::string& otherwise) const;

 private:
  bool asks_;
};

}  // namespace dstrain
