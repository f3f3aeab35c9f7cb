#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "engine/base/file.h"
#include "engine/data/text/prompts.h"

namespace dstrain::text {

/// The text of a file without the mark that some editors put first.
[[nodiscard]] inline std::string_view without_byte_order_mark(std::string_view text) {
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  return text;
}

/// Calls visit(line, number, share) for each line of `rest`, a part of `file`, that is not blank:
/// its number from 1, and the share of `rest` up to its end.
template <typename Visit>
void for_each_line(const MappedFile& file, std::string_view rest, const Visit& visit) {
  const auto size = static_cast<double>(rest.size());
  for (std::int64_t number = 1; !rest.empty(); ++number) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    file.have_read(line.size());
    if (!is_blank(line)) visit(line, number, 1 - static_cast<double>(rest.size()) / size);
  }
}

}  // namespace dstrain::text
