#include "engine/metrics/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>

#include "engine/base/error.h"
#include "engine/base/job_environment.h"
#include "engine/base/json.h"
#include "engine/base/output.h"
#include "engine/base/units.h"

namespace dstrain {
namespace {

std::int64_t current_epoch(const StepMetrics& metrics) {  // from 1
  return static_cast<std::int64_t>(std::ceil(metrics.epoch));
}

bool is_text(const StepMetrics& metrics) { return metrics.tokens_per_s > 0; }
const char* rate_unit(const StepMetrics& metrics) {
  return is_text(metrics) ? "tok/s" : metrics.clips ? "clips/s" : "img/s";
}

/// From a figure of this step alone to one over the last steps.
double smoothing(const StepMetrics& metrics) {
  return metrics.smoothed_step_s > 0 ? metrics.step_s / metrics.smoothed_step_s : 1;
}
double smoothed_rate(const StepMetrics& metrics) {
  return (is_text(metrics) ? metrics.tokens_per_s : metrics.samples_per_s) * smoothing(metrics);
}

/// JSON has no nan or inf.
nlohmann::json finite_or_text(double value) {
  if (std::isfinite(value)) return value;
  return fmt::format("{}", value);
}

class Silence final : public Progress {
 public:
  void note(const std::string&) override {}
};

class ReportPipe final : public Progress {
 public:
  explicit ReportPipe(int fd) : fd_(fd) {}

  void write(const StepMetrics& metrics) override {
    send({{"kind", "progress"},
          {"step", metrics.step},
          {"steps", metrics.total_steps},
          {"epoch", current_epoch(metrics)},
          {"loss", finite_or_text(metrics.loss)},
          {"rate", finite_or_text(smoothed_rate(metrics))},
          {"unit", rate_unit(metrics)},
          {"mfu", finite_or_text(metrics.mfu * smoothing(metrics))},
          {"memory_bytes", metrics.memory_bytes},
          {"eta_s", finite_or_text(metrics.remaining_s)},
          {"text", format_step(metrics)}});
  }
  void note(const std::string& text) override { send({{"kind", "note"}, {"text", text}}); }
  void end() override { send({{"kind", "end"}}); }

 private:
  void send(const nlohmann::json& object) const {
    const std::string line = json_text(object) + "\n";
    std::string_view rest = line;
    while (!rest.empty()) {
      const auto written = ::write(fd_, rest.data(), rest.size());
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) return;  // the reader is gone; training goes on
      rest.remove_prefix(static_cast<std::size_t>(written));
    }
  }

  int fd_;  ///< the process's own: it stays open to its end
};

class Lines final : public Progress {
 public:
  void write(const StepMetrics& metrics) override {
    const auto now = std::chrono::steady_clock::now();
    const bool between = metrics.step > 1 && metrics.step < metrics.total_steps;
    if (between && now - last_step_ < std::chrono::seconds(2)) return;
    last_step_ = now;
    note(format_step(metrics));
  }
  void note(const std::string& text) override {
    try {
      print_text(text + "\n");
      printed_ = true;
    } catch (const Error&) {
      if (!printed_) throw;  // later, training goes on without a reader
    }
  }

 private:
  bool printed_ = false;
  std::chrono::steady_clock::time_point last_step_{};
};

}  // namespace

std::string format_share(double share, int digits) {
  return std::isfinite(share) ? fmt::format("{:.{}f}%", share * 100, digits) : "n/a";
}

std::string format_step(const StepMetrics& m) {
  std::string text = fmt::format("step {}/{}", m.step, m.total_steps);
  if (m.epochs > 0) text += fmt::format("  epoch {}/{}", current_epoch(m), m.epochs);
  text += fmt::format("  loss {:.4f}  acc {}", m.loss, format_share(m.accuracy, 1));
  if (std::isfinite(m.rewards_margins)) text += fmt::format("  margin {:.4f}", m.rewards_margins);
  text += fmt::format("  {} {}", format_count(smoothed_rate(m)), rate_unit(m));
  if (m.mfu > 0) text += fmt::format("  MFU {:.1f}%", m.mfu * smoothing(m) * 100);
  text += fmt::format("  left {}  {}", format_duration(m.remaining_s),
                      format_duration(m.smoothed_step_s));
  if (m.memory_bytes > 0) text += fmt::format("  mem {}", format_bytes(m.memory_bytes));
  return text + fmt::format("  grad {:.3g}", m.grad_norm);
}

std::unique_ptr<Progress> make_progress(int rank) {
  if (rank != 0) return std::make_unique<Silence>();
  if (const char* fd = std::getenv(job_environment::kReportFd))
    return std::make_unique<ReportPipe>(std::atoi(fd));
  return std::make_unique<Lines>();
}

}  // namespace dstrain
