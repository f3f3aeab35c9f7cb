#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <string>

#include "engine/base/output.h"
#include "engine/data/text/progress_sink.h"

namespace dstrain {

/// A live line on a terminal; elsewhere a line every few seconds.
class PreparationProgress final : public ProgressSink {
 public:
  ~PreparationProgress() override { clear(); }
  void note(const std::string& text) override {
    clear();
    print_error("{}\n", text);
  }
  void progress(double share, const std::string& text) override {
    constexpr std::size_t kBar = 30;
    constexpr auto kPlainEvery = std::chrono::seconds(5);
    if (live_) {
      const auto full = static_cast<std::size_t>(share * kBar);
      draw_error_line(
          fmt::format("[{}{}] {}", std::string(full, '#'), std::string(kBar - full, ' '), text));
      drawn_ = true;
      return;
    }
    const auto now = std::chrono::steady_clock::now();
    if (now - last_ < kPlainEvery) return;
    last_ = now;
    print_error("{}\n", text);
  }

 private:
  void clear() {
    if (drawn_) draw_error_line("");
    drawn_ = false;
  }

  bool live_ = ::isatty(STDERR_FILENO) == 1;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

}  // namespace dstrain
