#include "engine/metrics/metrics.h"

#include <signal.h>
#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "engine/metrics/tensorboard.h"
#include "test/support/catch.h"
#include "test/support/files.h"
#include "test/support/temp_dir.h"

namespace fs = std::filesystem;
using namespace dstrain;
using namespace dstrain::test;

namespace {

std::vector<nlohmann::json> lines_of(const fs::path& path) {
  std::vector<nlohmann::json> lines;
  std::istringstream text(slurp(path));
  for (std::string line; std::getline(text, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

MetricsOptions options_in(const TempDir& dir, std::int64_t resumed_step = -1) {
  return {.metrics = dir / "metrics.jsonl",
          .events = dir / "events.jsonl",
          .tensorboard = dir / "tensorboard",
          .resumed_step = resumed_step};
}

/// Output of a command; empty when it failed.
std::string output_of(const std::string& command) {
  std::FILE* pipe = ::popen((command + " 2>/dev/null").c_str(), "r");
  std::string output;
  char buffer[4096];
  while (const std::size_t got = std::fread(buffer, 1, sizeof(buffer), pipe))
    output.append(buffer, got);
  return ::pclose(pipe) == 0 ? output : std::string();
}

/// A Python that can import tensorboard; empty when there is none.
std::string find_python() {
  std::vector<std::string> candidates;
  if (const char* site = std::getenv("DSTRAIN_SITE_PACKAGES")) {
    candidates.push_back((fs::path(site) / "../../../bin/python3").lexically_normal().string());
  }
  if (const char* home = std::getenv("HOME")) {
    candidates.push_back(std::string(home) + "/.cache/dstrain/venv/bin/python3");
  }
  candidates.emplace_back("python3");
  for (const std::string& python : candidates) {
    if (output_of("'" + python + "' -c 'import tensorboard; print(1)'") == "1\n") return python;
  }
  return {};
}

constexpr const char* kReadBack = R"(
import sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1])
events.Reload()
for tag in sorted(events.Tags()["scalars"]):
    print(tag, *(f"{e.step}:{e.value!r}" for e in events.Scalars(tag)))
)";

}  // namespace

TEST_CASE("every step and evaluation is one line with its numbers", "[metrics]") {
  const TempDir dir;
  MetricsWriter writer(options_in(dir));
  StepMetrics step;
  step.step = 12;
  step.epoch = 0.25;
  step.loss = 0.1;
  step.accuracy = std::numeric_limits<double>::quiet_NaN();
  step.lr = 5e-5;
  step.grad_norm = std::numeric_limits<double>::infinity();
  step.loss_scale = -std::numeric_limits<double>::infinity();
  step.memory_bytes = std::int64_t{3} << 32;
  step.skipped_steps = 2;
  writer.step(step);
  writer.evaluation({.step = 12,
                     .epoch = 0.25,
                     .loss = 0.5,
                     .accuracy = 0.75,
                     .top5 = 1,
                     .targets = 360,
                     .seconds = 0.5});
  writer.event("checkpoint_saved", 12,
               {{"path", "checkpoints/step-00000012"}, {"note", "a\n\"b\" \xff"}});

  // Written soon, not at the end.
  REQUIRE(writer.flush());
  const auto lines = lines_of(dir / "metrics.jsonl");
  REQUIRE(lines.size() == 2);
  REQUIRE(lines[0]["kind"] == "step");
  REQUIRE(lines[0]["step"] == 12);
  REQUIRE(lines[0]["loss"].get<double>() == 0.1);
  REQUIRE(lines[0]["accuracy"].is_null());
  REQUIRE(lines[0]["grad_norm"] == "inf");
  REQUIRE(lines[0]["loss_scale"] == "-inf");
  REQUIRE(lines[0]["memory_bytes"] == std::int64_t{3} << 32);
  REQUIRE(lines[0]["skipped_steps"] == 2);
  REQUIRE(lines[1]["kind"] == "evaluation");
  REQUIRE(lines[1]["accuracy"] == 0.75);
  REQUIRE(lines[1]["top5"] == 1.0);
  REQUIRE(lines[1]["targets"] == 360);
  const auto events = lines_of(dir / "events.jsonl");
  REQUIRE(events.size() == 1);
  REQUIRE(events[0]["kind"] == "checkpoint_saved");
  REQUIRE(events[0]["path"] == "checkpoints/step-00000012");
  REQUIRE(writer.missing().empty());
}

