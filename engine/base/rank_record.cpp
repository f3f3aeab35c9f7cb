#include "engine/base/rank_record.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <new>
#include <string>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/limits.h"
#include "engine/base/system_files.h"
#include "engine/base/units.h"

namespace dstrain {
namespace {

/// A file in memory counts against the limit of a file's size, too.
[[noreturn]] void fail_record(const char* action, const std::filesystem::path& path, int error) {
  throw Error(
      error == EFBIG ? ErrorKind::checkpoint : ErrorKind::internal,
      fmt::format("cannot {} rank record {}: {}", action, path.string(), system_reason(error)));
}

RankRecord* map_record(int fd, const std::filesystem::path& path) {
  const int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  void* address = ::mmap(nullptr, sizeof(RankRecord), PROT_READ | PROT_WRITE, flags, fd, 0);
  const int error = errno;
  if (fd >= 0) ::close(fd);
  if (address == MAP_FAILED) fail_record("map", path, error);
  return static_cast<RankRecord*>(address);
}

int open_record(const std::filesystem::path& path, int flags) {
  const int fd = ::open(path.c_str(), flags | O_RDWR | O_CLOEXEC, 0600);
  if (fd < 0) fail_record("open", path, errno);
  return fd;
}

template <std::size_t N>
void copy_text(std::array<char, N>& to, std::string_view text) {
  const std::size_t size = std::min(text.size(), N - 1);
  std::copy_n(text.data(), size, to.data());
  to[size] = '\0';
}

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

/// 0 where it cannot be read.
double process_age_s() {
  constexpr std::size_t kStart = 22 - kFirstProcessField;  // in ticks since the machine's start
  const std::vector<std::string> fields = read_process_fields("self");
  timespec now{};
  if (fields.size() <= kStart || ::clock_gettime(CLOCK_BOOTTIME, &now) != 0) return 0;
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec) -
         std::strtod(fields[kStart].c_str(), nullptr) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

/// For lengths of time within this process.
std::int64_t steady_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// "backward(layer.7), micro-batch 2" -> "layer.7"; "norm" -> "norm".
std::string_view subject_of(std::string_view action) {
  const std::size_t open = action.find('(');
  if (open == std::string_view::npos) return action.substr(0, action.find(','));
  return action.substr(open + 1, action.find(')') - open - 1);
}

void add(std::atomic<std::int64_t>& sum, std::int64_t amount) {
  sum.store(sum.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
}

}  // namespace

std::string_view name_of(RankSection section) {
  switch (section) {
    using enum RankSection;
    case init:
      return "init";
    case data:
      return "data";
    case step:
      return "step";
    case evaluate:
      return "evaluate";
    case checkpoint:
      return "checkpoint";
    case finish:
      return "finish";
  }
  return "unknown";
}

RankRecordFile RankRecordFile::create(const std::filesystem::path& path) {
  const int fd = open_record(path, O_CREAT | O_TRUNC);
  if (::ftruncate(fd, sizeof(RankRecord)) != 0) {
    const int error = errno;
    ::close(fd);
    fail_record("size", path, error);
  }
  return RankRecordFile(new (map_record(fd, path)) RankRecord{});
}

RankRecordFile RankRecordFile::open(const std::filesystem::path& path) {
  RankRecordFile file(map_record(open_record(path, 0), path));
  DSTRAIN_CHECK(file.get().magic == RankRecord::kMagic, path.string() + " is not a rank record");
  return file;
}

RankRecordFile RankRecordFile::anonymous() {
  return RankRecordFile(new (map_record(-1, "in memory")) RankRecord{});
}

RankRecordFile::~RankRecordFile() {
  if (record_ != nullptr) ::munmap(record_, sizeof(RankRecord));
}

RankRecordFile::RankRecordFile(RankRecordFile&& other) noexcept
    : record_(std::exchange(other.record_, nullptr)),
      collective_began_ns_(other.collective_began_ns_),
      step_began_ns_(other.step_began_ns_),
      waited_before_step_ns_(other.waited_before_step_ns_),
      starts_(std::move(other.starts_)),
      stepping_(other.stepping_) {}

RankRecordFile& RankRecordFile::operator=(RankRecordFile&& other) noexcept {
  std::swap(record_, other.record_);
  std::swap(collective_began_ns_, other.collective_began_ns_);
  std::swap(step_began_ns_, other.step_began_ns_);
  std::swap(waited_before_step_ns_, other.waited_before_step_ns_);
  std::swap(starts_, other.starts_);
  std::swap(stepping_, other.stepping_);
  return *this;
}

void RankRecordFile::enter(std::int64_t step, std::string_view action) {
  if (!stepping_) {
    stepping_ = step >= 0;
    starts_.emplace_back(stepping_ ? "" : action, steady_ns());
  }
  record_->step.store(step, std::memory_order_relaxed);
  copy_text(record_->action, action);
  tick();
}

std::vector<std::pair<std::string, double>> RankRecordFile::start_parts() const {
  std::vector<std::pair<std::string, double>> parts;
  const std::int64_t now = steady_ns();
  if (!starts_.empty()) {
    const double since = 1e-9 * static_cast<double>(now - starts_[0].second);
    parts.emplace_back("load the program", std::max(0.0, process_age_s() - since));
  }
  for (std::size_t i = 0; i < starts_.size(); ++i) {
    if (starts_[i].first.empty()) break;
    const std::int64_t end = i + 1 < starts_.size() ? starts_[i + 1].second : now;
    parts.emplace_back(starts_[i].first, 1e-9 * static_cast<double>(end - starts_[i].second));
  }
  return parts;
}

void RankRecordFile::set_stage(int stage) { record_->stage.store(stage); }

void RankRecordFile::tick() {
  record_->time_ns.store(now_ns(), std::memory_order_relaxed);
  record_->progress.fetch_add(1, std::memory_order_release);
}

RankSection RankRecordFile::enter_section(RankSection section) {
  const RankSection before = record_->section.exchange(section, std::memory_order_relaxed);
  tick();
  return before;
}

void RankRecordFile::enter_collective(std::string_view operation, int ranks, std::int64_t bytes) {
  std::array<char, 128> text{};
  const auto size = text.size() - 1;
  const std::string_view action(record_->action.data());
  auto* end =
      fmt::format_to_n(text.data(), size, "{}({}), {} ranks", operation, subject_of(action), ranks)
          .out;
  if (bytes > 0) {
    const auto left = static_cast<std::size_t>(text.data() + size - end);
    fmt::format_to_n(end, left, ", {}", format_bytes(bytes));
  }
  record_->collective = text;
  add(record_->collectives, 1);
  collective_began_ns_ = steady_ns();
  tick();
}

void RankRecordFile::leave_collective() {
  add(record_->waited_ns, steady_ns() - collective_began_ns_);
  add(record_->collectives_left, 1);
  tick();
}

void RankRecordFile::begin_step() {
  step_began_ns_ = steady_ns();
  waited_before_step_ns_ = record_->waited_ns.load(std::memory_order_relaxed);
}

void RankRecordFile::end_step() {
  const std::int64_t waited =
      record_->waited_ns.load(std::memory_order_relaxed) - waited_before_step_ns_;
  add_step(std::chrono::nanoseconds(steady_ns() - step_began_ns_),
           std::chrono::nanoseconds(waited));
}

void RankRecordFile::add_step(std::chrono::nanoseconds time, std::chrono::nanoseconds waited) {
  add(record_->steps_ns, time.count());
  add(record_->steps_waited_ns, waited.count());
  record_->steps.store(record_->steps.load(std::memory_order_relaxed) + 1,
                       std::memory_order_release);
}

void RankRecordFile::fail(std::string_view error, int exit_code) {
  if (record_->error_time_ns.load(std::memory_order_acquire) != 0) return;
  copy_text(record_->error, error.substr(0, error.find('\n')));
  record_->error_code.store(exit_code, std::memory_order_relaxed);
  record_->error_time_ns.store(now_ns(), std::memory_order_release);
}

}  // namespace dstrain
