#include "cmd/merge_run_traces.h"

#include <algorithm>
#include <array>
#include <vector>

#include "engine/base/output.h"
#include "engine/base/run_layout.h"
#include "engine/trace/merge.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;

bool holds_trace(const fs::path& folder) {
  std::error_code error;
  for (fs::directory_iterator i(folder, error), end; !error && i != end; i.increment(error)) {
    const std::string name = i->path().filename();
    if (name.starts_with("rank") && name.find("_trace.json") != std::string::npos) return true;
  }
  return false;
}

}  // namespace

void merge_run_traces(const TraceConfig& config, const fs::path& run) {
  const RunLayout layout(run);
  const fs::path folder = config.output.empty() ? layout.traces() : fs::path(config.output);
  std::vector<fs::path> windows = {folder};
  std::error_code error;
  for (fs::directory_iterator i(folder, error), end; !error && i != end; i.increment(error)) {
    if (i->is_directory(error)) windows.push_back(i->path());
  }
  std::ranges::sort(windows);
  for (const fs::path& window : windows) {
    if (!holds_trace(window)) continue;
    trace::TraceSources sources = trace::find_rank_traces(std::array{window});
    if (sources.files.size() < 2) continue;
    if (sources.clocks.empty() && fs::exists(layout.clocks(), error))
      sources.clocks = layout.clocks();
    trace::MergeOptions options;
    // Perfetto reads no zstd.
    options.output = window / (config.compress == Compression::none ? "merged_trace.json"
                                                                    : "merged_trace.json.gz");
    const trace::MergeResult result = trace::merge_traces(sources, options);
    for (const std::string& note : result.notes) print_error("note: {}\n", note);
    print_text("merged trace: {}\n", options.output.string());
  }
}

}  // namespace dstrain
