#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/chat/value.h"

namespace dstrain::chat {

/// How much a render may use.
struct RenderLimits {
  std::uint64_t steps = 1'000'000;              ///< expressions, statements and items looked at
  std::size_t text = std::size_t{16} << 20;     ///< bytes of one text
  std::uint64_t work = std::uint64_t{1} << 30;  ///< bytes of all texts that are made
  int calls = 100;                              ///< macros inside each other
  int depth = 1000;                             ///< expressions and statements inside each other
};

/// What is left of it. Fault where nothing is.
class Budget {
 public:
  explicit Budget(const RenderLimits& limits) : limits_(limits) {}

  void step(std::uint64_t count = 1) {
    steps_ += count;
    if (steps_ > limits_.steps) throw Fault{"the template takes too many steps"};
  }
  /// Before a text of so many bytes is made.
  void text(std::size_t bytes) {
    work_ += bytes;
    if (bytes > limits_.text || work_ > limits_.work)
      throw Fault{"the template makes too much text"};
  }
  [[nodiscard]] const RenderLimits& limits() const { return limits_; }

 private:
  RenderLimits limits_;
  std::uint64_t steps_ = 0;
  std::uint64_t work_ = 0;
};

}  // namespace dstrain::chat
