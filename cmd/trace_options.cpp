#include "cmd/trace_options.h"

#include <fmt/format.h>

#include <charconv>
#include <filesystem>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/make_folder.h"
#include "engine/base/printable.h"

namespace dstrain {
namespace {

constexpr std::size_t kMaxRanks = 1'000'000;

/// First and last of "A-B" or "A".
std::pair<std::int64_t, std::int64_t> parse_range(std::string_view text, const char* option) {
  std::int64_t first = 0;
  const char* const end = text.data() + text.size();
  auto read = std::from_chars(text.data(), end, first);
  std::int64_t last = first;
  if (read.ec == std::errc{} && read.ptr != end && *read.ptr == '-')
    read = std::from_chars(read.ptr + 1, end, last);
  if (read.ec != std::errc{} || read.ptr != end || first < 0 || last < first)
    throw Error(ErrorKind::usage, fmt::format("{} {}: no range", option, shown(text)),
                "write A-B or A, e.g. 4-6");
  return {first, last};
}

}  // namespace

void set_steps(trace::AnalysisOptions& options, const std::string& text) {
  if (text.empty()) return;
  const auto [first, last] = parse_range(text, "--steps");
  options.first_step = first;
  options.last_step = last;
}

std::vector<int> parse_ranks(const std::string& text) {
  std::vector<int> ranks;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    const auto [first, last] =
        parse_range(std::string_view(text).substr(at, comma - at), "--ranks");
    if (last >= static_cast<std::int64_t>(kMaxRanks))
      throw Error(ErrorKind::usage, fmt::format("--ranks {}: too many", shown(text)),
                  "ranks are below 1,000,000");
    for (std::int64_t rank = first; rank <= last; ++rank) ranks.push_back(static_cast<int>(rank));
    at = comma + 1;
  }
  return ranks;
}

trace::GroupBy parse_group_by(const std::string& text) {
  if (text == "action") return trace::GroupBy::action;
  if (text == "phase") return trace::GroupBy::phase;
  if (text == "block") return trace::GroupBy::block;
  return trace::GroupBy::kernel;
}

void write_csv(const std::string& folder, const std::map<std::string, std::string>& files) {
  make_folder(folder, "name another one with --csv");
  for (const auto& [name, text] : files)
    write_file_atomically(std::filesystem::path(folder) / name, text);
}

}  // namespace dstrain