TEST_CASE("a resumed run continues the curve where its checkpoint stands", "[metrics]") {
  const TempDir dir;
  {
    MetricsWriter writer(options_in(dir));
    for (int step = 1; step <= 5; ++step) writer.step({.step = step, .loss = 1.0 * step});
    writer.event("stopped", 5);
  }
  spit(dir / "metrics.jsonl",
       slurp(dir / "metrics.jsonl") + "{\"kind\": \"step\", \"step\": 6, \"lo");
  {
    MetricsWriter writer(options_in(dir, 3));
    for (int step = 4; step <= 6; ++step) writer.step({.step = step, .loss = 10.0 * step});
  }
  std::vector<double> losses;
  for (const auto& line : lines_of(dir / "metrics.jsonl"))
    losses.push_back(line["loss"].get<double>());
  REQUIRE(losses == std::vector<double>{1, 2, 3, 40, 50, 60});
  REQUIRE(lines_of(dir / "events.jsonl").size() == 1);  // history stays
}

TEST_CASE("a full disk is counted and does not stop the run", "[metrics]") {
  const TempDir dir;
  MetricsOptions options = options_in(dir);
  options.metrics = "/dev/full";
  MetricsWriter writer(options);
  writer.step({.step = 1});
  writer.step({.step = 2});
  writer.event("still", 2);
  REQUIRE(writer.flush());
  const auto missing = writer.missing();
  REQUIRE(missing.size() == 1);
  REQUIRE(missing[0].sink == "metrics.jsonl");
  REQUIRE(missing[0].writes == 2);
  REQUIRE(missing[0].first_problem == "cannot write /dev/full: No space left on device");
  REQUIRE(lines_of(dir / "events.jsonl").size() == 1);

  options.metrics = dir / "none" / "metrics.jsonl";
  MetricsWriter nowhere(options);
  nowhere.step({.step = 1});
  REQUIRE(nowhere.flush());
  REQUIRE(nowhere.missing().size() == 1);
  REQUIRE(nowhere.missing()[0].writes == 2);  // the open and the write
}

TEST_CASE("a line that did not fit leaves no half line behind", "[metrics]") {
  const TempDir dir;
  MetricsOptions options = options_in(dir);
  options.tensorboard.clear();
  MetricsWriter writer(options);
  writer.step({.step = 1});
  REQUIRE(writer.flush());
  const auto before_handler = ::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  rlimit limit = before;
  limit.rlim_cur = fs::file_size(options.metrics) + 10;
  ::setrlimit(RLIMIT_FSIZE, &limit);
  writer.step({.step = 2});
  REQUIRE(writer.flush());
  ::setrlimit(RLIMIT_FSIZE, &before);
  ::signal(SIGXFSZ, before_handler);
  writer.step({.step = 3});
  REQUIRE(writer.flush());
  REQUIRE(writer.missing().size() == 1);
  REQUIRE(writer.missing()[0].writes == 1);
  const auto lines = lines_of(options.metrics);
  REQUIRE(lines.size() == 2);
  REQUIRE(lines[1]["step"] == 3);
}

TEST_CASE("the checksum of event files is CRC-32C", "[metrics]") {
  REQUIRE(tensorboard::crc32c("123456789") == 0xE3069283u);            // the usual check value
  REQUIRE(tensorboard::crc32c(std::string(32, '\0')) == 0x8A9136AAu);  // RFC 3720, B.4
  REQUIRE(tensorboard::crc32c("") == 0);
}

TEST_CASE("the files of a resumed run are read in order", "[metrics]") {
  REQUIRE(tensorboard::file_name(999'999'999.5) < tensorboard::file_name(1'000'000'000.25));
}

TEST_CASE("TensorBoard reads back what was written, resumed runs included", "[metrics]") {
  const std::string python = find_python();
  if (python.empty()) {
    WARN("skipped: no Python with the tensorboard package");
    return;
  }
  const TempDir dir;
  {
    MetricsWriter writer(options_in(dir));
    for (int step = 1; step <= 300; ++step)
      writer.step({.step = step, .loss = 1.5 * step, .lr = 0.25});
    writer.evaluation({.step = 300, .accuracy = 0.5, .top5 = 0.75});
  }
  {
    MetricsWriter writer(options_in(dir, 2));
    for (int step = 3; step <= 4; ++step)
      writer.step({.step = step, .loss = 100.0 * step, .lr = 0.125});
    writer.evaluation({.step = 4, .accuracy = 0.625, .top5 = 0.875});
  }
  spit(dir / "read.py", kReadBack);
  const std::string output = output_of("'" + python + "' '" + (dir / "read.py").string() + "' '" +
                                       (dir / "tensorboard").string() + "'");
  CAPTURE(output);
  REQUIRE(output.find("train/loss 1:1.5 2:3.0 3:300.0 4:400.0\n") != std::string::npos);
  REQUIRE(output.find("train/lr 1:0.25 2:0.25 3:0.125 4:0.125\n") != std::string::npos);
  REQUIRE(output.find("evaluation/accuracy 4:0.625\n") != std::string::npos);
  REQUIRE(output.find("evaluation/top5 4:0.875\n") != std::string::npos);
}
