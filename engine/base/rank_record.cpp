#include "engine/base/rank_record.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <new>
#include <utility>

#include "engine/base/error.h"

namespace dstrain {
namespace {

RankRecord* map_record(int fd, const std::filesystem::path& path) {
  const int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  void* address = ::mmap(nullptr, sizeof(RankRecord), PROT_READ | PROT_WRITE, flags, fd, 0);
  const int error = errno;
  if (fd >= 0) ::close(fd);
  if (address == MAP_FAILED) {
    throw Error(ErrorKind::internal,
                fmt::format("cannot map rank record {}: {}", path.string(), std::strerror(error)));
  }
  return static_cast<RankRecord*>(address);
}

int open_record(const std::filesystem::path& path, int flags) {
  const int fd = ::open(path.c_str(), flags | O_RDWR | O_CLOEXEC, 0600);
  if (fd < 0) {
    throw Error(ErrorKind::internal,
                fmt::format("cannot open rank record {}: {}", path.string(), std::strerror(errno)));
  }
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

}  // namespace

RankRecordFile RankRecordFile::create(const std::filesystem::path& path) {
  const int fd = open_record(path, O_CREAT | O_TRUNC);
  if (::ftruncate(fd, sizeof(RankRecord)) != 0) {
    ::close(fd);
    throw Error(ErrorKind::internal,
                fmt::format("cannot size rank record {}: {}", path.string(), std::strerror(errno)));
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
    : record_(std::exchange(other.record_, nullptr)) {}

RankRecordFile& RankRecordFile::operator=(RankRecordFile&& other) noexcept {
  std::swap(record_, other.record_);
  return *this;
}

void RankRecordFile::enter(std::int64_t step, std::string_view action) {
  record_->step.store(step, std::memory_order_relaxed);
  copy_text(record_->action, action);
  record_->time_ns.store(now_ns(), std::memory_order_relaxed);
  record_->progress.fetch_add(1, std::memory_order_release);
}

void RankRecordFile::fail(std::string_view error, int exit_code) {
  if (record_->error_time_ns.load(std::memory_order_acquire) != 0) return;
  copy_text(record_->error, error.substr(0, error.find('\n')));
  record_->error_code.store(exit_code, std::memory_order_relaxed);
  record_->error_time_ns.store(now_ns(), std::memory_order_release);
}

}  // namespace dstrain
