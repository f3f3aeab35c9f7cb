#include "engine/metrics/sinks.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <future>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <thread>
#include <utility>

#include "engine/base/job_environment.h"
#include "engine/metrics/metric_table.h"
#include "engine/metrics/progress.h"
#include "engine/metrics/tensorboard.h"
#include "test/support/catch.h"
#include "test/support/files.h"
#include "test/support/temp_dir.h"

namespace fs = std::filesystem;
using namespace dstrain;
using namespace dstrain::test;

namespace {

MetricsOptions options_of(const TempDir& dir) {
  return {.metrics = dir / "metrics.jsonl",
          .events = dir / "events.jsonl",
          .tensorboard = dir / "tensorboard"};
}

StepMetrics some_step() {
  return {.step = 12,
          .total_steps = 400,
          .epoch = 1.25,
          .epochs = 3,
          .loss = 0.5,
          .accuracy = std::numeric_limits<double>::quiet_NaN(),
          .balance_loss = 1.5,
          .lr = 0.25,
          .grad_norm = 0.84,
          .samples_per_s = 512,
          .tokens_per_s = 0,
          .mfu = 0.25,
          .step_s = 0.25,
          .smoothed_step_s = 0.5,
          .remaining_s = 187,
          .memory_bytes = std::int64_t{3} << 30,
          .memory_allocated_bytes = std::int64_t{1} << 30,
          .memory_reserved_bytes = std::int64_t{4} << 30,
          .forward_s = 0.0625,
          .backward_s = 0.125,
          .data_wait_s = 0,
          .exposed_comm_s = 0.03125,
          .gpu_util = 0.5,
          .gpu_temp_c = 61,
          .loss_scale = 1024,
          .skipped_steps = 2};
}

/// Counts what it is given; `broken`: throws instead.
class Counter final : public MetricsSink {
 public:
  explicit Counter(bool broken) : broken_(broken) {}
  [[nodiscard]] std::string_view name() const override { return "the counter"; }
  void write(const StepMetrics&) override { count(); }
  void write(const EvaluationMetrics&) override { count(); }
  void event(const MetricsEvent&) override { count(); }
  int calls = 0;

 private:
  void count() {
    ++calls;
    if (broken_) throw std::runtime_error("the sink is broken");
  }
  bool broken_;
};

/// Takes nothing before `released`.
class Blocked final : public MetricsSink {
 public:
  explicit Blocked(std::future<void> released) : released_(std::move(released)) {}
  [[nodiscard]] std::string_view name() const override { return "the blocked sink"; }
  void open() override { released_.wait(); }

 private:
  std::future<void> released_;
};

}  // namespace

TEST_CASE("the lines of metrics have one form, to the byte", "[metrics]") {
  const TempDir dir;
  MetricsWriter writer(options_of(dir));
  writer.step(some_step());
  writer.evaluation(
      {.step = 12, .epoch = 1.25, .loss = 0.5, .accuracy = 0.75, .samples = 120, .targets = 360});
  CHECK(writer.flush());
  CHECK(slurp(dir / "metrics.jsonl") ==
        "{\"kind\":\"step\",\"step\":12,\"epoch\":1.25,\"loss\":0.5,\"accuracy\":null,"
        "\"balance_loss\":1.5,\"lr\":0.25,"
        "\"grad_norm\":0.84,\"samples_per_s\":512.0,\"tokens_per_s\":0.0,\"mfu\":0.25,"
        "\"step_s\":0.25,\"memory_bytes\":3221225472,\"memory_allocated_bytes\":1073741824,"
        "\"memory_reserved_bytes\":4294967296,\"loss_scale\":1024.0,\"skipped_steps\":2,"
        "\"forward_s\":0.0625,\"backward_s\":0.125,\"optimizer_s\":null,\"data_wait_s\":0.0,"
        "\"exposed_comm_s\":0.03125,\"gpu_util\":0.5,\"gpu_temp_c\":61.0}\n"
        "{\"kind\":\"evaluation\",\"step\":12,\"epoch\":1.25,\"loss\":0.5,\"accuracy\":0.75,"
        "\"top5\":0.0,\"ema_loss\":null,\"ema_accuracy\":null,\"exact_match\":null,\"f1\":null,"
        "\"right_answers\":null,\"samples\":120,\"targets\":360,"
        "\"seconds\":0.0}\n");
}

