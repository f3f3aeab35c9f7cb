#include "engine/data/tokenizer/nfc.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "engine/data/tokenizer/unicode.h"
#include "engine/data/tokenizer/utf8.h"

namespace dstrain {

namespace {

constexpr char32_t kCodePoints = 0x110000;
/// No code point below is a mark or changes under NFC.
constexpr char32_t kFirstMark = 0x300;

constexpr char32_t kFirstVowel = 0x1161, kLastVowel = 0x1175;  // Hangul, which composes by rule
constexpr char32_t kFirstFinal = 0x11a8, kLastFinal = 0x11c2;

/// What a code point does to the text around it.
enum class Role : std::uint8_t {
  boundary,  ///< a starter that stays and joins nothing before it: the text before it is on its own
  changing,  ///< a mark, a character that NFC replaces, or one that may join what is before it
  unknown,   ///< newer than the tables of `tokenizers`: stays, and nothing joins it
};

utf8proc_propval_t mark_class(utf8proc_int32_t code_point) {
  return utf8proc_get_property(code_point)->combining_class;
}

std::vector<char32_t> decomposed(char32_t code_point) {
  std::array<utf8proc_int32_t, 8> parts{};
  int boundary_class = 0;
  const auto count = utf8proc_decompose_char(
      static_cast<utf8proc_int32_t>(code_point), parts.data(), parts.size(),
      static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE), &boundary_class);
  DSTRAIN_CHECK(count >= 1 && count <= static_cast<utf8proc_ssize_t>(parts.size()),
                "utf8proc_decompose_char");
  return {parts.begin(), parts.begin() + count};
}

bool composes_back(const std::vector<char32_t>& parts, char32_t code_point) {
  std::vector<utf8proc_int32_t> text(parts.begin(), parts.end());
  const auto length =
      utf8proc_normalize_utf32(text.data(), static_cast<utf8proc_ssize_t>(text.size()),
                               static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  return length == 1 && text[0] == static_cast<utf8proc_int32_t>(code_point);
}

std::vector<Role> make_roles() {
  std::vector<Role> roles(kCodePoints, Role::boundary);
  for (char32_t c = kFirstMark; c < kCodePoints; ++c) {
    const utf8proc_property_t* property = utf8proc_get_property(static_cast<utf8proc_int32_t>(c));
    if (property->combining_class != 0) roles[c] = Role::changing;
    if (property->decomp_type != 0 || property->decomp_seqindex == UINT16_MAX) continue;
    const std::vector<char32_t> parts = decomposed(c);
    if (!composes_back(parts, c)) {
      roles[c] = Role::changing;
    } else if (parts.size() > 1) {
      for (std::size_t i = 1; i < parts.size(); ++i) roles[parts[i]] = Role::changing;
    }
  }
  for (char32_t c = kFirstVowel; c <= kLastVowel; ++c) roles[c] = Role::changing;
  for (char32_t c = kFirstFinal; c <= kLastFinal; ++c) roles[c] = Role::changing;
  for (const CodeRange range : normalised_since_unicode_10()) {
    for (char32_t c = range.first; c <= range.last; ++c) roles[c] = Role::unknown;
  }
  return roles;
}

Role role_of(char32_t code_point) {
  static const std::vector<Role> roles = make_roles();
  return roles[code_point];
}

/// Puts marks into the order of their combining classes, equal ones as they are. utf8proc's own
/// sort is quadratic, which a text of nothing but marks would make felt.
void order_marks(std::span<utf8proc_int32_t> marks) {
  std::vector<std::pair<utf8proc_propval_t, std::size_t>> order;
  for (std::size_t i = 0; i < marks.size(); ++i) order.emplace_back(mark_class(marks[i]), i);
  if (std::ranges::is_sorted(order)) return;
  std::ranges::sort(order);
  const std::vector<utf8proc_int32_t> before(marks.begin(), marks.end());
  for (std::size_t i = 0; i < marks.size(); ++i) marks[i] = before[order[i].second];
}

/// Appends NFC of one segment, which it empties.
void append_composed(std::vector<utf8proc_int32_t>& segment, std::string& out) {
  for (auto at = segment.begin(); at != segment.end();) {
    const auto first = std::find_if(at, segment.end(), [](auto c) { return mark_class(c) != 0; });
    at = std::find_if(first, segment.end(), [](auto c) { return mark_class(c) == 0; });
    order_marks({first, at});
  }
  const auto length =
      utf8proc_normalize_utf32(segment.data(), static_cast<utf8proc_ssize_t>(segment.size()),
                               static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  DSTRAIN_CHECK(length >= 0, utf8proc_errmsg(length));
  for (std::size_t i = 0; i < static_cast<std::size_t>(length); ++i) {
    append_utf8(out, static_cast<char32_t>(segment[i]));
  }
  segment.clear();
}

/// Where the first code point stands that `nfc` has to look at; the size of the text when there is
/// none.
std::size_t find_changing(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    if (static_cast<unsigned char>(text[at]) < 0xcc) {  // below U+0300
      ++at;
      continue;
    }
    const CodePoint point = code_point_at(text, at);
    if (role_of(point.value) == Role::changing) return at;
    at += point.length;
  }
  return text.size();
}

}  // namespace

std::string_view nfc(std::string_view text, std::string& buffer) {
  std::size_t changing = find_changing(text);
  if (changing == text.size()) return text;
  buffer.clear();
  std::size_t copied = 0;
  std::vector<utf8proc_int32_t> segment;
  while (changing < text.size()) {
    // A segment is the starter before, unless nothing joins that, and all up to the next boundary.
    std::size_t begin = changing;
    if (begin > copied) {
      const std::size_t before = start_of_last(text, begin);
      if (role_of(code_point_at(text, before).value) == Role::boundary) begin = before;
    }
    buffer.append(text, copied, begin - copied);
    std::size_t at = begin;
    while (at < text.size()) {
      const CodePoint point = code_point_at(text, at);
      if (at > changing && role_of(point.value) != Role::changing) break;
      for (const char32_t part : decomposed(point.value)) {
        segment.push_back(static_cast<utf8proc_int32_t>(part));
      }
      at += point.length;
    }
    append_composed(segment, buffer);
    copied = at;
    changing = at + find_changing(text.substr(at));
  }
  buffer.append(text, copied);
  return buffer;
}

}  // namespace dstrain
