#include "launcher/base/tee.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "engine/base/error.h"

namespace dstrain::launcher {

bool Tee::shows(int rank) const { return all || std::ranges::find(ranks, rank) != ranks.end(); }

Tee tee_from(std::string_view text) {
  if (text == "all") return {.all = true, .ranks = {}};
  if (text == "none") return {.all = false, .ranks = {}};
  Tee tee{.all = false, .ranks = {}};
  const char* at = text.data();
  const char* const end = at + text.size();
  for (;; ++at) {
    int rank = 0;
    const auto [rest, error] = std::from_chars(at, end, rank);
    if (error != std::errc{} || rank < 0 || (rest != end && *rest != ',')) {
      throw Error(ErrorKind::usage, fmt::format("'{}': use all, none or 0,8", text));
    }
    tee.ranks.push_back(rank);
    at = rest;
    if (at == end) return tee;
  }
}

std::string to_text(const Tee& tee) {
  if (tee.all) return "all";
  return tee.ranks.empty() ? "none" : fmt::format("{}", fmt::join(tee.ranks, ","));
}

}  // namespace dstrain::launcher
