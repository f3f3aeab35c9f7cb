#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>

namespace dstrain::launcher {

/// Where the launcher's output goes; given by the caller, since nothing below cmd prints.
struct ConsoleSink {
  std::function<void(std::string_view)> write;
  /// The same for the launcher's own messages, which are printed even when output of ranks is
  /// dropped; empty: `write` is used.
  std::function<void(std::string_view)> write_reserved = {};
  bool is_terminal = false;
  /// Width of the terminal, asked for at each draw: a window may become narrower.
  std::function<int()> columns = [] { return 80; };
};

/// Whole lines above one live progress line. All text passes printable(), so that output of a rank
/// cannot drive the terminal.
class Console {
 public:
  using Time = std::chrono::steady_clock::time_point;
  /// Between two progress lines when the output is no terminal.
  static constexpr std::chrono::seconds kPlainInterval{2};

  explicit Console(ConsoleSink sink) : sink_(std::move(sink)) {}

  /// Prints text of one or more lines, each after `prefix`.
  void lines(std::string_view text, std::string_view prefix = {});
  /// Redraws the live line, or, when piped, prints it as a line if it is the first or the last one
  /// is old enough.
  void progress(std::string_view text, Time now);
  /// Turns the live line into an ordinary line.
  void finish_progress();

 private:
  void erase_live();
  void draw_live();

  ConsoleSink sink_;
  std::string live_;       ///< on a terminal: what the live line shows
  std::string unprinted_;  ///< piped: newest progress that was held back
  bool printed_once_ = false;
  Time printed_at_{};
};

}  // namespace dstrain::launcher
