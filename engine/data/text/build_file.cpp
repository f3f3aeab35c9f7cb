#include "engine/data/text/build_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "engine/base/disk_error.h"
#include "engine/base/error.h"
#include "engine/base/file.h"

namespace dstrain::text {
namespace {

namespace fs = std::filesystem;
constexpr std::size_t kBufferBytes = std::size_t{1} << 20;
constexpr const char* kTemporary = ".building-";

[[noreturn]] void fail(const fs::path& path) {
  throw Error(refusal_kind(std::error_code(errno, std::generic_category())),
              fmt::format("cannot write {}: {}", path.string(), std::strerror(errno)),
              "make room, or name another folder in data.cache");
}

}  // namespace

BuildFile::BuildFile(fs::path path) : path_(std::move(path)) {
  std::array<char, 128> host{};
  static_cast<void>(::gethostname(host.data(), host.size() - 1));
  // Host, process and object: without locks (some network file systems) several may write at once.
  temporary_ = fmt::format("{}{}{}-{}-{:x}", path_.string(), kTemporary, host.data(),
                           static_cast<long>(::getpid()), reinterpret_cast<std::uintptr_t>(this));
  fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd_ < 0) fail(temporary_);
  buffer_.reserve(kBufferBytes);
}

BuildFile::~BuildFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_.c_str());
}

void BuildFile::write(std::span<const std::byte> bytes) {
  if (buffer_.size() + bytes.size() > kBufferBytes) flush();
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  size_ += bytes.size();
}

void BuildFile::flush() {
  std::span<const std::byte> rest = buffer_;
  while (!rest.empty()) {
    const auto written = ::write(fd_, rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail(temporary_);
    rest = rest.subspan(static_cast<std::size_t>(written));
  }
  buffer_.clear();
}

void BuildFile::finish(std::span<const std::byte> header) {
  flush();
  if (::pwrite(fd_, header.data(), header.size(), 0) != static_cast<ssize_t>(header.size()) ||
      ::fsync(fd_) != 0 || ::rename(temporary_.c_str(), path_.c_str()) != 0) {
    fail(temporary_);
  }
  ::close(fd_);
  fd_ = -1;
  sync_directory(path_.parent_path());
}

void BuildFile::remove_leftovers(const fs::path& path) {
  const std::string begin = path.filename().string() + kTemporary;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(path.parent_path(), ignored)) {
    if (entry.path().filename().string().starts_with(begin)) fs::remove(entry.path(), ignored);
  }
}

}  // namespace dstrain::text
