#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/base/error.h"
#include "engine/trace/analysis.h"
#include "engine/trace/clocks.h"
#include "engine/trace/merge.h"
#include "engine/trace/scanner.h"

namespace {

using namespace dstrain;
using namespace dstrain::trace;

void require(bool condition) {
  if (!condition) std::abort();
}

void try_scanner(const std::filesystem::path& path) {
  Scanner scanner(path);
  ClockSolver solver({{.host = "a"}, {.host = "b"}});
  CollectiveReader readers[] = {{solver, 0}, {solver, 1}};
  Event event;
  std::uint64_t last = 0;
  std::size_t i = 0;
  while (scanner.next(event)) {
    require(event.phase != 0 && event.object.size() >= 2);
    require(event.offset >= last);
    last = event.offset + event.object.size();
    readers[i++ % 2].take(event, 0);
    (void)unescape(event.name);
  }
  require(scanner.first_problems().size() <= 20);
  for (const HostClock& host : solver.solve()) (void)host.align(1'700'000'000'000'000'000);
}

void try_clocks(const std::filesystem::path& path) {
  for (const auto& [host, samples] : read_clocks(path).hosts) {
    HostClock clock{.host = host, .samples = samples};
    for (std::size_t i = 1; i < samples.size(); ++i) require(samples[i - 1].t_ns < samples[i].t_ns);
    (void)clock.align(1'700'000'000'000'000'000);
  }
}

void try_analysis(const std::filesystem::path& path) {
  const Analysis analysis = analyze({path}, {.salvage = true});
  (void)to_text(analysis);
  (void)to_csv(analysis);
  (void)to_json(analysis);
}

void try_merge(const std::filesystem::path& path, MergeFormat format) {
  const std::filesystem::path output = path.string() + ".merged";
  const TraceSources sources = find_rank_traces(std::array{path});
  (void)merge_traces(sources, {.output = output, .format = format});
  std::filesystem::remove(output);
}

}  // namespace

/// The first byte says what reads the rest: a trace by the scanner ('t'), the figures ('a'), the
/// merge into JSON ('j') or pftrace ('p'); or a clocks.jsonl ('c').
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  static const std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("dstrain-fuzz-" + std::to_string(::getpid()));
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      .write(reinterpret_cast<const char*>(data) + 1, static_cast<std::streamsize>(size - 1));
  try {
    if (data[0] == 't') try_scanner(path);
    if (data[0] == 'a') try_analysis(path);
    if (data[0] == 'j') try_merge(path, MergeFormat::json);
    if (data[0] == 'p') try_merge(path, MergeFormat::pftrace);
    if (data[0] == 'c') try_clocks(path);
  } catch (const Error& error) {
    require(error.kind() == ErrorKind::data || error.kind() == ErrorKind::usage);
  }
  return 0;
}
