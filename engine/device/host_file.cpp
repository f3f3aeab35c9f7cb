#include "engine/device/host_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "engine/base/disk_error.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/open_files.h"

namespace dstrain {
namespace {

constexpr const char* kPathCure =
    "memory.offload.path names a directory on a local disk that this user may write";
constexpr const char* kRoomCure =
    "make room there, name another disk in memory.offload.path, or offload less: a smaller "
    "memory.offload.share";

[[noreturn]] void refuse(const std::filesystem::path& directory, const std::string& why,
                         int error = 0) {
  throw Error(refusal_kind({error, std::generic_category()}),
              fmt::format("memory.offload.path: {} {}", directory.string(), why), kPathCure);
}

void require_disk(const std::filesystem::path& directory) {
  struct stat facts{};
  if (::stat(directory.c_str(), &facts) != 0) {
    const int error = errno;
    refuse(directory,
           error == ENOENT ? "does not exist" : fmt::format("fails: {}", std::strerror(error)),
           error);
  }
  if (!S_ISDIR(facts.st_mode)) refuse(directory, "is not a directory");
  struct statfs system{};
  if (::statfs(directory.c_str(), &system) != 0) return;  // opening will say what is wrong
  if (system.f_type == TMPFS_MAGIC || system.f_type == RAMFS_MAGIC) {
    throw Error(
        ErrorKind::usage,
        fmt::format("memory.offload.path: {} lies in memory ({})", directory.string(),
                    system.f_type == TMPFS_MAGIC ? "tmpfs" : "ramfs"),
        "name a directory on a disk, or take pageable instead of file, which is quicker memory");
  }
}

/// A new file without name; empty with errno when refused.
UniqueFd open_unnamed(const std::filesystem::path& directory, bool tmpfile) {
  if (tmpfile) {
    UniqueFd file(::open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC | O_EXCL, 0600));
    // What file systems and kernels without it answer; others are answers about the directory.
    if (file || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL && errno != ENOENT))
      return file;
  }
  std::string name = (directory / ".dstrain-offload-XXXXXX").string();
  UniqueFd file(::mkostemp(name.data(), O_CLOEXEC));
  if (file) (void)::unlink(name.c_str());
  return file;
}

constexpr Bytes floor_block(Bytes bytes) { return bytes - bytes % HostFile::kAlignment; }
constexpr Bytes ceil_block(Bytes bytes) { return round_up(bytes, HostFile::kAlignment); }

bool aligned(Bytes offset, const std::byte* data, std::size_t bytes) {
  constexpr auto kBlock = static_cast<std::uintptr_t>(HostFile::kAlignment);
  return offset % HostFile::kAlignment == 0 && bytes % kBlock == 0 &&
         reinterpret_cast<std::uintptr_t>(data) % kBlock == 0;
}

/// Bytes of [offset, offset + left) up to the next end of a piece, which is the start of a block.
Bytes piece_bytes(Bytes offset, std::size_t left) {
  return std::min(floor_block(offset) + HostFile::kPiece - offset, static_cast<Bytes>(left));
}

}  // namespace

void HostFile::FreeBuffer::operator()(std::byte* buffer) const { std::free(buffer); }

HostFile::HostFile(std::filesystem::path directory, Bytes bytes)
    : HostFile(std::move(directory), bytes, Options()) {}

HostFile::HostFile(std::filesystem::path directory, Bytes bytes, Options options)
    : directory_(std::move(directory)), size_(bytes) {
  DSTRAIN_CHECK(bytes >= 0, fmt::format("a file of {} bytes", bytes));
  require_disk(directory_);
  file_ = open_unnamed(directory_, options.tmpfile);
  if (!file_) {
    const int error = errno;
    refuse(directory_,
           fmt::format("takes no file: {}{}", std::strerror(error), open_files_note(error)), error);
  }
  if (bytes == 0) return;
  allocate(ceil_block(bytes));
  if (options.direct) choose_direct();
}

void HostFile::allocate(Bytes bytes) {
  const auto full = [&](const std::string& why) {
    return Error(ErrorKind::checkpoint,
                 fmt::format("memory.offload.path: {} has no room for a file of {} ({} bytes): {}",
                             directory_.string(), format_bytes(bytes), bytes, why),
                 kRoomCure);
  };
  // Asked first: beyond this limit the kernel ends the process by SIGXFSZ.
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
      static_cast<Bytes>(limit.rlim_cur) < bytes) {
    throw full(fmt::format("files of this process may have {} (ulimit -f, RLIMIT_FSIZE)",
                           format_bytes(static_cast<Bytes>(limit.rlim_cur))));
  }
  struct statvfs disk{};
  std::optional<Bytes> free_bytes;
  if (::fstatvfs(file_.get(), &disk) == 0 && disk.f_blocks > 0)
    free_bytes = static_cast<Bytes>(disk.f_bavail) * static_cast<Bytes>(disk.f_frsize);
  const std::string free_text =
      free_bytes ? fmt::format("{} are free", format_bytes(*free_bytes)) : "free space unknown";
  // Asked first: a file that fills the disk before it fails would harm others.
  if (free_bytes && *free_bytes < bytes) throw full(free_text);
  int error = 0;
  do {
    error = ::posix_fallocate(file_.get(), 0, bytes);
  } while (error == EINTR);
  if (error != 0) throw full(fmt::format("{}; {}", std::strerror(error), free_text));
}

