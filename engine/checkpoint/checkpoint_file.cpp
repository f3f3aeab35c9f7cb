#include "engine/checkpoint/checkpoint_file.h"

#define XXH_INLINE_ALL
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/limits.h"
#include "engine/base/output_file.h"

namespace dstrain {

struct FileHash::State {
  XXH3_state_t value;
};

FileHash::FileHash() : state_(std::make_unique<State>()) { XXH3_128bits_reset(&state_->value); }
FileHash::~FileHash() = default;
FileHash::FileHash(FileHash&&) noexcept = default;
FileHash& FileHash::operator=(FileHash&&) noexcept = default;

void FileHash::update(std::span<const std::byte> bytes) {
  XXH3_128bits_update(&state_->value, bytes.data(), bytes.size());
}

std::string FileHash::hex() const {
  const XXH128_hash_t digest = XXH3_128bits_digest(&state_->value);
  return fmt::format("{:016x}{:016x}", std::uint64_t{digest.high64}, std::uint64_t{digest.low64});
}

std::string text_hash(std::string_view text) {
  FileHash hash;
  hash.update(std::as_bytes(std::span(text)));
  return hash.hex();
}

ExclusiveFile::ExclusiveFile(std::filesystem::path path) : path_(std::move(path)) {
  fd_ = open_output_file(path_, {.old = OldContent::refuse}).release();
}

ExclusiveFile::~ExclusiveFile() {
  if (fd_ >= 0) ::close(fd_);
}

void ExclusiveFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto written = ::write(fd_, bytes.data(), std::min(bytes.size(), kCheckpointChunk));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      throw Error(ErrorKind::checkpoint,
                  fmt::format("cannot write {} after {} bytes: {}", path_.string(), bytes_,
                              system_reason(written < 0 ? errno : ENOSPC)));
    }
    // Hashed right behind the write, while the chunk is still warm.
    hash_.update(bytes.first(static_cast<std::size_t>(written)));
    bytes_ += written;
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

FileRecord ExclusiveFile::finish() {
  const bool synced = ::fsync(fd_) == 0;
  const int sync_error = errno;
  // Network file systems report some write errors only here.
  const bool closed = ::close(std::exchange(fd_, -1)) == 0;
  if (!synced || !closed) {
    throw Error(ErrorKind::checkpoint,
                fmt::format("cannot flush {} of {} bytes: {}", path_.string(), bytes_,
                            system_reason(synced ? errno : sync_error)));
  }
  return {path_.filename().string(), bytes_, hash_.hex()};
}

CheckpointDirectory::CheckpointDirectory(std::filesystem::path path) : path_(std::move(path)) {
  fd_ = ::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd_ < 0) {
    throw Error(ErrorKind::checkpoint,
                fmt::format("cannot open checkpoint {}: {}", path_.string(), std::strerror(errno)));
  }
}

CheckpointDirectory::~CheckpointDirectory() { ::close(fd_); }

std::int64_t CheckpointDirectory::size_of(const std::string& name) const {
  struct stat status {};
  if (::fstatat(fd_, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
    throw Error(ErrorKind::checkpoint,
                fmt::format("cannot open {}: {}", (path_ / name).string(), std::strerror(errno)));
  }
  if (!S_ISREG(status.st_mode)) {
    throw Error(ErrorKind::checkpoint,
                fmt::format("{} is not a regular file", (path_ / name).string()));
  }
  return status.st_size;
}

int CheckpointDirectory::open(const std::string& name, struct stat& status) const {
  // O_NONBLOCK: a FIFO put there must not make us wait.
  const int fd = ::openat(fd_, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) {
    throw Error(ErrorKind::checkpoint,
                errno == ELOOP ? fmt::format("{} is a symbolic link", (path_ / name).string())
                               : fmt::format("cannot open {}: {}", (path_ / name).string(),
                                             std::strerror(errno)));
  }
  if (::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(fd);
    throw Error(ErrorKind::checkpoint,
                fmt::format("{} is not a regular file", (path_ / name).string()));
  }
  return fd;
}

void read_exactly(int fd, const std::filesystem::path& path, std::int64_t offset,
                  std::span<std::byte> out) {
  while (!out.empty()) {
    const auto got = ::pread(fd, out.data(), std::min(out.size(), kCheckpointChunk), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      throw Error(ErrorKind::checkpoint,
                  fmt::format("cannot read {} at byte {}: {}", path.string(), offset,
                              got < 0 ? std::strerror(errno) : "the file ends there"));
    }
    offset += got;
    out = out.subspan(static_cast<std::size_t>(got));
  }
}

}  // namespace dstrain
