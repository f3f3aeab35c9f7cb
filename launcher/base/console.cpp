#include "launcher/base/console.h"

#include "engine/base/printable.h"

namespace dstrain::launcher {
namespace {

constexpr std::string_view kEraseLine = "\r\x1b[K";
constexpr int kMaxLineLength = 4000;  ///< characters

/// The first `columns` characters of UTF-8 text.
std::string_view clip(std::string_view text, int columns) {
  std::size_t end = 0;
  for (int shown = 0; end < text.size(); ++end) {
    const bool starts_character = (static_cast<unsigned char>(text[end]) & 0xC0) != 0x80;
    if (starts_character && ++shown > columns) break;
  }
  return text.substr(0, end);
}

std::string_view without_return(std::string_view line) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

}  // namespace

void Console::lines(std::string_view text, std::string_view prefix) {
  std::string out;
  while (!text.empty()) {
    const auto newline = text.find('\n');
    const std::string_view line = without_return(text.substr(0, newline));
    const std::string clean = printable(line);
    const std::string_view start = clip(clean, kMaxLineLength);
    out += printable(prefix);
    out += start;
    if (start.size() < clean.size()) out += " ...";
    out += '\n';
    text.remove_prefix(newline == std::string_view::npos ? text.size() : newline + 1);
  }
  erase_live();
  const bool own_words = prefix.empty() && sink_.write_reserved;
  (own_words ? sink_.write_reserved : sink_.write)(out);
  draw_live();
}

void Console::progress(std::string_view text, Time now) {
  std::string clean = printable(text.substr(0, text.find('\n')));
  if (sink_.is_terminal) {
    erase_live();
    live_ = std::move(clean);
    draw_live();
    return;
  }
  if (printed_once_ && now - printed_at_ < kPlainInterval) {
    unprinted_ = std::move(clean);
    return;
  }
  printed_once_ = true;
  printed_at_ = now;
  unprinted_.clear();
  sink_.write(clean + "\n");
}

void Console::finish_progress() {
  if (!live_.empty()) sink_.write("\n");
  live_.clear();
  if (!unprinted_.empty()) sink_.write(unprinted_ + "\n");
  unprinted_.clear();
}

void Console::erase_live() {
  if (!live_.empty()) sink_.write(kEraseLine);
}

void Console::draw_live() {
  // One column stays free: a full line would wrap and could not be erased.
  if (!live_.empty()) sink_.write(clip(live_, sink_.columns() - 1));
}

}  // namespace dstrain::launcher
