#include "cmd/fetch_progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "engine/base/clock.h"
#include "engine/base/output.h"
#include "engine/base/units.h"
#include "engine/base/words.h"

namespace dstrain {
namespace {

/// Says from a thread of its own how far it is.
class FetchProgress {
 public:
  FetchProgress(std::string name, std::int64_t bytes, const std::atomic<std::int64_t>& moved)
      : name_(std::move(name)), bytes_(bytes), moved_(moved), thread_([this] { run(); }) {}
  ~FetchProgress() {
    {
      const std::scoped_lock lock(mutex_);
      ended_ = true;
    }
    wake_.notify_all();
    thread_.join();
    if (live_) draw_error_line("");
  }
  FetchProgress(const FetchProgress&) = delete;
  FetchProgress& operator=(const FetchProgress&) = delete;

 private:
  void run() {
    const auto every = live_ ? std::chrono::milliseconds(250) : std::chrono::seconds(10);
    std::unique_lock lock(mutex_);
    while (!wake_.wait_until(lock, std::chrono::system_clock::now() + every,
                             [this] { return ended_; })) {
      if (live_)
        draw_error_line(text());
      else
        print_error("{}\n", text());
    }
  }

  /// The rate is of the last ten seconds or so; what the cache had at the start is none of it.
  std::string text() {
    const std::int64_t now = moved_;
    const double seconds = seconds_since(since_);
    if (seconds > 0) {
      const double rate = static_cast<double>(now - last_) / seconds;
      constexpr double kMemory = 10;
      const double share = rate_ < 0 ? 1 : seconds / (kMemory + seconds);
      rate_ = rate_ < 0 ? rate : rate_ + share * (rate - rate_);
    }
    last_ = now;
    since_ = std::chrono::steady_clock::now();
    std::string line = fmt::format("{}: {} of {}", name_, format_bytes(now), format_bytes(bytes_));
    if (rate_ >= 1)
      line += fmt::format(", {}/s, {} left", format_bytes(static_cast<Bytes>(rate_)),
                          format_duration(static_cast<double>(bytes_ - now) / rate_));
    return line;
  }

  std::string name_;
  std::int64_t bytes_;
  const std::atomic<std::int64_t>& moved_;
  bool live_ = ::isatty(STDERR_FILENO) == 1;
  std::int64_t last_ = 0;
  double rate_ = -1;
  std::chrono::steady_clock::time_point since_ = std::chrono::steady_clock::now();
  bool ended_ = false;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::thread thread_;  ///< last: it reads the others
};

}  // namespace

void fetch_with_progress(const hub::HubPlaces& places, const hub::FetchPlan& plan) {
  if (plan.files.empty()) return;
  if (plan.missing > 0)
    print_error("{}: {} file{} of {}, {}\n", plan.name.text(), plan.files.size(),
                plural(plan.files.size()), places.endpoint.host_header(), format_bytes(plan.bytes));
  std::atomic<std::int64_t> moved = 0;
  const FetchProgress progress(plan.name.id, plan.bytes, moved);
  hub::carry_out(places, plan, moved);
}

void fetch_archive_with_progress(const hub::Archive& archive, const std::filesystem::path& data) {
  print_error("{}: {} of {}\n", archive.name, format_bytes(archive.size), archive.address);
  std::atomic<std::int64_t> moved = 0;
  const FetchProgress progress(std::string(archive.name), archive.size, moved);
  (void)hub::bring_archive(archive, data, moved);
}

}  // namespace dstrain
