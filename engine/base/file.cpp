#include "engine/base/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/input_file.h"
#include "engine/base/output_file.h"
#include "engine/base/special_file.h"
#include "engine/base/unique_fd.h"

namespace dstrain {
namespace {

[[noreturn]] void fail(const char* action, const std::filesystem::path& path,
                       ErrorKind kind = ErrorKind::data) {
  throw Error(kind, fmt::format("cannot {} {}: {}", action, path.string(), std::strerror(errno)));
}

std::uint64_t size_of(int fd, const std::filesystem::path& path) {
  struct stat status{};
  if (::fstat(fd, &status) != 0) fail("read", path);
  return static_cast<std::uint64_t>(status.st_size);
}

}  // namespace

std::string read_file(const std::filesystem::path& path, std::uint64_t limit) {
  const UniqueFd fd = open_input_file(path);
  const std::uint64_t size = size_of(fd.get(), path);
  if (size > limit) {
    throw Error(ErrorKind::data, fmt::format("{} has {} bytes, more than the limit of {}",
                                             path.string(), size, limit));
  }
  std::string content(size, '\0');
  std::size_t done = 0;
  while (done < content.size()) {
    const auto got = ::read(fd.get(), content.data() + done, content.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail("read", path);
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  content.resize(done);
  return content;
}

void write_file_atomically(const std::filesystem::path& path, std::string_view content) {
  write_file_atomically(path, content, Readers::by_umask);
}

void write_file_atomically(const std::filesystem::path& path, std::string_view content,
                           Readers readers) {
  if (is_special_file(path)) return write_fully(open_special_file(path).get(), content, path);
  const std::filesystem::path temporary =
      path.string() + fmt::format(".tmp{}", static_cast<long>(::getpid()));
  const UniqueFd fd =
      open_output_file(temporary, {.old = OldContent::replace, .readers = readers, .name = path});
  try {
    write_fully(fd.get(), content, path);
    if (::fsync(fd.get()) != 0) fail_output_file("flush", path, errno);
    if (::rename(temporary.c_str(), path.c_str()) != 0) fail_output_file("rename", path, errno);
  } catch (const Error&) {
    ::unlink(temporary.c_str());
    throw;
  }
}

void sync_directory(const std::filesystem::path& directory) {
  const UniqueFd fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd || ::fsync(fd.get()) != 0) fail("flush directory", directory, ErrorKind::checkpoint);
}

MappedFile::MappedFile(const std::filesystem::path& path) {
  const UniqueFd fd = open_input_file(path);
  const std::uint64_t size = size_of(fd.get(), path);
  if (size == 0) return;
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (address == MAP_FAILED) fail("map", path);
  bytes_ = {static_cast<const std::byte*>(address), size};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

void MappedFile::have_read(std::uint64_t bytes) const {
  constexpr std::uint64_t kMaxHeld = 16 << 20;
  if (held_.fetch_add(bytes) + bytes < kMaxHeld) return;
  held_ = 0;
  // Refused, it changes nothing but the memory that the process seems to have.
  (void)::madvise(const_cast<std::byte*>(bytes_.data()), bytes_.size(), MADV_DONTNEED);
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

}  // namespace dstrain
