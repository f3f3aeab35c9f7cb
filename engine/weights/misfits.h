#pragma once

#include <string>
#include <vector>

#include "engine/base/error.h"

namespace dstrain {

/// Tensors of a file that do not fit a model, mostly many in the same way: told as the first of
/// each way and how many more there are.
class Misfits {
 public:
  enum class Way { missing, shape, dtype, unknown };

  void add(Way way, std::string text);
  [[nodiscard]] bool empty() const { return kinds_.empty(); }
  /// "file: no tensor 'a' [2, 3], and 23 more are missing", a line per way.
  [[nodiscard]] std::string text() const;
  /// Error{data} with text() when there are any.
  void throw_if_any(const std::string& hint) const;

 private:
  struct Kind {
    Way way;
    std::string first;
    int more = 0;
  };
  std::vector<Kind> kinds_;  ///< in the order in which they were met
};

}  // namespace dstrain
