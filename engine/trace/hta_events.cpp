#include "engine/trace/hta_events.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <set>
#include <unordered_map>

#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "engine/trace/scanner.h"
#include "engine/trace/trace_files.h"

namespace dstrain::trace {
namespace {

bool is_step_name(const std::string& name) {
  return name.find("ProfilerStep") != std::string::npos;
}

/// HTA's rule for what ran on the GPU, for linking and for leaving out steps.
bool on_gpu(const HtaEvent& event, const Names& names) {
  const std::string& name = names[event.name];
  return (event.stream >= 0 && event.correlation >= 0) || name == "Event Sync" ||
         name == "Context Sync";
}

bool is_kernel_category(std::string_view category) {
  static constexpr std::array<std::string_view, 7> kCategories = {
      "kernel", "Kernel", "gpu_memset", "Memset", "gpu_memcpy", "Memcpy", "mtia_ccp_events"};
  return std::find(kCategories.begin(), kCategories.end(), category) != kCategories.end();
}

/// The double that Python reads from the file's text of `ns` nanoseconds.
double as_python(std::int64_t ns) {
  return static_cast<double>(static_cast<long double>(ns) / 1000.0L);
}

HtaRank read_rows(const std::filesystem::path& file, Names& names, bool salvage) {
  HtaRank read;
  Scanner scanner(file);
  Event event;
  std::int64_t index = -1;
  bool fractions = false, whole_with_fraction = false;
  struct Exact {
    std::int64_t start_ns = 0, duration_ns = 0;
  };
  std::vector<Exact> exact;
  while (scanner.next(event)) {
    ++index;
    if (!fractions) {
      // pandas makes a column of doubles as soon as one value is none or has a point.
      const auto ts = find_argument(event.object, "ts");
      fractions = !ts || ts->find_first_of(".eE") != std::string_view::npos;
    }
    if (event.phase != 'X' || event.category.empty() || event.category == "Trace") continue;
    if (find_integer(event.args, "rank"))
      throw Error(ErrorKind::usage,
                  fmt::format("{}: HTA reads no merged traces", printable(file.string())),
                  "give the files of the ranks, or leave out --as-hta");
    HtaEvent row;
    row.index = index;
    row.stream = find_integer(event.args, "stream").value_or(-1);
    row.correlation = find_integer(event.args, "correlation").value_or(-1);
    const std::string name = unescape(event.name);
    const bool sync = name == "Event Sync" || name == "Context Sync";
    if (row.stream == -1 && row.correlation == -1 && !sync && index != 0 && !is_step_name(name))
      continue;
    row.name = names.add(name);
    row.kernel = is_kernel_category(event.category);
    read.rows.push_back(row);
    exact.push_back({event.start_ns - scanner.base_ns(), event.duration_ns});
    whole_with_fraction = whole_with_fraction || event.duration_ns % 1000 != 0;
  }
  if (scanner.problems() > 0 && !salvage)
    throw Error(ErrorKind::data,
                fmt::format("{}: {} (at byte {}; {} such places)", printable(file.string()),
                            scanner.first_problems().front().what,
                            scanner.first_problems().front().offset, scanner.problems()),
                "--salvage goes on with what is readable");
  if (!fractions && whole_with_fraction)
    throw Error(ErrorKind::data,
                fmt::format("{}: starts in whole microseconds, but durations with fractions",
                            printable(file.string())),
                "leave out --as-hta");
  for (std::size_t i = 0; i < read.rows.size(); ++i) {
    const double start = as_python(exact[i].start_ns);
    const double end = start + as_python(exact[i].duration_ns);
    read.rows[i].start = static_cast<std::int64_t>(std::ceil(start));
    read.rows[i].duration = static_cast<std::int64_t>(std::floor(end)) - read.rows[i].start;
  }
  read.rank = rank_of_trace(file, scanner.top("distributedInfo")).value_or(0);
  return read;
}

/// Both ends of each pair of a call and what it launched; of several the last.
void link_rows(std::vector<HtaEvent>& rows, const Names& names) {
  std::unordered_map<std::int64_t, std::vector<std::size_t>> device;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i].link = std::min<std::int64_t>(rows[i].correlation, 0);
    if (rows[i].correlation != -1 && on_gpu(rows[i], names))
      device[rows[i].correlation].push_back(i);
  }
  for (HtaEvent& row : rows) {
    if (row.correlation == -1 || on_gpu(row, names)) continue;
    const auto found = device.find(row.correlation);
    if (found == device.end()) continue;
    for (const std::size_t kernel : found->second) {
      row.link = rows[kernel].index;
      rows[kernel].link = row.index;
    }
  }
}

/// Only what calls before the last ProfilerStep launched.
void leave_out_last_step(std::vector<HtaEvent>& rows, const Names& names) {
  std::optional<std::int64_t> last;
  for (const HtaEvent& row : rows)
    if (!on_gpu(row, names) && is_step_name(names[row.name]))
      last = std::max(last.value_or(row.start), row.start);
  std::vector<HtaEvent> host;
  std::unordered_map<std::int64_t, int> calls;
  for (const HtaEvent& row : rows)
    if (last && !on_gpu(row, names) && row.start < *last) {
      host.push_back(row);
      ++calls[row.correlation];
    }
  std::vector<HtaEvent> kept;
  for (const HtaEvent& row : rows)
    if (on_gpu(row, names) && row.correlation != -1)
      if (const auto found = calls.find(row.correlation); found != calls.end())
        kept.insert(kept.end(), static_cast<std::size_t>(found->second), row);
  kept.insert(kept.end(), host.begin(), host.end());
  rows = std::move(kept);
}

}  // namespace

std::vector<HtaRank> load_hta_events(const std::vector<std::filesystem::path>& files, Names& names,
                                     bool salvage) {
  std::vector<HtaRank> ranks;
  std::set<std::uint32_t> steps;
  for (const std::filesystem::path& file : files) {
    ranks.push_back(read_rows(file, names, salvage));
    link_rows(ranks.back().rows, names);
    for (const HtaEvent& row : ranks.back().rows)
      if (is_step_name(names[row.name])) steps.insert(row.name);
  }
  std::sort(ranks.begin(), ranks.end(),
            [](const HtaRank& a, const HtaRank& b) { return a.rank < b.rank; });
  if (steps.size() > 1)
    for (HtaRank& rank : ranks) leave_out_last_step(rank.rows, names);
  return ranks;
}

}  // namespace dstrain::trace
