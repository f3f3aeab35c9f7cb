#include "engine/data/text/build_file.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "engine/base/file.h"
#include "engine/base/output_file.h"

namespace dstrain::text {
namespace {

namespace fs = std::filesystem;
constexpr std::size_t kBufferBytes = std::size_t{1} << 20;
constexpr const char* kTemporary = ".building-";

OutputOptions build_options() {
  return {.old = OldContent::replace,
          .refused = ErrorKind::usage,
          .hint = "make room, or name another folder in data.cache"};
}

}  // namespace

BuildFile::BuildFile(fs::path path) : path_(std::move(path)) {
  std::array<char, 128> host{};
  static_cast<void>(::gethostname(host.data(), host.size() - 1));
  // Host, process and object: without locks (some network file systems) several may write at once.
  temporary_ = fmt::format("{}{}{}-{}-{:x}", path_.string(), kTemporary, host.data(),
                           static_cast<long>(::getpid()), reinterpret_cast<std::uintptr_t>(this));
  fd_ = open_output_file(temporary_, build_options());
  buffer_.reserve(kBufferBytes);
}

BuildFile::~BuildFile() {
  if (fd_) ::unlink(temporary_.c_str());
}

void BuildFile::write(std::span<const std::byte> bytes) {
  if (buffer_.size() + bytes.size() > kBufferBytes) flush();
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  size_ += bytes.size();
}

void BuildFile::flush() {
  write_fully(fd_.get(), {reinterpret_cast<const char*>(buffer_.data()), buffer_.size()},
              temporary_, build_options());
  buffer_.clear();
}

void BuildFile::finish(std::span<const std::byte> header) {
  flush();
  if (::pwrite(fd_.get(), header.data(), header.size(), 0) != static_cast<ssize_t>(header.size()) ||
      ::fsync(fd_.get()) != 0 || ::rename(temporary_.c_str(), path_.c_str()) != 0) {
    fail_output_file("write", temporary_, errno, build_options());
  }
  fd_.reset();
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
