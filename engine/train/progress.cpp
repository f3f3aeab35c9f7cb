#include "engine/train/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>

#include "engine/base/error.h"
#include "engine/base/job_environment.h"
#include "engine/base/json.h"
#include "engine/base/output.h"

namespace dstrain {
namespace {

int report_descriptor() {
  const char* text = std::getenv(job_environment::kReportFd);
  return text == nullptr ? -1 : std::atoi(text);
}

/// JSON has no nan or inf.
nlohmann::json number(double value) {
  if (std::isfinite(value)) return value;
  return fmt::format("{}", value);
}

}  // namespace

std::string format_share(double share, int digits) {
  return std::isfinite(share) ? fmt::format("{:.{}f}%", share * 100, digits) : "n/a";
}

std::string format_step(const StepLine& line) {
  std::string text = fmt::format("step {}/{}", line.step, line.total_steps);
  if (line.epochs > 0) text += fmt::format("  epoch {}/{}", line.epoch, line.epochs);
  text += fmt::format("  loss {:.4f}  acc {}  {} {}", line.loss, format_share(line.accuracy, 1),
                      format_count(line.rate), line.unit);
  if (line.mfu > 0) text += fmt::format("  MFU {:.1f}%", line.mfu * 100);
  text +=
      fmt::format("  left {}  {}", format_duration(line.remaining_s), format_duration(line.step_s));
  if (line.memory_bytes > 0) text += fmt::format("  mem {}", format_bytes(line.memory_bytes));
  return text + fmt::format("  grad {:.3g}", line.gradient_norm);
}

Progress::Progress(int rank) : active_(rank == 0), report_fd_(report_descriptor()) {}

void Progress::write(const std::string& text) {
  if (report_fd_ < 0) {
    try {
      print_text(text);
      printed_ = true;
    } catch (const Error&) {
      if (!printed_) throw;  // later, training goes on without a reader
    }
    return;
  }
  std::string_view rest = text;
  while (!rest.empty()) {
    const auto written = ::write(report_fd_, rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;  // nobody reads any more; training goes on
    rest.remove_prefix(static_cast<std::size_t>(written));
  }
}

void Progress::step(const StepLine& line) {
  if (!active_) return;
  const std::string text = format_step(line);
  if (report_fd_ >= 0) {
    const nlohmann::json object = {{"kind", "progress"},
                                   {"step", line.step},
                                   {"steps", line.total_steps},
                                   {"epoch", line.epoch},
                                   {"loss", number(line.loss)},
                                   {"rate", number(line.rate)},
                                   {"unit", line.unit},
                                   {"mfu", number(line.mfu)},
                                   {"memory_bytes", line.memory_bytes},
                                   {"eta_s", number(line.remaining_s)},
                                   {"text", text}};
    write(json_text(object) + "\n");
    return;
  }
  const auto now = std::chrono::steady_clock::now();
  if (line.step < line.total_steps && line.step > 1 &&
      now - last_step_line_ < std::chrono::seconds(2))
    return;
  last_step_line_ = now;
  write(text + "\n");
}

void Progress::note(const std::string& text) {
  if (!active_) return;
  write(report_fd_ >= 0 ? json_text(nlohmann::json{{"kind", "note"}, {"text", text}}) + "\n"
                        : text + "\n");
}

}  // namespace dstrain
