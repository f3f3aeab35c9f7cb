#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "engine/base/error.h"
#include "engine/base/run_layout.h"
#include "engine/report/run_data.h"

namespace {

using namespace dstrain;
namespace fs = std::filesystem;

void require(bool condition) {
  if (!condition) std::abort();
}

/// The file of a run that the first byte of an input stands for; empty: none.
fs::path file_of(const RunLayout& run, std::uint8_t kind) {
  switch (kind) {
    case 'r':
      return run.rank_lines(0);
    case 'm':
      return run.metrics();
    case 'e':
      return run.events();
    case 'p':
      return run.plan();
    case 'c':
      return run.confusion();
    case 'g':
      return run.root() / "gpu.csv";
    case 'u':
      return run.root() / "cpu.txt";
    case 't':
      return run.traces() / "rank0_trace.json";
    default:
      return {};
  }
}

}  // namespace

/// One file of a run directory, as a report reads it: lines of a rank ('r'), metrics.jsonl ('m'),
/// events.jsonl ('e'), plan.json ('p'), confusion.csv ('c'), gpu.csv ('g'), cpu.txt ('u') or a trace
/// ('t').
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  static const RunLayout run(fs::temp_directory_path() /
                             ("dstrain-fuzz-run-" + std::to_string(::getpid())));
  const fs::path file = file_of(run, data[0]);
  if (file.empty()) return 0;
  fs::create_directories(file.parent_path());
  std::ofstream(run.metrics(), std::ios::trunc) << "{\"step\": 1, \"loss\": 2.5}\n";
  std::ofstream(file, std::ios::binary | std::ios::trunc)
      .write(reinterpret_cast<const char*>(data) + 1, static_cast<std::streamsize>(size - 1));
  const report::RunData read = report::read_run(run.root());
  for (const report::RankTimings& rank : read.ranks) {
    require(!rank.rows.empty());
    for (std::size_t i = 1; i < rank.rows.size(); ++i)
      require(rank.rows[i - 1].step < rank.rows[i].step);
  }
  if (read.confusion) {
    const std::size_t classes = read.confusion->classes();
    require(read.confusion->counts.size() == classes * classes);
    require(report::class_figures(*read.confusion).size() == classes);
    require(report::parse_confusion(report::confusion_csv(*read.confusion), "again").counts ==
            read.confusion->counts);
  }
  fs::remove(file);
  return 0;
}
