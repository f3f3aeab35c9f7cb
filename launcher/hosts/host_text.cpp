#include "launcher/hosts/host_text.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "engine/base/error.h"
#include "engine/recipe/text.h"

namespace dstrain::launcher {
namespace {

constexpr std::size_t kMaxHostWordBytes = 255;
constexpr int kMaxDevices = 1024;
constexpr std::size_t kMaxReported = 20;
/// A text with so many bad lines is no host list: reading on would only cost time.
constexpr std::size_t kMaxCounted = 1000;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_alphanumeric(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return result;
}

/// The one spelling of an IP address, or nothing. An IPv4 address in IPv6 clothes is the IPv4 one.
std::optional<std::string> canonical_ip(const std::string& text) {
  std::array<char, INET6_ADDRSTRLEN> out{};
  in_addr four{};
  if (::inet_pton(AF_INET, text.c_str(), &four) == 1) {
    return ::inet_ntop(AF_INET, &four, out.data(), out.size());
  }
  in6_addr six{};
  if (::inet_pton(AF_INET6, text.c_str(), &six) != 1) return std::nullopt;
  if (IN6_IS_ADDR_V4MAPPED(&six)) {
    return ::inet_ntop(AF_INET, &six.s6_addr[12], out.data(), out.size());
  }
  return ::inet_ntop(AF_INET6, &six, out.data(), out.size());
}

/// Last label all digits or 0x...: resolvers take such a text for an address.
bool looks_like_ipv4(std::string_view name) {
  const std::string_view last = name.substr(name.rfind('.') + 1);
  return std::all_of(last.begin(), last.end(), is_digit) || lower(last).starts_with("0x");
}

std::string read_ipv6(Word word) {
  const std::string address(word.text.substr(1, word.text.size() - 2));
  // inet_pton stops at a NUL; check_bytes has refused it.
  if (!word.text.ends_with(']') || address.find(':') == std::string::npos ||
      !canonical_ip(address)) {
    throw LineError{word.at,
                    fmt::format("{} is no IPv6 address in brackets", in_quotes(word.text))};
  }
  return address;
}

}  // namespace

void LineErrors::add(const std::string& place, std::string_view line, const LineError& complaint) {
  if (++count_ > kMaxReported) return;
  // A column counts characters, as editors do.
  const std::string_view before = line.substr(0, complaint.at);
  const auto column = 1 + std::count_if(before.begin(), before.end(), [](char c) {
                        return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
                      });
  if (!text_.empty()) text_ += '\n';
  text_ += fmt::format("{}:{}: {}", place, column, complaint.text);
}

bool LineErrors::full() const { return count_ >= kMaxCounted; }

void LineErrors::throw_if_any(const std::string& hint) const {
  if (count_ == 0) return;
  std::string text = text_;
  if (count_ > kMaxReported) {
    text += fmt::format("\n... and {}{} more", full() ? "at least " : "", count_ - kMaxReported);
  }
  throw Error(ErrorKind::usage, text, hint);
}

Word next_word(Word& line) {
  constexpr std::string_view kBlanks = " \t";
  line = line.from(std::min(line.text.find_first_not_of(kBlanks), line.text.size()));
  const auto end = std::min(line.text.find_first_of(kBlanks), line.text.size());
  const Word word = line.to(end);
  line = line.from(end);
  return word;
}

void check_bytes(Word line) {
  const std::string_view before = line.text.substr(0, line.text.find('\n'));
  std::string_view found = first_unprintable(before);
  if (found.empty()) found = line.text.substr(before.size(), 1);
  if (found.empty()) return;
  const auto at = static_cast<std::size_t>(found.data() - line.text.data());
  if (first_invalid_utf8(line.text) == at) throw LineError{line.at + at, "not UTF-8 text"};
  throw LineError{line.at + at, fmt::format("control character {}; delete it", shown(found))};
}

std::string in_quotes(std::string_view text) { return fmt::format("'{}'", shown(text)); }

bool is_name_character(char c) { return is_alphanumeric(c) || c == '.' || c == '_' || c == '-'; }

std::optional<int> read_count(std::string_view text, int min, int max) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || !is_digit(text.front()) ||
      (text.size() > 1 && text.front() == '0') || value < min || value > max) {
    return std::nullopt;
  }
  return value;
}

std::string read_name(Word word) {
  if (word.text.empty()) throw LineError{word.at, "a host name is missing here"};
  if (word.text.size() > kMaxHostWordBytes) {
    throw LineError{word.at, fmt::format("a host name of {} bytes; {} are allowed",
                                         word.text.size(), kMaxHostWordBytes)};
  }
  if (word.text.front() == '[') return read_ipv6(word);
  if (word.text.front() == '-') {
    throw LineError{word.at,
                    fmt::format("{} begins with '-', as an option does; a host name begins "
                                "with a letter or digit",
                                in_quotes(word.text))};
  }
  const auto wrong = std::find_if_not(word.text.begin(), word.text.end(), is_name_character);
  if (wrong != word.text.end()) {
    const auto at = static_cast<std::size_t>(wrong - word.text.begin());
    if (*wrong == ':' && canonical_ip(std::string(word.text))) {
      throw LineError{word.at, fmt::format("write an IPv6 address in brackets: [{}]", word.text)};
    }
    throw LineError{
        word.at + at,
        fmt::format("{}: {} cannot stand in a host name", in_quotes(word.text),
                    static_cast<unsigned char>(*wrong) < 0x80 ? in_quotes(word.text.substr(at, 1))
                                                              : "a character beyond ASCII")};
  }
  if (!is_alphanumeric(word.text.front()) || !is_alphanumeric(word.text.back())) {
    throw LineError{word.at, fmt::format("{}: a host name begins and ends with a letter or digit",
                                         in_quotes(word.text))};
  }
  if (looks_like_ipv4(word.text) && !canonical_ip(std::string(word.text))) {
    throw LineError{word.at, fmt::format("{} is neither a host name nor an IPv4 address",
                                         in_quotes(word.text))};
  }
  return std::string(word.text);
}

std::vector<int> read_devices(Word list) {
  std::vector<int> devices;
  while (true) {
    const auto comma = list.text.find(',');
    const Word word = list.to(comma);
    const std::optional<int> device = read_count(word.text, 0, kMaxDevices - 1);
    if (!device) {
      throw LineError{word.at, fmt::format("{} is no GPU; write their numbers, e.g. 0,2",
                                           in_quotes(word.text))};
    }
    if (std::find(devices.begin(), devices.end(), *device) != devices.end()) {
      throw LineError{word.at, fmt::format("GPU {} stands twice", *device)};
    }
    devices.push_back(*device);
    if (comma == std::string_view::npos) return devices;
    list = list.from(comma + 1);
  }
}

std::string key_of(const std::string& name) { return canonical_ip(name).value_or(lower(name)); }

bool is_this_machine(const std::string& key, const std::string& this_host) {
  const std::string own = lower(this_host);
  return key == "localhost" || key == "::1" || (key.starts_with("127.") && canonical_ip(key)) ||
         key == own || (key == own.substr(0, own.find('.')) && !key.empty());
}

}  // namespace dstrain::launcher