TEST_CASE("pairs of answers have TRL's figures in lines, tags and gauges", "[metrics]") {
  const TempDir dir;
  MetricsOptions options = options_of(dir);
  options.prometheus = dir / "dstrain.prom";
  {
    MetricsWriter writer(options);
    StepMetrics step = some_step();
    step.rewards_chosen = 0.5;
    step.rewards_rejected = -0.25;
    step.rewards_accuracies = 1;
    step.rewards_margins = 0.75;
    step.logps_chosen = -8;
    step.logps_rejected = -9;
    writer.step(step);
    CHECK(writer.flush());
    CHECK(format_step(step).find("  acc n/a  margin 0.7500  256 img/s") != std::string::npos);
  }
  CHECK(
      slurp(dir / "metrics.jsonl")
          .find("\"rewards/chosen\":0.5,\"rewards/rejected\":-0.25,\"rewards/accuracies\":1.0,"
                "\"rewards/margins\":0.75,\"logps/chosen\":-8.0,\"logps/rejected\":-9.0,\"lr\"") !=
      std::string::npos);
  const auto file = *fs::directory_iterator(dir / "tensorboard");
  CHECK(slurp(file.path()).find("train/rewards/margins\x15") != std::string::npos);
  CHECK(slurp(options.prometheus).find("dstrain_train_rewards_margins") != std::string::npos);
}

TEST_CASE("TensorBoard gets each metric that has a tag once, in the tag's unit", "[metrics]") {
  const TempDir dir;
  MetricsWriter writer(options_of(dir));
  writer.step(some_step());
  CHECK(writer.flush());
  const auto file = *fs::directory_iterator(dir / "tensorboard");
  const std::string content = slurp(file.path());
  std::set<std::string_view> tags;
  for (const Metric<StepMetrics>& row : step_metrics()) {
    if (row.tag.empty()) continue;
    CAPTURE(row.tag);
    CHECK(tags.insert(row.tag).second);
    const bool unknown =
        row.left_out || row.tag == "train/accuracy" || row.tag == "time/optimizer_s";
    const std::string tag = std::string(row.tag) + '\x15';  // what begins the value behind it
    const std::size_t at = content.find(tag);
    CHECK((at == std::string::npos) == unknown);
    if (unknown) continue;
    CHECK(content.find(tag, at + 1) == std::string::npos);
  }
  CHECK(tags.size() == 26);
  for (const Scalar& gib : {Scalar{"memory/peak_gib", 3}, Scalar{"memory/allocated_gib", 1},
                            Scalar{"memory/reserved_gib", 4}}) {
    const Scalar scalars[] = {gib};
    const std::string event = tensorboard::scalar_event(0, 12, scalars);
    CHECK(content.find(event.substr(event.find("memory/"))) != std::string::npos);
  }
}

TEST_CASE("no two metrics share a name", "[metrics]") {
  std::set<std::string_view> names;
  for (const auto& row : step_metrics()) CHECK(names.insert(row.name).second);
  names.clear();
  for (const auto& row : evaluation_metrics()) CHECK(names.insert(row.name).second);
}

