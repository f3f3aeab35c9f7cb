#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/background_queue.h"

namespace dstrain {

inline constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

/// One optimizer step, all ranks together. What of it is written is a row of metric_table.cpp.
struct StepMetrics {
  std::int64_t step = 0;
  std::int64_t total_steps = 0;    ///< of the run
  double epoch = 0;                ///< fraction of epochs done: 1.25
  std::int64_t epochs = 0;         ///< of the run; 0: its length is given in steps
  double loss = 0;                 ///< mean over the global batch
  double accuracy = 0;             ///< top-1 of the global batch, 0 to 1; nan: not known
  double balance_loss = kUnknown;  ///< of experts; nan: the model has none, or no such loss
  // Means over pairs of answers (preference.loss), as TRL names them; nan: samples are none.
  double rewards_chosen = kUnknown;
  double rewards_rejected = kUnknown;
  double rewards_accuracies = kUnknown;  ///< pairs whose chosen answer has more reward, 0 to 1
  double rewards_margins = kUnknown;     ///< of chosen over rejected answers
  double logps_chosen = kUnknown;        ///< log-probability of the answer
  double logps_rejected = kUnknown;
  double lr = 0;
  double grad_norm = 0;  ///< before clipping
  double samples_per_s = 0;
  bool clips = false;       ///< what samples are, in words for people
  double tokens_per_s = 0;  ///< of text, padding included; 0 of images
  double mfu = 0;           ///< model FLOP utilisation, 0 to 1; 0: the GPU's peak is not known
  double step_s = 0;
  double smoothed_step_s = 0;  ///< over the last steps
  double remaining_s = 0;      ///< until the end of the run
  // On the device of rank 0, as its allocator said last; 0 on a CPU.
  std::int64_t memory_bytes = 0;            ///< allocated at the peak
  std::int64_t memory_allocated_bytes = 0;  ///< between two steps
  std::int64_t memory_reserved_bytes = 0;   ///< held from the driver
  // Times of rank 0, in seconds, where the step was timed; else nan.
  double forward_s = kUnknown;
  double backward_s = kUnknown;
  double optimizer_s = kUnknown;     ///< gradient norm and update
  double data_wait_s = kUnknown;     ///< of the host, for samples
  double exposed_comm_s = kUnknown;  ///< that the compute lane waited for
  // GPUs of the first host, where they were looked at since the step before; else nan.
  double gpu_util = kUnknown;    ///< mean share of the time in which some kernel ran, 0 to 1
  double gpu_temp_c = kUnknown;  ///< of the hottest
  double loss_scale = 1;
  std::int64_t skipped_steps = 0;  ///< since the start of the run
};

struct EvaluationMetrics {
  std::int64_t step = 0;
  double epoch = 0;
  double loss = 0;
  double accuracy = 0;  ///< top-1, 0 to 1; nan: not known
  double top5 = 0;      ///< 0 to 1; nan: not known
  // Means over pairs of answers (preference.loss), as TRL names them; as of a step.
  double rewards_chosen = kUnknown;
  double rewards_rejected = kUnknown;
  double rewards_accuracies = kUnknown;  ///< pairs whose chosen answer has more reward, 0 to 1
  double rewards_margins = kUnknown;     ///< of chosen over rejected answers
  double logps_chosen = kUnknown;        ///< log-probability of the answer
  double logps_rejected = kUnknown;
  double ema_loss = kUnknown;      ///< of the average of the weights
  double ema_accuracy = kUnknown;  ///< the same, top-1
  // Answers of run.generate, 0 to 1, each by its rule; nan: not asked, or another rule.
  double exact_match = kUnknown;
  double f1 = kUnknown;
  double right_answers = kUnknown;  ///< share of right ones, by MetaMath's rule
  std::int64_t samples = 0;         ///< images, or rows of tokens
  std::int64_t targets = 0;         ///< images, or labelled tokens
  double seconds = 0;
};

/// What a look at the first host saw.
struct HostMetrics {
  struct Gpu {
    int index = 0;
    double utilization = kUnknown;  ///< % of the time in which some kernel ran
    double temperature_c = kUnknown;
    double power_w = kUnknown;
    double used_bytes = kUnknown;
    double total_bytes = kUnknown;
  };
  double time_s = 0;  ///< since 1970
  std::vector<Gpu> gpus;
  double cpu_share = 0;       ///< % of one core, of all ranks there
  double resident_bytes = 0;  ///< of the same
};

/// Something that happened once: "checkpoint_saved", {{"path", "..."}}.
struct MetricsEvent {
  std::string_view kind;
  std::int64_t step = 0;
  std::vector<std::pair<std::string, std::string>> fields = {};
};

/// Where metrics go. Each call may throw; the writer counts that and goes on.
class MetricsSink {
 public:
  virtual ~MetricsSink() = default;
  /// What a message calls it: "metrics.jsonl".
  [[nodiscard]] virtual std::string_view name() const = 0;
  /// Makes its files; called once, before the rest.
  virtual void open() {}
  virtual void write(const StepMetrics&) {}
  virtual void write(const EvaluationMetrics&) {}
  virtual void write(const HostMetrics&) {}
  virtual void event(const MetricsEvent&) {}
};

/// Weights & Biases. Its files are written here; the network is its own program's business.
struct WandbOptions {
  std::filesystem::path folder = {};  ///< of wandb/offline-run-*; empty: none
  bool online = false;                ///< its program sends them meanwhile
  std::string project = {};
  std::string entity = {};
  std::string group = {};
  std::string config = {};  ///< JSON object: the resolved recipe
};

struct MetricsOptions {
  std::filesystem::path metrics;      ///< metrics.jsonl
  std::filesystem::path events;       ///< events.jsonl
  std::filesystem::path tensorboard;  ///< folder of event files; empty: none
  std::int64_t resumed_step =
      -1;  ///< lines of metrics beyond it are dropped, so that a curve has one value per step
  std::string run = {};                   ///< name of the run, for files that hold several
  std::filesystem::path prometheus = {};  ///< text file for node_exporter; empty: none
  WandbOptions wandb = {};
};

/// Writes that a sink did not take.
struct MissingMetrics {
  std::string sink;  ///< MetricsSink::name
  std::int64_t writes = 0;
  std::string first_problem;
};

/// Writes metrics of one run to all sinks: each of those of the table in metrics.cpp on a thread of
/// its own, so that one that blocks keeps nothing from the others, and those that are added at
/// once. For rank 0; not thread-safe. Training never stops or waits because of it: a write that
/// fails is counted and the first one of each sink is logged, a sink that has failed three times in
/// a row is left alone, and when 4,096 writes of one wait its oldest is dropped.
class MetricsWriter {
 public:
  explicit MetricsWriter(const MetricsOptions& options);
  /// With these sinks instead.
  explicit MetricsWriter(std::vector<std::unique_ptr<MetricsSink>> sinks);
  /// Waits up to five seconds for what is not yet written.
  ~MetricsWriter();
  MetricsWriter(const MetricsWriter&) = delete;
  MetricsWriter& operator=(const MetricsWriter&) = delete;

  /// Writes to `sink`, too, before the others and on the calling thread; it is open and outlives
  /// this.
  void add(MetricsSink& sink) { added_.push_back(&sink); }

  void step(const StepMetrics& metrics);
  void evaluation(const EvaluationMetrics& metrics);
  void host(const HostMetrics& metrics);
  void event(std::string_view kind, std::int64_t step,
             std::vector<std::pair<std::string, std::string>> fields = {});

  /// Waits until all is written, up to five seconds in all; false when it is not.
  bool flush();
  /// What was tried or dropped so far, by sink in the order of their first problems, then
  /// what waits for a sink that takes nothing; flush() first to know all.
  [[nodiscard]] std::vector<MissingMetrics> missing() const;

 private:
  struct Entry;
  struct Problems;
  template <class Write>
  void each(const Write& write);

  std::shared_ptr<Problems> problems_;
  std::vector<std::unique_ptr<Entry>> entries_;
  std::vector<MetricsSink*> added_;
};

/// Drops the lines of a JSONL file whose "step" is beyond `step` and a last line that was cut off;
/// nothing when there is no such file.
void truncate_metrics(const std::filesystem::path& path, std::int64_t step);

}  // namespace dstrain
