#include "engine/trace/rewrite.h"

#include <map>

#include "engine/base/json.h"
#include "engine/trace/scanner.h"
#include "test/support/catch.h"
#include "test/support/files.h"
#include "test/support/temp_dir.h"
#include "test/trace/made_trace.h"

namespace dstrain::trace {
namespace {

using dstrain::test::MadeTrace;
using dstrain::test::spit;
using dstrain::test::TempDir;

/// A step in which one launch of a graph runs five kernels of two actions, then an action runs
/// alone.
Recording make_recording(const TempDir& dir, std::int64_t captured_of_second) {
  MadeTrace made(0);
  const auto region = [&](const char* name, std::int64_t from, std::int64_t to) {
    made.slice("user_annotation", name, "1", "1", from, to - from);
  };
  region("ProfilerStep#4", 0, 100'000);
  region("forward(a)", 1'000, 30'000);
  region("norm", 40'000, 60'000);
  made.slice("cuda_runtime", "cudaGraphLaunch", "1", "1", 2'000, 20'000, "\"correlation\": 7");
  // As they come from the profiler: in no order.
  for (const int kernel : {3, 0, 4, 1, 2}) {
    made.slice("kernel", "k" + std::to_string(kernel), "0", "7", 30'000 + 5'000 * kernel, 4'000,
               "\"correlation\": 7, \"stream\": 7");
  }
  made.slice("cuda_runtime", "cudaLaunchKernel", "1", "1", 41'000, 2'000, "\"correlation\": 8");
  made.slice("kernel", "alone", "0", "7", 60'000, 4'000, "\"correlation\": 8, \"stream\": 7");
  spit(dir / "source.json", made.text());
  Recording recording;
  recording.source = dir / "source.json";
  recording.target = dir / "rank0_trace.json";
  recording.cuda = true;
  recording.graphs = true;
  recording.first_step = recording.last_step = 4;
  recording.actions = {{"forward(a)", "compute", "forward"},
                       {"forward(b)", "compute", "forward"},
                       {"norm", "compute", "optimizer"}};
  recording.runs = {{.step = 4, .action = 0, .replayed = {{0, 2}, {1, captured_of_second}}},
                    {.step = 4, .action = 2}};
  return recording;
}

/// Action by the name of the kernel, and spans of the rows of lanes by name.
struct Found {
  std::map<std::string, std::int64_t> actions;
  std::map<std::string, std::pair<std::int64_t, std::int64_t>> lanes;
  std::vector<std::string> phases;
};
Found read(const std::filesystem::path& file) {
  Found found;
  Scanner scanner(file);
  for (Event event; scanner.next(event);) {
    const std::string name(event.name);
    if (event.category == "kernel") {
      CHECK(find_integer(event.args, "step") == 4);
      found.actions[name] = find_integer(event.args, "action").value_or(-9);
    } else if (event.category == "dstrain_lane") {
      found.lanes[name] = {event.start_ns, event.start_ns + event.duration_ns};
    } else if (event.category == "dstrain_phase") {
      found.phases.push_back(name);
    }
  }
  CHECK(scanner.problems() == 0);
  return found;
}

}  // namespace

TEST_CASE("kernels of a graph belong to its actions in the order of the capture", "[trace]") {
  const TempDir dir;
  const Recording recording = make_recording(dir, 3);
  const RewriteResult result = rewrite(recording);
  CHECK(result.incomplete.empty());
  CHECK(result.device_events == 6);
  CHECK(result.without_action == 0);
  const Found found = read(recording.target);
  CHECK(found.actions == std::map<std::string, std::int64_t>{
                             {"k0", 0}, {"k1", 0}, {"k2", 1}, {"k3", 1}, {"k4", 1}, {"alone", 2}});
  // An action inside a graph has a row of its own, from its first to its last kernel.
  CHECK(found.lanes.at("forward(a)") == std::pair<std::int64_t, std::int64_t>(30'000, 39'000));
  CHECK(found.lanes.at("forward(b)") == std::pair<std::int64_t, std::int64_t>(40'000, 54'000));
  CHECK(found.lanes.at("norm") == std::pair<std::int64_t, std::int64_t>(60'000, 64'000));
  CHECK(found.phases == std::vector<std::string>{"forward", "optimizer"});
}

TEST_CASE("a graph whose kernels are not those of its capture is said and given to no action",
          "[trace]") {
  const TempDir dir;
  const Recording recording = make_recording(dir, 4);
  const RewriteResult result = rewrite(recording);
  CHECK_THAT(result.incomplete,
             Catch::Contains("from forward(a) on has 6 kernels") && Catch::Contains("5 were seen"));
  CHECK(result.without_action == 5);
  const Found found = read(recording.target);
  CHECK(found.actions.at("k0") == -1);
  CHECK(found.actions.at("alone") == 2);
}

}  // namespace dstrain::trace