void HostFile::choose_direct() {
  const int flags = ::fcntl(file_.get(), F_GETFL);
  if (flags < 0 || ::fcntl(file_.get(), F_SETFL, flags | O_DIRECT) != 0) return;
  // Some file systems take the flag and refuse the work, or want larger blocks.
  const Buffer block = take_buffer();
  const auto size = static_cast<std::size_t>(kAlignment);
  std::memset(block.get(), 0, size);
  if (::pwrite(file_.get(), block.get(), size, 0) == kAlignment &&
      ::pread(file_.get(), block.get(), size, 0) == kAlignment) {
    direct_ = true;
    return;
  }
  if (::fcntl(file_.get(), F_SETFL, flags) != 0) fail("setting up", 0, kAlignment, errno);
}

void HostFile::require_inside(Bytes offset, std::size_t bytes) const {
  DSTRAIN_CHECK(offset >= 0 && offset <= size_ && bytes <= to_index(size_ - offset),
                fmt::format("bytes {} to {} of a file of {} bytes", offset,
                            offset + static_cast<Bytes>(bytes), size_));
}

void HostFile::read(Bytes offset, std::span<std::byte> into) const {
  require_inside(offset, into.size());
  while (!into.empty()) {
    const Bytes bytes = piece_bytes(offset, into.size());
    read_piece(offset, into.first(to_index(bytes)));
    into = into.subspan(to_index(bytes));
    offset += bytes;
  }
}

void HostFile::write(Bytes offset, std::span<const std::byte> from) {
  require_inside(offset, from.size());
  while (!from.empty()) {
    const Bytes bytes = piece_bytes(offset, from.size());
    write_piece(offset, from.first(to_index(bytes)));
    from = from.subspan(to_index(bytes));
    offset += bytes;
  }
}

void HostFile::read_piece(Bytes offset, std::span<std::byte> into) const {
  const auto bytes = static_cast<Bytes>(into.size());
  if (!direct_ || aligned(offset, into.data(), into.size()))
    return read_blocks(offset, into.data(), bytes);
  Buffer buffer = take_buffer();
  const Bytes begin = floor_block(offset);
  read_blocks(begin, buffer.get(), ceil_block(offset + bytes) - begin);
  std::memcpy(into.data(), buffer.get() + (offset - begin), into.size());
  give_back(std::move(buffer));
}

void HostFile::write_piece(Bytes offset, std::span<const std::byte> from) const {
  const auto bytes = static_cast<Bytes>(from.size());
  if (!direct_ || aligned(offset, from.data(), from.size()))
    return write_blocks(offset, from.data(), bytes);
  Buffer buffer = take_buffer();
  const Bytes begin = floor_block(offset), end = ceil_block(offset + bytes);
  const bool partial_head = begin < offset;
  const bool partial_tail = end > offset + bytes && end <= ceil_block(size_);
  // Two threads may change the two halves of a block.
  std::unique_lock lock(edges_, std::defer_lock);
  if (partial_head || partial_tail) lock.lock();
  if (partial_head) read_blocks(begin, buffer.get(), kAlignment);
  if (partial_tail && !(partial_head && end - begin == kAlignment))
    read_blocks(end - kAlignment, buffer.get() + (end - begin - kAlignment), kAlignment);
  std::memcpy(buffer.get() + (offset - begin), from.data(), from.size());
  write_blocks(begin, buffer.get(), end - begin);
  if (lock) lock.unlock();
  give_back(std::move(buffer));
}

void HostFile::read_blocks(Bytes offset, std::byte* into, Bytes bytes) const {
  for (Bytes done = 0; done < bytes;) {
    const ssize_t answer = ::pread(file_.get(), into + done, to_index(bytes - done), offset + done);
    if (answer < 0 && errno == EINTR) continue;
    const Bytes whole = answer < 0 ? 0 : whole_blocks(answer, bytes - done);
    if (whole == 0) fail("reading", offset + done, bytes - done, answer < 0 ? errno : 0);
    done += whole;
  }
}

void HostFile::write_blocks(Bytes offset, const std::byte* from, Bytes bytes) const {
  for (Bytes done = 0; done < bytes;) {
    const ssize_t answer =
        ::pwrite(file_.get(), from + done, to_index(bytes - done), offset + done);
    if (answer < 0 && errno == EINTR) continue;
    const Bytes whole = answer < 0 ? 0 : whole_blocks(answer, bytes - done);
    if (whole == 0) fail("writing", offset + done, bytes - done, answer < 0 ? errno : 0);
    done += whole;
  }
}

/// What counts of a short answer: past the page cache the rest must begin at a block again.
Bytes HostFile::whole_blocks(Bytes answered, Bytes wanted) const {
  return direct_ && answered < wanted ? floor_block(answered) : answered;
}

HostFile::Buffer HostFile::take_buffer() const {
  {
    const std::lock_guard lock(buffers_mutex_);
    if (!buffers_.empty()) {
      Buffer buffer = std::move(buffers_.back());
      buffers_.pop_back();
      return buffer;
    }
  }
  auto* data = static_cast<std::byte*>(
      std::aligned_alloc(static_cast<std::size_t>(kAlignment), static_cast<std::size_t>(kPiece)));
  if (data == nullptr) throw std::bad_alloc();
  return Buffer(data);
}

void HostFile::give_back(Buffer buffer) const {
  const std::lock_guard lock(buffers_mutex_);
  buffers_.push_back(std::move(buffer));
}

void HostFile::fail(const char* verb, Bytes offset, Bytes bytes, int error) const {
  throw Error(
      ErrorKind::checkpoint,
      fmt::format("{} {} bytes at offset {} of the offload file in {} failed: {}", verb, bytes,
                  offset, directory_.string(),
                  error == 0 ? "the disk gave fewer bytes than asked" : std::strerror(error)),
      "the disk of memory.offload.path is broken, full or gone; name another and resume from the "
      "last checkpoint");
}

}  // namespace dstrain