TEST_CASE("a sink that fails costs the others nothing", "[metrics]") {
  const TempDir dir;
  Counter broken(true), sound(false);
  MetricsWriter writer(options_of(dir));
  writer.add(broken);
  writer.add(sound);
  writer.step(some_step());
  writer.evaluation({.step = 12});
  writer.event("stopped", 12);
  CHECK(broken.calls == 3);
  CHECK(sound.calls == 3);
  const auto missing = writer.missing();
  REQUIRE(missing.size() == 1);
  CHECK(missing[0].sink == "the counter");
  CHECK(missing[0].writes == 3);
  CHECK(missing[0].first_problem == "the sink is broken");
}

TEST_CASE("what is missing is said of the file that it is missing in", "[metrics]") {
  const TempDir dir;
  MetricsOptions options = options_of(dir);
  options.prometheus = dir / "no folder" / "run.prom";
  MetricsWriter writer(options);
  writer.evaluation({.step = 12});
  CHECK(writer.flush());
  const auto missing = writer.missing();
  REQUIRE(missing.size() == 1);
  CHECK(missing[0].sink == "Prometheus' file");
  CHECK(missing[0].first_problem.find("run.prom") != std::string::npos);
  CHECK(fs::file_size(options.metrics) > 0);
}

TEST_CASE("a sink that blocks costs the caller and the other sinks nothing", "[metrics]") {
  const TempDir dir;
  std::promise<void> released;
  std::vector<std::unique_ptr<MetricsSink>> sinks;
  sinks.push_back(std::make_unique<Blocked>(released.get_future()));
  sinks.push_back(make_metric_lines(options_of(dir)));
  const auto begin = std::chrono::steady_clock::now();
  {
    MetricsWriter writer(std::move(sinks));
    for (int i = 0; i < 5000; ++i) {
      writer.step(some_step());
      if (i % 1000 == 999) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(4));
    CHECK_FALSE(writer.flush());
    const auto missing = writer.missing();
    REQUIRE(missing.size() == 1);
    CHECK(missing[0].sink == "the blocked sink");
    CHECK(missing[0].writes == 5001);  // the open and the writes
    CHECK(missing[0].first_problem == "it takes lines more slowly than steps are done, or none");
    const std::string lines = slurp(dir / "metrics.jsonl");
    CHECK(std::ranges::count(lines, '\n') == 5000);
  }
  const auto took = std::chrono::steady_clock::now() - begin;
  CHECK(took > std::chrono::seconds(9));  // what is left is waited for, twice
  CHECK(took < std::chrono::seconds(60));
  released.set_value();
}

TEST_CASE("a sink whose name is no file is refused at once, by its name", "[metrics]") {
  const TempDir dir;
  const fs::path fifo = dir / "fifo", link = dir / "link", folder = dir / "folder";
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  fs::create_symlink(dir / "elsewhere", link);
  fs::create_directory(folder);
  for (const auto& [path, reason] : {std::pair(fifo, "a FIFO"), std::pair(link, "a symbolic link"),
                                     std::pair(folder, "directory")}) {
    CAPTURE(path);
    MetricsOptions options = options_of(dir);
    options.metrics = path;
    options.prometheus = fifo;
    options.tensorboard.clear();
    MetricsWriter writer(options);
    writer.step(some_step());
    CHECK(writer.flush());
    auto missing = writer.missing();
    REQUIRE(missing.size() == 2);
    std::ranges::sort(missing, {}, &MissingMetrics::sink);
    CHECK(missing[0].sink == "Prometheus' file");
    CHECK(missing[0].first_problem.find(fifo.string() + ": it is a FIFO") != std::string::npos);
    CHECK(missing[1].sink == "metrics.jsonl");
    CHECK(missing[1].first_problem.find(path.string()) != std::string::npos);
    CHECK(missing[1].first_problem.find(reason) != std::string::npos);
  }
  CHECK_FALSE(fs::exists(dir / "elsewhere"));
}

