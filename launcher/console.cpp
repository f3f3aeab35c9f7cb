#include "launcher/console.h"

#include <fmt/format.h>

namespace dstrain::launcher {
namespace {

constexpr std::string_view kEraseLine = "\r\x1b[K";
constexpr std::size_t kLongestLine = 4000;

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

std::string neutralise(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto next = i + 1 < text.size() ? static_cast<unsigned char>(text[i + 1]) : 0U;
    if (byte == '\t' || byte == '\n') {
      result += text[i];
    } else if (byte < 0x20 || byte == 0x7F) {
      result += '^';
      result += static_cast<char>(byte ^ 0x40);
    } else if (byte == 0xC2 && next >= 0x80 && next < 0xA0) {
      result += fmt::format("\\u{:04x}", next);
      ++i;
    } else if (byte >= 0x80 && byte < 0xA0 &&
               (i == 0 || static_cast<unsigned char>(text[i - 1]) < 0x80)) {
      // A lone C1 byte: some terminals without UTF-8 obey it.
      result += fmt::format("\\x{:02x}", static_cast<unsigned>(byte));
    } else {
      result += text[i];
    }
  }
  return result;
}

void Console::lines(std::string_view text, std::string_view prefix) {
  std::string out;
  while (!text.empty()) {
    const auto newline = text.find('\n');
    const std::string_view line = without_return(text.substr(0, newline));
    out += prefix;
    out += neutralise(line.substr(0, kLongestLine));
    if (line.size() > kLongestLine) out += " ...";
    out += '\n';
    text.remove_prefix(newline == std::string_view::npos ? text.size() : newline + 1);
  }
  erase_live();
  const bool own_words = prefix.empty() && sink_.insist;
  (own_words ? sink_.insist : sink_.write)(out);
  draw_live();
}

void Console::progress(std::string_view text, Time now) {
  std::string clean = neutralise(text.substr(0, text.find('\n')));
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
  if (!live_.empty()) sink_.write(clip(live_, sink_.columns - 1));
}

}  // namespace dstrain::launcher
