#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <ctime>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/host_name.h"
#include "engine/base/json.h"
#include "engine/base/log.h"
#include "engine/metrics/metric_table.h"
#include "engine/metrics/sinks.h"
#include "engine/metrics/wandb_file.h"
#include "engine/metrics/wandb_sync.h"

namespace dstrain {
namespace {

std::string new_run_id() {
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz0123456789";
  std::random_device random;
  std::string id;
  for (int i = 0; i < 8; ++i) id += kLetters[random() % kLetters.size()];
  return id;
}

/// The id in the name of the newest folder "offline-run-DATE_TIME-ID"; empty: there is none.
std::string id_of_earlier(const std::filesystem::path& wandb) {
  constexpr std::string_view kStem = "offline-run-";
  std::string newest;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(wandb, none))
    if (const std::string name = entry.path().filename().string(); name.starts_with(kStem))
      newest = std::max(newest, name);
  const auto dash = newest.rfind('-');
  return newest.empty() || dash < kStem.size() ? "" : newest.substr(dash + 1);
}

/// As Python writes numbers that are no JSON: W&B reads these.
std::string number_json(double number) {
  if (std::isnan(number)) return "NaN";
  if (std::isinf(number)) return number > 0 ? "Infinity" : "-Infinity";
  return json_text(nlohmann::json(number));
}

class Wandb final : public MetricsSink {
 public:
  explicit Wandb(const MetricsOptions& options) : options_(options) {}
  ~Wandb() override {
    try {
      if (open_) end(/*exit_code=*/0);
    } catch (const std::exception&) {
      // An earlier write has said it.
    }
  }

  [[nodiscard]] std::string_view name() const override { return "the file of Weights & Biases"; }
  void open() override {
    start_s_ = unix_time_s();
    // A resume goes on with its run: W&B appends the files of one id in the order of their starts.
    const std::string earlier = id_of_earlier(options_.wandb.folder);
    const std::string id = earlier.empty() ? new_run_id() : earlier;
    // The name has seconds: a part that begins in the same one gets the next.
    auto seconds = static_cast<std::time_t>(start_s_);
    do {
      std::tm parts{};
      ::localtime_r(&seconds, &parts);
      std::array<char, 32> time{};
      std::strftime(time.data(), time.size(), "%Y%m%d_%H%M%S", &parts);
      folder_ = options_.wandb.folder / fmt::format("offline-run-{}-{}", time.data(), id);
      ++seconds;
    } while (std::filesystem::exists(folder_));
    std::filesystem::create_directories(folder_ / "files");
    const std::string host = host_name();
    WandbFile::Run run{.id = id,
                       .project = options_.wandb.project,
                       .entity = options_.wandb.entity,
                       .group = options_.wandb.group,
                       .name = options_.run,
                       .host = host,
                       .config = {},
                       .start_time_s = start_s_,
                       .resumes = !earlier.empty()};
    const nlohmann::json config = json_or_null(options_.wandb.config);
    std::string yaml = "wandb_version: 1\n";
    for (const auto& [key, value] : config.items()) {
      run.config.emplace_back(key, json_text(value));
      yaml += fmt::format("{}:\n  value: {}\n", key, json_text(value));
    }
    file_.open(folder_ / fmt::format("run-{}.wandb", id), run);
    write_file_atomically(folder_ / "files" / "config.yaml", yaml);
    write_file_atomically(folder_ / "files" / "wandb-metadata.json",
                          json_text(nlohmann::json{{"host", host}, {"program", "dstrain"}}));
    open_ = true;
    if (!options_.wandb.online) return;
    if (const std::string obstacle = WandbSync::obstacle(); !obstacle.empty()) {
      log_warning("nothing is sent to Weights & Biases: {}; `wandb sync {}` sends the run later",
                  obstacle, folder_.string());
      return;
    }
    sync_ = std::make_unique<WandbSync>(folder_);
  }
  void write(const StepMetrics& metrics) override { take(metrics, step_metrics(), "train"); }
  void write(const EvaluationMetrics& metrics) override {
    take(metrics, evaluation_metrics(), "evaluation");
  }
  /// Under the keys that wandb itself uses for them.
  void write(const HostMetrics& metrics) override {
    if (!open_) return;
    WandbFile::Items items;
    const auto add = [&items](std::string key, double value) {
      if (!std::isnan(value)) items.emplace_back(std::move(key), number_json(value));
    };
    add("cpu", metrics.cpu_share);
    add("proc.memory.rssMB", metrics.resident_bytes / (1 << 20));
    for (const HostMetrics::Gpu& gpu : metrics.gpus) {
      const std::string prefix = fmt::format("gpu.{}.", gpu.index);
      add(prefix + "gpu", gpu.utilization);
      add(prefix + "temp", gpu.temperature_c);
      add(prefix + "powerWatts", gpu.power_w);
      add(prefix + "memoryAllocatedBytes", gpu.used_bytes);
      add(prefix + "memoryAllocated", 100 * gpu.used_bytes / gpu.total_bytes);
    }
    file_.stats(metrics.time_s, items);
  }

 private:
  static constexpr std::chrono::seconds kSendLimit{20};

  template <class Metrics>
  void take(const Metrics& metrics, std::span<const Metric<Metrics>> table, const char* kind) {
    if (!open_) return;
    if (metrics.step != step_) write_history();
    step_ = metrics.step;
    WandbFile::Items items;
    for (const Metric<Metrics>& row : table) {
      if (row.name == "step") continue;
      std::visit(
          [&](auto value) {
            const auto number = static_cast<double>(metrics.*value);
            if (row.may_be_unknown && std::isnan(number)) return;
            items.emplace_back(fmt::format("{}/{}", kind, row.name), number_json(number));
          },
          row.value);
    }
    for (const auto& [key, json] : items) summary_[key] = json;
    history_.insert(history_.end(), items.begin(), items.end());
    history_s_ = unix_time_s();
  }

  /// All of a step is one record: W&B gives a second one of the same step the next number, and all
  /// that follow.
  void write_history() {
    if (history_.empty()) return;
    WandbFile::Items items = std::move(history_);
    history_.clear();
    items.emplace_back("_step", fmt::format("{}", step_));
    items.emplace_back("_runtime", number_json(history_s_ - start_s_));
    items.emplace_back("_timestamp", number_json(history_s_));
    file_.history(step_, items);
  }

  void end(int exit_code) {
    write_history();
    WandbFile::Items items(summary_.begin(), summary_.end());
    std::string text = "{";
    for (const auto& [key, json] : items)
      text += fmt::format("{}\"{}\": {}", text.size() > 1 ? ", " : "", key, json);
    write_file_atomically(folder_ / "files" / "wandb-summary.json", text + "}\n");
    file_.summary(items);
    file_.exit(exit_code, unix_time_s() - start_s_);
    if (!sync_) return;
    if (const std::string problem = sync_->finish(kSendLimit); !problem.empty())
      log_warning("{}", problem);
  }

  MetricsOptions options_;
  std::filesystem::path folder_;
  WandbFile file_;
  bool open_ = false;
  double start_s_ = 0;
  std::int64_t step_ = -1;
  WandbFile::Items history_;  ///< those of step_, not yet written
  double history_s_ = 0;      ///< when the last of them came
  std::map<std::string, std::string> summary_;
  std::unique_ptr<WandbSync> sync_;  ///< online only
};

}  // namespace

std::unique_ptr<MetricsSink> make_wandb(const MetricsOptions& options) {
  if (options.wandb.folder.empty()) return nullptr;
  return std::make_unique<Wandb>(options);
}

}  // namespace dstrain
