#include "engine/metrics/metrics.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/input_file.h"
#include "engine/base/json.h"
#include "engine/base/log.h"
#include "engine/metrics/tensorboard.h"

namespace dstrain {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

Json number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

/// Null where it is not known.
Json share(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

double now_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// Appends records with one write each. After a write that stopped half way the file is cut back to
/// whole records.
class AppendFile {
 public:
  AppendFile() = default;
  ~AppendFile() {
    if (fd_ >= 0) ::close(fd_);
  }
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  void open(const fs::path& path) {
    path_ = path;
    fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd_ < 0) fail("open");
  }

  void append(std::string_view record) {
    if (fd_ < 0) throw Error(ErrorKind::internal, fmt::format("{} is not open", path_.string()));
    const off_t before = ::lseek(fd_, 0, SEEK_END);
    const auto written = ::write(fd_, record.data(), record.size());
    if (written == static_cast<ssize_t>(record.size())) return;
    if (written >= 0) errno = ENOSPC;
    const int reason = errno;
    if (written > 0 && before >= 0 && ::ftruncate(fd_, before) != 0)
      ::close(std::exchange(fd_, -1));
    errno = reason;
    fail("write");
  }

 private:
  [[noreturn]] void fail(const char* action) const {
    throw Error(ErrorKind::checkpoint,
                fmt::format("cannot {} {}: {}", action, path_.string(), std::strerror(errno)));
  }

  fs::path path_;
  int fd_ = -1;
};

}  // namespace

class MetricsWriter::Files {
 public:
  explicit Files(const MetricsOptions& options) : with_tensorboard_(!options.tensorboard.empty()) {
    attempt([&] {
      if (options.resumed_step >= 0) truncate_metrics(options.metrics, options.resumed_step);
    });
    attempt([&] { metrics_.open(options.metrics); });
    attempt([&] { events_.open(options.events); });
    if (with_tensorboard_) attempt([&] { open_tensorboard(options); });
  }

  void write_metrics(const Json& json) {
    attempt([&] { metrics_.append(json_text(json) + "\n"); });
  }
  void write_event(const Json& json) {
    attempt([&] { events_.append(json_text(json) + "\n"); });
  }
  void write_scalars(std::int64_t step, std::span<const Scalar> scalars) {
    if (!with_tensorboard_) return;
    attempt([&] {
      tensorboard_.append(tensorboard::record(tensorboard::scalar_event(now_s(), step, scalars)));
    });
  }

  [[nodiscard]] std::int64_t failed_writes() const { return failed_writes_; }
  [[nodiscard]] const std::string& first_problem() const { return first_problem_; }

 private:
  void open_tensorboard(const MetricsOptions& options) {
    fs::create_directories(options.tensorboard);
    const double now = now_s();
    tensorboard_.open(options.tensorboard / tensorboard::file_name(now));
    tensorboard_.append(tensorboard::record(tensorboard::version_event(now)));
    if (options.resumed_step >= 0) {
      tensorboard_.append(
          tensorboard::record(tensorboard::start_event(now, options.resumed_step + 1)));
    }
  }

  template <class Write>
  void attempt(const Write& write) {
    try {
      write();
    } catch (const std::exception& error) {
      if (failed_writes_++ > 0) return;
      first_problem_ = error.what();
      log_warning("metrics are incomplete from here on: {}", first_problem_);
    }
  }

  bool with_tensorboard_;
  AppendFile metrics_;
  AppendFile events_;
  AppendFile tensorboard_;
  std::int64_t failed_writes_ = 0;
  std::string first_problem_;
};

MetricsWriter::MetricsWriter(const MetricsOptions& options)
    : files_(std::make_unique<Files>(options)) {}
MetricsWriter::~MetricsWriter() = default;

void MetricsWriter::step(const StepMetrics& m) {
  files_->write_metrics({{"kind", "step"},
                         {"step", m.step},
                         {"epoch", number(m.epoch)},
                         {"loss", number(m.loss)},
                         {"accuracy", share(m.accuracy)},
                         {"lr", number(m.lr)},
                         {"grad_norm", number(m.grad_norm)},
                         {"samples_per_s", number(m.samples_per_s)},
                         {"tokens_per_s", number(m.tokens_per_s)},
                         {"mfu", number(m.mfu)},
                         {"step_s", number(m.step_s)},
                         {"memory_bytes", m.memory_bytes},
                         {"loss_scale", number(m.loss_scale)},
                         {"skipped_steps", m.skipped_steps}});
  const Scalar scalars[] = {{"train/loss", m.loss},
                            {"train/accuracy", m.accuracy},
                            {"train/lr", m.lr},
                            {"train/grad_norm", m.grad_norm},
                            {"train/samples_per_s", m.samples_per_s},
                            {"train/tokens_per_s", m.tokens_per_s},
                            {"train/mfu", m.mfu},
                            {"train/loss_scale", m.loss_scale},
                            {"train/epoch", m.epoch},
                            {"memory/peak_gib", static_cast<double>(m.memory_bytes) / (1 << 30)}};
  files_->write_scalars(m.step, scalars);
}

void MetricsWriter::evaluation(const EvaluationMetrics& m) {
  files_->write_metrics({{"kind", "evaluation"},
                         {"step", m.step},
                         {"epoch", number(m.epoch)},
                         {"loss", number(m.loss)},
                         {"accuracy", share(m.accuracy)},
                         {"top5", share(m.top5)},
                         {"targets", m.targets},
                         {"seconds", number(m.seconds)}});
  const Scalar scalars[] = {{"evaluation/loss", m.loss},
                            {"evaluation/accuracy", m.accuracy},
                            {"evaluation/top5", m.top5}};
  files_->write_scalars(m.step, scalars);
}

void MetricsWriter::event(std::string_view kind, std::int64_t step,
                          const std::vector<std::pair<std::string, std::string>>& fields) {
  Json json = {{"kind", kind},
               {"step", step},
               {"time", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)))}};
  for (const auto& [key, value] : fields) json[key] = value;
  files_->write_event(json);
}

std::int64_t MetricsWriter::failed_writes() const { return files_->failed_writes(); }
const std::string& MetricsWriter::first_problem() const { return files_->first_problem(); }

void truncate_metrics(const fs::path& path, std::int64_t step) {
  if (!path_exists(path)) return;
  const std::string content = read_file(path);
  std::string kept;
  for (std::size_t begin = 0; begin < content.size();) {
    const std::size_t end = content.find('\n', begin);
    if (end == std::string::npos) break;
    const std::string_view line = std::string_view(content).substr(begin, end + 1 - begin);
    begin = end + 1;
    const nlohmann::json json = json_or_null(line);
    if (!json.is_object() || !json.contains("step") || !json["step"].is_number_integer()) continue;
    if (json["step"].get<std::int64_t>() <= step) kept += line;
  }
  if (kept.size() != content.size()) write_file_atomically(path, kept);
}

}  // namespace dstrain
