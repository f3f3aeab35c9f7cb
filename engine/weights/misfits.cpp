#include "engine/weights/misfits.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace dstrain {
namespace {

/// After "and 23 more ".
const char* what_more(Misfits::Way way) {
  switch (way) {
    using enum Misfits::Way;
    case missing:
      return "are missing";
    case shape:
      return "have other shapes";
    case dtype:
      return "have such types";
    case unknown:
      return "like it";
  }
  return "";
}

}  // namespace

void Misfits::add(Way way, std::string text) {
  const auto found = std::ranges::find(kinds_, way, &Kind::way);
  if (found == kinds_.end()) {
    kinds_.push_back({.way = way, .first = std::move(text)});
  } else {
    ++found->more;
  }
}

std::string Misfits::text() const {
  std::string text;
  for (const Kind& kind : kinds_) {
    text += fmt::format("{}{}", text.empty() ? "" : "\n", kind.first);
    if (kind.more > 0) text += fmt::format(", and {} more {}", kind.more, what_more(kind.way));
  }
  return text;
}

void Misfits::throw_if_any(const std::string& hint) const {
  if (!empty()) throw Error(ErrorKind::data, text(), hint);
}

}  // namespace dstrain