TEST_CASE("a sink that failed three times is left alone, and its lines still count", "[metrics]") {
  const TempDir dir;
  MetricsOptions options = options_of(dir);
  options.tensorboard.clear();
  options.metrics = "/dev/full";
  MetricsWriter writer(options);
  for (int i = 0; i < 20; ++i) writer.step(some_step());
  CHECK(writer.flush());
  const auto missing = writer.missing();
  REQUIRE(missing.size() == 1);
  CHECK(missing[0].sink == "metrics.jsonl");
  CHECK(missing[0].writes == 20);
  CHECK(missing[0].first_problem.find("/dev/full") != std::string::npos);
}

TEST_CASE("Prometheus reads the last values, not-finite ones included", "[metrics]") {
  const TempDir dir;
  MetricsOptions options = options_of(dir);
  options.prometheus = dir / "dstrain.prom";
  options.run = "a\"b";
  {
    MetricsWriter writer(options);
    StepMetrics step = some_step();
    writer.step(step);
    CHECK(writer.flush());
    const std::string text = slurp(options.prometheus);
    CHECK(text.find("# TYPE dstrain_train_loss gauge\n"
                    "dstrain_train_loss{run=\"a\\\"b\"} 0.5\n") != std::string::npos);
    CHECK(text.find("accuracy") == std::string::npos);  // not known
    step.loss = std::numeric_limits<double>::infinity();
    writer.step(step);
    CHECK(writer.flush());
    CHECK(slurp(options.prometheus) == text);  // the next file is due in 15 s
  }
  CHECK(slurp(options.prometheus).find("dstrain_train_loss{run=\"a\\\"b\"} +Inf\n") !=
        std::string::npos);
}

TEST_CASE("the line of a step gives smoothed rates and times", "[metrics]") {
  StepMetrics step = some_step();
  CHECK(format_step(step) ==
        "step 12/400  epoch 2/3  loss 0.5000  acc n/a  256 img/s  MFU 12.5%  left 3m 07s  500 ms  "
        "mem 3.00 GiB  grad 0.84");
  step.clips = true;
  CHECK(format_step(step).find("  256 clips/s  ") != std::string::npos);
  step.epochs = 0;
  step.tokens_per_s = 4096;
  step.mfu = 0;
  step.memory_bytes = 0;
  step.accuracy = 0.214;
  CHECK(format_step(step) ==
        "step 12/400  loss 0.5000  acc 21.4%  2.05k tok/s  left 3m 07s  500 ms  grad 0.84");
  step.epoch = 2;  // its last step
  step.epochs = 3;
  CHECK(format_step(step).starts_with("step 12/400  epoch 2/3  "));
}

TEST_CASE("the report pipe gets an object per step and note, and only from rank 0", "[metrics]") {
  std::array<int, 2> ends{};
  REQUIRE(::pipe(ends.data()) == 0);
  ::setenv(job_environment::kReportFd, std::to_string(ends[1]).c_str(), 1);
  make_progress(0)->write(some_step());
  make_progress(0)->note("done");
  make_progress(0)->end();
  make_progress(1)->write(some_step());
  make_progress(1)->note("done");
  ::unsetenv(job_environment::kReportFd);
  ::close(ends[1]);
  std::string text(4096, '\0');
  const auto size = ::read(ends[0], text.data(), text.size());
  ::close(ends[0]);
  REQUIRE(size > 0);
  text.resize(static_cast<std::size_t>(size));
  const std::size_t newline = text.find('\n');
  const auto step = nlohmann::json::parse(text.substr(0, newline));
  CHECK(step == nlohmann::json{{"kind", "progress"},
                               {"step", 12},
                               {"steps", 400},
                               {"epoch", 2},
                               {"loss", 0.5},
                               {"rate", 256.0},
                               {"unit", "img/s"},
                               {"mfu", 0.125},
                               {"memory_bytes", std::int64_t{3} << 30},
                               {"eta_s", 187.0},
                               {"text", format_step(some_step())}});
  CHECK(text.substr(newline + 1) == "{\"kind\":\"note\",\"text\":\"done\"}\n{\"kind\":\"end\"}\n");
}
