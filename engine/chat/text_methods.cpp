#include "engine/chat/text_methods.h"

#include <algorithm>
#include <string>

#include "engine/chat/characters.h"
#include "engine/chat/value.h"

namespace dstrain::chat {

namespace {

bool in_set(const Text& set, char32_t character) {
  for (std::size_t at = 0; at < set.size();)
    if (next_character(set.bytes(), at) == character) return true;
  return false;
}

std::size_t character_before(std::string_view text, std::size_t end) {
  std::size_t begin = end - 1;
  while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
  return begin;
}

}  // namespace

Text stripped(const Text& text, const Text* set, bool left, bool right) {
  const std::string_view bytes = text.bytes();
  const auto drops = [set](char32_t c) { return set == nullptr ? is_space(c) : in_set(*set, c); };
  std::size_t begin = 0;
  std::size_t end = bytes.size();
  while (left && begin < end) {
    std::size_t next = begin;
    if (!drops(next_character(bytes, next))) break;
    begin = next;
  }
  while (right && end > begin) {
    const std::size_t last = character_before(bytes, end);
    std::size_t at = last;
    if (!drops(next_character(bytes, at))) break;
    end = last;
  }
  return begin == 0 && end == bytes.size() ? text : text.part(begin, end);
}

std::vector<Text> split(const Text& text, const Text* separator, std::int64_t count,
                        Budget& budget) {
  std::vector<Text> parts;
  const std::string_view bytes = text.bytes();
  budget.text(text.size());
  const auto enough = [&] { return count >= 0 && std::ssize(parts) >= count; };
  if (separator != nullptr) {
    if (separator->empty()) throw Fault{"split: the separator is empty"};
    std::size_t at = 0;
    for (std::size_t found;
         !enough() && (found = bytes.find(separator->bytes(), at)) != std::string_view::npos;) {
      budget.step();
      parts.push_back(text.part(at, found));
      at = found + separator->size();
    }
    parts.push_back(text.part(at, bytes.size()));
    return parts;
  }
  for (std::size_t at = skip_spaces(bytes); at < bytes.size(); at = skip_spaces(bytes, at)) {
    budget.step();
    if (enough()) {
      parts.push_back(text.part(at, end_without_spaces(bytes)));
      break;
    }
    std::size_t end = at;
    while (end < bytes.size()) {
      std::size_t next = end;
      if (is_space(next_character(bytes, next))) break;
      end = next;
    }
    parts.push_back(text.part(at, end));
    at = end;
  }
  return parts;
}

std::vector<Text> split_from_right(const Text& text, const Text& separator, std::int64_t count,
                                   Budget& budget) {
  if (separator.empty()) throw Fault{"rsplit: the separator is empty"};
  std::vector<Text> parts;
  budget.text(text.size());
  std::size_t end = text.size();
  while ((count < 0 || std::ssize(parts) < count) && end >= separator.size()) {
    const std::size_t found = text.bytes().rfind(separator.bytes(), end - separator.size());
    if (found == std::string::npos) break;
    budget.step();
    parts.push_back(text.part(found + separator.size(), end));
    end = found;
  }
  parts.push_back(text.part(0, end));
  std::ranges::reverse(parts);
  return parts;
}

std::vector<Text> lines(const Text& text, Budget& budget) {
  std::vector<Text> parts;
  const std::string_view bytes = text.bytes();
  budget.text(text.size());
  std::size_t begin = 0;
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t end = at;
    const char32_t c = next_character(bytes, at);
    const bool ends =
        (c >= 10 && c <= 13) || (c >= 28 && c <= 30) || c == 0x85 || c == 0x2028 || c == 0x2029;
    if (!ends) continue;
    if (c == '\r' && at < bytes.size() && bytes[at] == '\n') ++at;
    budget.step();
    parts.push_back(text.part(begin, end));
    begin = at;
  }
  if (begin < bytes.size()) parts.push_back(text.part(begin, bytes.size()));
  return parts;
}

Text replaced(const Text& text, const Text& from, const Text& to, std::int64_t count,
              Budget& budget) {
  Text out;
  std::size_t at = 0;
  budget.text(text.size());
  const auto put = [&](const Text& part, std::size_t begin, std::size_t end) {
    budget.step();
    budget.text(end - begin);
    out.append_part(part, begin, end);
    if (out.size() > budget.limits().text) throw Fault{"the template makes too much text"};
  };
  for (std::int64_t done = 0; count < 0 || done < count; ++done) {
    if (from.empty()) {
      put(to, 0, to.size());
      if (at == text.size()) return out;
      std::size_t next = at;
      static_cast<void>(next_character(text.bytes(), next));
      put(text, at, next);
      at = next;
      continue;
    }
    const std::size_t found = text.bytes().find(from.bytes(), at);
    if (found == std::string::npos) break;
    put(text, at, found);
    put(to, 0, to.size());
    at = found + from.size();
  }
  put(text, at, text.size());
  return out;
}

Text in_case(const Text& text, Case which, Budget& budget) {
  Text out;
  budget.text(text.size());
  std::size_t at = 0;
  for (const Text::Run& run : text.runs()) {
    std::string changed;
    while (at < run.end) {
      const bool first = at == 0;
      const char32_t c = next_character(text.bytes(), at);
      if (which == Case::upper) {
        append_upper(changed, c);
      } else if (which == Case::capital && first) {
        append_title(changed, c);
      } else {
        append_lower(changed, c);
      }
    }
    out.append(changed, run.source);
  }
  return out;
}

SliceRange slice_range(std::optional<std::int64_t> begin, std::optional<std::int64_t> end,
                       std::optional<std::int64_t> step, std::int64_t length) {
  const std::int64_t by = std::max(step.value_or(1), -length - 1);
  if (step == 0) throw Fault{"a slice with step 0"};
  const std::int64_t low = by < 0 ? -1 : 0;
  const std::int64_t high = by < 0 ? length - 1 : length;
  const auto bound = [&](const std::optional<std::int64_t>& at, std::int64_t preset) {
    if (!at) return preset;
    const std::int64_t place = *at < 0 ? std::max(*at, -length - 1) + length : *at;
    return std::clamp(place, low, high);
  };
  const std::int64_t from = bound(begin, by < 0 ? high : low);
  const std::int64_t to = bound(end, by < 0 ? low : high);
  const std::int64_t distance = by < 0 ? from - to : to - from;
  const std::int64_t stride = by < 0 ? -by : by;
  return {from, distance <= 0 ? 0 : (distance - 1) / stride + 1, by};
}

Text sliced(const Text& text, const std::optional<std::int64_t>& begin,
            const std::optional<std::int64_t>& end, const std::optional<std::int64_t>& step,
            Budget& budget) {
  budget.text(text.size());
  std::vector<std::size_t> starts;
  for (std::size_t at = 0; at < text.size();) {
    starts.push_back(at);
    static_cast<void>(next_character(text.bytes(), at));
  }
  starts.push_back(text.size());
  const auto range = slice_range(begin, end, step, std::ssize(starts) - 1);
  if (range.count == 0) return {};
  const auto at = [&starts](std::int64_t i) { return starts[static_cast<std::size_t>(i)]; };
  if (range.step == 1) return text.part(at(range.begin), at(range.begin + range.count));
  Text out;
  for (std::int64_t i = 0, place = range.begin; i < range.count; ++i, place += range.step) {
    budget.step();
    out.append_part(text, at(place), at(place + 1));
  }
  return out;
}

}  // namespace dstrain::chat
