#include "launcher/job/clock_log.h"

#include <algorithm>
#include <optional>
#include <string>

#include "test/support/catch.h"
#include "test/support/files.h"
#include "test/support/temp_dir.h"

namespace dstrain::launcher {
namespace {

constexpr std::int64_t kWindowNs = ClockOffset::kWindowNs;

/// Lines of clocks.jsonl after a day of `hosts` whose clocks gain `drift_ns` in each window.
std::size_t lines_of_a_day(std::size_t hosts, std::int64_t drift_ns) {
  const dstrain::test::TempDir folder;
  Console console({.write = [](std::string_view) {}});
  std::optional<ClockLog> log(std::in_place, folder / "clocks.jsonl", hosts, console);
  const std::int64_t windows = std::int64_t{86'400} * 1'000'000'000 / kWindowNs;
  for (std::int64_t i = 0; i < windows; ++i)
    log->add("n1", {.t_ns = i * kWindowNs, .offset_ns = i * drift_ns, .bound_ns = 100'000});
  log->add_last("n1", {.t_ns = windows * kWindowNs, .offset_ns = windows * drift_ns});
  log.reset();  // waits for what is written
  const std::string text = dstrain::test::slurp(folder / "clocks.jsonl");
  return static_cast<std::size_t>(std::ranges::count(text, '\n'));
}

}  // namespace

TEST_CASE("clocks of a thousand hosts are written every ten minutes, or when they move",
          "[launcher][clocks][scale]") {
  CHECK(lines_of_a_day(8, 0) == 8641);
  CHECK(lines_of_a_day(1024, 0) == 145);  // 80 bytes each: 12 MB of all hosts
  // 5 ppm: 50 us in 10 s, so that the bounds of 0.2 ms are left with the fifth reading.
  CHECK(lines_of_a_day(1024, 50'000) == 1729);
}

}  // namespace dstrain::launcher
