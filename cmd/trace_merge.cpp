#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "cmd/command.h"
#include "cmd/input_path.h"
#include "cmd/number_option.h"
#include "engine/base/error.h"
#include "engine/base/output.h"
#include "engine/base/printable.h"
#include "engine/base/units.h"
#include "engine/base/words.h"
#include "engine/trace/merge.h"

namespace dstrain {
namespace {

struct MergeArguments {
  std::vector<std::string> sources;
  std::string output;
  std::string format;
  std::string steps;
  std::vector<int> ranks;
  std::string lanes = "all";
  std::string align = "collectives";
  double min_us = 0;
  std::int64_t memory_mib = 1024;
};

std::pair<std::int64_t, std::int64_t> parse_steps(const std::string& text) {
  const char* end = text.data() + text.size();
  std::int64_t first = 0;
  auto read = std::from_chars(text.data(), end, first);
  std::int64_t last = first;
  if (read.ec == std::errc() && read.ptr != end && *read.ptr == '-')
    read = std::from_chars(read.ptr + 1, end, last);
  if (read.ec != std::errc() || read.ptr != end || first < 0 || last < first) {
    throw Error(ErrorKind::usage, fmt::format("--steps {}: no range of steps", shown(text)),
                "write it as 4-6, or 5");
  }
  return {first, last};
}

bool ends_in_pftrace(const std::filesystem::path& path) {
  const std::string name = path.filename().string();
  return name.ends_with(".pftrace") || name.ends_with(".pftrace.gz") ||
         name.ends_with(".pftrace.zst");
}

trace::MergeOptions to_options(const MergeArguments& given, const trace::TraceSources& sources) {
  trace::MergeOptions options;
  const bool pftrace =
      given.format.empty() ? ends_in_pftrace(given.output) : given.format == "pftrace";
  options.format = pftrace ? trace::MergeFormat::pftrace : trace::MergeFormat::json;
  options.output = given.output;
  if (given.output.empty())
    options.output = sources.folder / (pftrace ? "merged_trace.pftrace" : "merged_trace.json.gz");
  if (!given.steps.empty()) options.steps = parse_steps(given.steps);
  options.ranks = given.ranks;
  options.lanes = given.lanes == "device" ? trace::MergeLanes::device
                  : given.lanes == "host" ? trace::MergeLanes::host
                                          : trace::MergeLanes::all;
  options.align = given.align == "offsets"       ? trace::MergeAlign::offsets
                  : given.align == "collectives" ? trace::MergeAlign::collectives
                                                 : trace::MergeAlign::none;
  options.min_ns = static_cast<std::int64_t>(given.min_us * 1000);
  options.memory_bytes = given.memory_mib << 20;
  if (::isatty(STDERR_FILENO) != 0) {
    options.progress = [](std::uint64_t done, std::uint64_t all) {
      draw_error_line(fmt::format("merging: {} of {}", format_bytes(static_cast<Bytes>(done)),
                                  format_bytes(static_cast<Bytes>(all))));
    };
  }
  return options;
}

int merge(const MergeArguments& given) {
  const std::vector<std::filesystem::path> paths(given.sources.begin(), given.sources.end());
  const trace::TraceSources sources = trace::find_rank_traces(paths);
  const trace::MergeOptions options = to_options(given, sources);
  for (const trace::TraceFile& file : sources.files)
    refuse_own_input("-o", options.output.string(), {file.path.string()});
  const trace::MergeResult result = trace::merge_traces(sources, options);
  if (options.progress) draw_error_line("");
  for (const trace::HostClock& host : result.clocks) {
    if (!host.bounded) continue;
    print_text("clock of {}: {:+.3f} us +- {:.3f} us{}\n", host.host,
               static_cast<double>(host.offset_ns) / 1e3,
               static_cast<double>(host.half_interval_ns) / 1e3,
               host.samples.empty() ? "" : ", beside what was measured");
  }
  for (const std::string& note : result.notes) print_error("note: {}\n", note);
  print_text("{}: {} event{}, {}\n", options.output.string(), result.events, plural(result.events),
             format_bytes(static_cast<Bytes>(result.bytes)));
  return 0;
}

}  // namespace

Command add_trace_merge(CLI::App& root) {
  auto options = std::make_shared<MergeArguments>();
  CLI::App* app = root.add_subcommand(
      "merge",
      "Put the traces of all ranks into one file for ui.perfetto.dev, with the clocks of the "
      "hosts\n"
      "aligned.\n"
      "Example: dstrain trace merge runs/quickstart-20261121-101500-3fa2c1 --steps 4-5");
  app->add_option("source", options->sources,
                  "A run, a folder or a ZIP of traces, or traces (.json, .json.gz, .json.zst).")
      ->required();
  app->add_option("-o,--output", options->output,
                  "File to write; .gz and .zst are compressed (Perfetto reads no .zst). Default: "
                  "merged_trace.json.gz, or .pftrace, beside the traces.");
  app->add_option("--format", options->format,
                  "json, or pftrace for traces beyond 1 GB. Default: by the name of the file.")
      ->check(CLI::IsMember({"json", "pftrace"}));
  app->add_option("--steps", options->steps, "Only these steps, as 4-6 or 5. Default: all.");
  app->add_option("--ranks", options->ranks, "Only these ranks, as 0,1,8. Default: all.")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(number_in(0, 1 << 20));
  app->add_option("--lanes", options->lanes, "device, host or all. Default: all.")
      ->check(CLI::IsMember({"device", "host", "all"}));
  app->add_option("--min-us", options->min_us,
                  "Leave out events shorter than so many microseconds. Default: 0.")
      ->check(number_in(0.0, 1e9));
  app->add_option(
         "--align", options->align,
         "What clocks of several hosts are aligned by: collectives (and measured offsets), "
         "offsets (clocks.jsonl of the run) or none. Default: collectives.")
      ->check(CLI::IsMember({"offsets", "collectives", "none"}));
  app->add_option("--memory", options->memory_mib,
                  "MiB that one rank may take while pftrace is written. Default: 1024.")
      ->check(number_in(16, 1 << 20));
  return {app, [options] { return merge(*options); }};
}

}  // namespace dstrain
